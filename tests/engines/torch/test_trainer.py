"""A trainer does what a plain loop of PyTorch does, bit for bit, and continues from any state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from tallystick.core.errors import UnavailableError
from tallystick.core.tensor_digests import state_digest
from tallystick.engines.torch.training.trainer import Trainer, build_model, first_line
from tallystick.formats.recipe import Recipe, learning_rate

Build = Callable[..., Any]
OPTIMIZERS = {
    "adamw": {"kind": "adamw", "learning_rate": 0.01, "betas": [0.8, 0.95], "eps": 1e-7, "weight_decay": 0.1},
    "sgd": {"kind": "sgd", "learning_rate": 0.1, "weight_decay": 0.1},
    "momentum": {"kind": "sgd", "learning_rate": 0.1, "momentum": 0.9, "weight_decay": 0.1},
}


def plain_optimizer(name: str, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    if name == "adamw":
        return torch.optim.AdamW(parameters, lr=0.01, betas=(0.8, 0.95), eps=1e-7, weight_decay=0.1)
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9 if name == "momentum" else 0.0, weight_decay=0.1)


def plain_loop(recipe: Recipe, name: str, draw: Build, steps: int) -> tuple[nn.Module, list[float]]:
    """Training as the manual of PyTorch shows it, in this process and with no part of the trainer."""
    torch.manual_seed(recipe.training.seed)
    model = build_model(recipe, 256).train()
    optimizer, losses = plain_optimizer(name, list(model.parameters())), []
    for step in range(1, steps + 1):
        optimizer.param_groups[0]["lr"] = learning_rate(recipe, step)
        optimizer.zero_grad()
        seen = []
        for batch in draw(recipe, step):
            logits = model(input_ids=torch.as_tensor(batch["inputs"]), use_cache=False).logits
            loss = functional.cross_entropy(logits.reshape(-1, 256), torch.as_tensor(batch["targets"]).reshape(-1))
            (loss / recipe.training.accumulation).backward()
            seen.append(loss.detach())
        if recipe.optimizer.clip_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), recipe.optimizer.clip_norm)
        optimizer.step()
        losses.append(float(torch.stack(seen).mean()))
    return model, losses


@pytest.mark.parametrize("accumulation", [1, 3])
@pytest.mark.parametrize("clip", [None, 0.05])
@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_a_step_equals_that_of_a_plain_loop_bit_for_bit(
    recipe_of: Build, batches_of: Build, name: str, clip: float | None, accumulation: int
) -> None:
    optimizer = {"kind": OPTIMIZERS[name]["kind"], "clip_norm": clip} | OPTIMIZERS[name]
    table = recipe_of({"training": {"accumulation": accumulation}}).to_json()
    table["optimizer"] = {key: value for key, value in optimizer.items() if value is not None}
    recipe = Recipe.from_json(table, "recipe")
    expected, losses = plain_loop(recipe, name, batches_of, 3)

    trainer = Trainer(recipe, 256)
    assert [trainer.step(batches_of(recipe, step)).loss for step in (1, 2, 3)] == losses
    for (key, found), (_, wanted) in zip(trainer.model.named_parameters(), expected.named_parameters(), strict=True):
        assert torch.equal(found, wanted), key


def test_the_gradient_norm_is_that_before_clipping(trainer_of: Build, batches_of: Build) -> None:
    free, clipped = trainer_of({"optimizer": {"clip_norm": 1e9}}), trainer_of({"optimizer": {"clip_norm": 1e-3}})
    norms = []
    for trainer in (free, clipped):
        torch.manual_seed(0)
        norms.append(trainer.step(batches_of(trainer.recipe, 1)).gradient_norm)
    assert norms[0] == norms[1] > 1e-3


def test_dropout_continues_after_restoring(trainer_of: Build, batches_of: Build) -> None:
    undisturbed: Trainer = trainer_of()
    undisturbed.step(batches_of(undisturbed.recipe, 1))
    middle = {name: tensor.copy() for name, tensor in undisturbed.state().items()}
    seen = undisturbed.step(batches_of(undisturbed.recipe, 2))
    end = state_digest(undisturbed.state())

    resumed: Trainer = trainer_of()
    torch.rand(1000)
    resumed.restore(middle)
    assert resumed.step(batches_of(resumed.recipe, 2)) == seen
    assert state_digest(resumed.state()) == end

    astray: Trainer = trainer_of()
    astray.restore(middle)
    torch.rand(1000)
    astray.step(batches_of(astray.recipe, 2))
    assert state_digest(astray.state()) != end


def test_the_state_shares_memory_with_the_live_tensors(trainer_of: Build, batches_of: Build) -> None:
    trainer: Trainer = trainer_of()
    state = trainer.state()
    before = state["weights.model.norm.weight"].array().copy()
    trainer.step(batches_of(trainer.recipe, 1))
    assert not np.array_equal(state["weights.model.norm.weight"].array(), before)


def test_activations_are_observed_where_they_are_asked_for(trainer_of: Build, batches_of: Build) -> None:
    for wanted in (True, False):
        trainer: Trainer = trainer_of({"record": {"activation_checksum": wanted}})
        seen = trainer.step(batches_of(trainer.recipe, 1)).activation
        assert (seen is not None) == wanted
        assert seen is None or (abs(seen[0]) < seen[1] and seen[1] > 0)


def test_half_precision_trains_full_precision_weights(trainer_of: Build, batches_of: Build) -> None:
    full, half = trainer_of(), trainer_of({"training": {"dtype": "bf16"}})
    losses = [trainer.step(batches_of(trainer.recipe, 1)).loss for trainer in (full, half)]
    assert losses[0] != losses[1]
    assert losses[0] == pytest.approx(losses[1], rel=0.05)
    assert {tensor.dtype for tensor in half.weights().values()} == {torch.float32}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_a_recipe_for_a_device_that_is_not_there_is_unavailable(recipe_of: Build) -> None:
    recipe = recipe_of({"training": {"device": "cuda"}})
    with pytest.raises(UnavailableError, match="no CUDA device"):
        Trainer(recipe, 256)
    assert Trainer(recipe, 256, device="cpu").device == "cpu"


@pytest.mark.parametrize("seed", [0, 1, 2**53 - 1])
def test_every_seed_of_a_recipe_seeds_a_trainer(recipe_of: Build, seed: int) -> None:
    recipe = recipe_of({"training": {"seed": seed}})
    assert state_digest(Trainer(recipe, 256).state()) == state_digest(Trainer(recipe, 256).state())


def test_an_error_is_told_in_one_line() -> None:
    assert first_line(ValueError("one\ntwo")) == "ValueError: one"
    assert first_line(KeyError()) == "KeyError"
    assert len(first_line(ValueError("x" * 9999))) < 250
