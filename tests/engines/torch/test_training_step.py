"""A step replayed from its graph has the bits of the native loop, over several steps with other batches each."""

from __future__ import annotations

import runpy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from tallystick.core.errors import UnavailableError, UsageError
from tallystick.engines.torch.capture.module_trail import ModuleTrail
from tallystick.engines.torch.capture.step import CapturedStep
from tallystick.engines.torch.capture.training_step import capture_training_step
from tallystick.engines.torch.engine import TorchEngine
from tallystick.engines.torch.randomness import explicit_randomness, seed_tensor
from tallystick.engines.torch.tensors import from_tensor
from tallystick.engines.torch.training.trainer import Trainer
from tallystick.engines.torch.training.verifier_stack import capture_recipe_step
from tallystick.formats.optimizers import SgdRule
from tallystick.formats.recipe import learning_rate
from tallystick.programs.encoding import graph_root
from tallystick.programs.graph import Graph, GraphForm
from tallystick.programs.step_names import SEED
from tests.support.captured_steps import Replay, native_step

MODELS = runpy.run_path(str(Path(__file__).with_name("architectures.py")))
TRIED = ["llama-eager", "gpt2-sdpa", "qwen3-eager", "bert-eager", "cnn", "unet"]
SHARED_KEYS = ["llama-sdpa", "qwen3-sdpa"]
"""Their heads share keys: exported they repeat them, and the processor decides whether that gives the same bits."""
REST = sorted(MODELS["ARCHITECTURES"].keys() - {*TRIED, *SHARED_KEYS, "gpt2-dropout"})
Batch = dict[str, torch.Tensor]
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2, betas=(0.8, 0.95), weight_decay=0.1),
    "adam": lambda p: torch.optim.Adam(p, lr=1e-2, weight_decay=0.1),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1),
    "amsgrad": lambda p: torch.optim.AdamW(p, lr=1e-2, amsgrad=True),
    "fused adamw": lambda p: torch.optim.AdamW(p, lr=1e-2, betas=(0.8, 0.95), weight_decay=0.1, fused=True),
    "fused adam": lambda p: torch.optim.Adam(p, lr=1e-2, weight_decay=0.1, fused=True),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
}


def loss_of(model: Any, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    given = {name: value for name, value in batch.items() if name != "target"}
    result = model(**given, use_cache=False) if hasattr(model.config, "use_cache") else model(**given)
    values = result.logits if hasattr(result, "logits") else result[0]
    if batch["target"].is_floating_point():
        return functional.mse_loss(values, batch["target"])
    return functional.cross_entropy(values.flatten(0, 1), batch["target"].flatten())


def loss_of_images(model: Any, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    return functional.cross_entropy(model(batch["input"]), batch["target"])


def prepared(name: str) -> tuple[nn.Module, Callable[..., torch.Tensor], Callable[[int], Batch]]:
    """A model in training mode, its loss, and its batches by number."""
    model, given = MODELS["build"](name)
    kept = {key: value for key, value in given.items() if isinstance(value, torch.Tensor)}

    def batch(index: int) -> Batch:
        draw = torch.Generator().manual_seed(index)
        if name == "cnn":
            return {
                "input": torch.randn(kept["input"].shape, generator=draw),
                "target": torch.randint(10, (4,), generator=draw),
            }
        if name == "unet":
            noise = torch.randn((2, 2, 1, 8, 8), generator=draw)
            return {"sample": noise[0], "timestep": torch.randint(9, (2,), generator=draw), "target": noise[1]}
        drawn = MODELS["tokens"](index)
        return {**kept, "input_ids": drawn, "target": drawn.roll(1, 1)}

    return model.train(), loss_of_images if name == "cnn" else loss_of, batch


def assert_same_bits(
    name: str, optimizer_name: str, *, clip_norm: float | None = None, accumulation: int = 1
) -> CapturedStep:
    model, loss, batch = prepared(name)
    optimizer = OPTIMIZERS[optimizer_name](model.parameters())
    captured = capture_training_step(model, loss, optimizer, batch(0), clip_norm=clip_norm, accumulation=accumulation)
    replay = Replay(captured, model, optimizer)
    for step in range(1, 4):
        batches = [batch(10 * step + number) for number in range(accumulation)]
        outputs = replay.step(step, batches)
        expected = native_step(model, loss, optimizer, batches, clip_norm)
        assert [key for key, value in expected.items() if not torch.equal(value, outputs[key])] == []
        assert set(captured.state) == {key for key in expected if not key.startswith("gradients.")} | {"position.step"}
    return captured


@pytest.mark.parametrize("name", [*TRIED, *(pytest.param(name, marks=pytest.mark.slow) for name in REST)])
def test_three_steps_have_the_bits_of_the_native_loop(name: str) -> None:
    assert_same_bits(name, "adamw", clip_norm=0.5)


@pytest.mark.parametrize("name", SHARED_KEYS)
def test_keys_shared_by_heads_keep_the_bits_or_are_refused(name: str) -> None:
    refused = ""
    try:
        assert_same_bits(name, "adamw", clip_norm=0.5)
    except UnavailableError as error:
        refused = str(error)
    assert not refused or "attn_implementation='eager'" in refused


@pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS))
def test_every_optimizer_has_the_bits_of_pytorchs(optimizer: str) -> None:
    assert_same_bits("cnn", optimizer, clip_norm=0.05)


@pytest.mark.parametrize("clip_norm", [None, 0.05])
def test_micro_batches_are_accumulated_as_the_native_loop_does(clip_norm: float | None) -> None:
    assert_same_bits("cnn", "momentum", clip_norm=clip_norm, accumulation=3)


@pytest.mark.slow
def test_the_whole_pretrained_model_has_the_bits_of_the_native_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODELS["ARCHITECTURES"], "minilm", lambda: MODELS["minilm"](6))
    assert_same_bits("minilm", "adamw", clip_norm=1.0)


class PartlyUsed(nn.Module):
    """A network with a layer that no loss reaches."""

    def __init__(self) -> None:
        super().__init__()
        self.read, self.unread = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return self.read(input)  # type: ignore[no-any-return]


def test_a_parameter_without_gradient_is_skipped() -> None:
    model, batch = PartlyUsed(), {"input": torch.randn(5, 4), "target": torch.tensor([0, 1, 2, 0, 1])}
    optimizer = OPTIMIZERS["adamw"](model.parameters())
    captured = capture_training_step(model, loss_of_images, optimizer, batch)
    outputs = Replay(captured, model, optimizer).step(1, [batch])
    expected = native_step(model, loss_of_images, optimizer, [batch], None)
    assert all(torch.equal(value, outputs[key]) for key, value in expected.items())
    values = {output.name: output.value for output in captured.graph.outputs}
    assert values["weights.unread.weight"] == "weights.unread.weight"
    assert "optimizer.unread.weight.exp_avg" not in values
    assert "gradients.unread.weight" not in values
    assert "optimizer.read.weight.exp_avg" in values


def test_groups_of_parameters_have_schedules_of_their_own() -> None:
    model, loss, batch = prepared("cnn")
    weights, biases = [p for p in model.parameters() if p.dim() > 1], [p for p in model.parameters() if p.dim() == 1]
    groups = [{"params": weights, "weight_decay": 0.1}, {"params": biases, "lr": 0.01, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=0.02)
    captured = capture_training_step(model, loss, optimizer, batch(0))
    outputs = Replay(captured, model, optimizer).step(1, [batch(1)])
    expected = native_step(model, loss, optimizer, [batch(1)], None)
    assert all(torch.equal(value, outputs[key]) for key, value in expected.items())
    assert {"schedule.decay.0", "schedule.step_size.1"} <= captured.schedule(1, 0.02, 0.01).keys()
    assert "schedule.decay.1" not in captured.schedule(1, 0.02, 0.01)


def test_replaying_changes_no_input_that_is_not_given_away() -> None:
    model, loss, batch = prepared("cnn")
    optimizer = OPTIMIZERS["adamw"](model.parameters())
    captured = capture_training_step(model, loss, optimizer, batch(0))
    replay = Replay(captured, model, optimizer)
    replay.program = TorchEngine().compile(captured.graph)
    given = replay.state
    held = {name: value.clone() for name, value in given.items()}
    replay.step(1, [batch(1)])
    assert all(torch.equal(value, held[name]) for name, value in given.items())
    assert not torch.equal(replay.state["buffers.1.running_mean"], held["buffers.1.running_mean"])


def test_capturing_leaves_model_optimizer_and_generator_as_they_were() -> None:
    model, loss, batch = prepared("cnn")
    optimizer = OPTIMIZERS["adamw"](model.parameters())
    held = {name: value.clone() for name, value in model.state_dict().items()}
    generator = torch.get_rng_state()
    capture_training_step(model, loss, optimizer, batch(0))
    assert all(torch.equal(value, held[name]) for name, value in model.state_dict().items())
    assert not optimizer.state
    assert torch.equal(torch.get_rng_state(), generator)


def test_dropout_from_a_seed_has_the_bits_of_the_eager_step() -> None:
    model, loss, batch = prepared("gpt2-dropout")
    optimizer = OPTIMIZERS["adamw"](model.parameters())
    with pytest.raises(UnavailableError, match="random"):
        capture_training_step(model, loss, optimizer, batch(0))
    captured = capture_training_step(model, loss, optimizer, batch(0), draws="seed")
    replay = Replay(captured, model, optimizer)
    for step in range(1, 4):
        seed, drawn = bytes([step]) * 16, [batch(step)]
        outputs = replay.step(step, drawn, **{SEED: seed_tensor(seed)})
        with explicit_randomness(seed):
            expected = native_step(model, loss, optimizer, drawn, None)
        assert all(torch.equal(value, outputs[key]) for key, value in expected.items())
    assert "tally.dropout_mask" in {node.operator for node in captured.graph.nodes}


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_weights_in_bfloat16_are_rounded_where_the_kernels_of_pytorch_round_them(name: str) -> None:
    torch.manual_seed(0)
    dtype = torch.bfloat16
    # `add` of 16 bits, which SGD uses, rounds what is left after the last whole vector once more
    sizes = (5, 33, 3) if "adam" in name or name == "amsgrad" else (8, 64, 64)
    model = nn.Sequential(nn.Linear(sizes[0], sizes[1]), nn.Tanh(), nn.Linear(sizes[1], sizes[2])).to(dtype)
    optimizer = OPTIMIZERS[name](model.parameters())

    def loss(called: Any, batch: Batch) -> torch.Tensor:
        return functional.mse_loss(called(batch["x"]), batch["y"])

    def batch(index: int) -> Batch:
        draw = torch.Generator().manual_seed(index)
        x, y = torch.randn(4, sizes[0], generator=draw), torch.randn(4, sizes[2], generator=draw)
        return {"x": x.to(dtype), "y": y.to(dtype)}

    replay = Replay(capture_training_step(model, loss, optimizer, batch(0), clip_norm=0.5), model, optimizer)
    for step in range(1, 6):
        outputs = replay.step(step, [batch(step)])
        expected = native_step(model, loss, optimizer, [batch(step)], 0.5)
        assert [name for name, value in expected.items() if not torch.equal(value, outputs[name])] == []


@pytest.mark.parametrize(
    ("optimizer", "named"),
    [
        (lambda p: torch.optim.AdamW(p, amsgrad=True, fused=True), "fused"),
        (lambda p: torch.optim.SGD(p, lr=0.1, fused=True), "fused"),
        (lambda p: torch.optim.AdamW(p, capturable=True), "capturable"),
        (lambda p: torch.optim.Adagrad(p, fused=True), "fused"),
        (lambda p: torch.optim.RMSprop(p, lr=torch.tensor(0.1)), "a tensor as lr"),
        (lambda p: torch.optim.Rprop(p), "torch.optim.rprop.Rprop cannot be captured; these can: Adadelta"),
    ],
)
def test_an_optimizer_of_other_arithmetic_is_refused(optimizer: Any, named: str) -> None:
    model, loss, batch = prepared("cnn")
    with pytest.raises(UnavailableError, match=named):
        capture_training_step(model, loss, optimizer(model.parameters()), batch(0))


def test_an_optimizer_of_another_models_parameters_is_refused() -> None:
    model, loss, batch = prepared("cnn")
    optimizer = torch.optim.SGD([*model.parameters(), nn.Parameter(torch.zeros(2))], lr=0.1)
    with pytest.raises(UnavailableError, match="none of the model's"):
        capture_training_step(model, loss, optimizer, batch(0))


def test_a_batch_is_tensors_by_name() -> None:
    model, loss, batch = prepared("cnn")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    given: Any = [tuple(batch(0).values()), {"input": [1.0]}, []]
    for wrong in given:
        with pytest.raises(UsageError, match="from names to tensors"):
            capture_training_step(model, loss, optimizer, wrong)
    assert capture_training_step(model, loss, optimizer, [batch(0)]).graph.nodes


def test_a_schedule_has_a_step_and_a_rate_for_each_group() -> None:
    captured = CapturedStep(Graph("aten", GraphForm.VERIFICATION, (), (), (), ()), {}, (SgdRule(),) * 2)
    for step, rates, reason in ((0, (0.1, 0.1), "counted from 1"), (1, (0.1,), "2 learning rates")):
        with pytest.raises(UsageError, match=reason):
            captured.schedule(step, *rates)
    held = {name: tensor.values().item() for name, tensor in captured.schedule(1, 0.1, 0.2).items()}
    assert held == {"schedule.step_size.0": -0.1, "schedule.step_size.1": -0.2}


class Fickle(nn.Linear):
    """Scales what it returns, and not while it is exported."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input) * (1.0 if torch.compiler.is_exporting() else 1.5)


@pytest.mark.parametrize(("layer", "is_refused"), [(Fickle, True), (nn.Linear, False)])
def test_a_model_that_differs_while_exported_is_refused(layer: type[nn.Linear], is_refused: bool) -> None:
    model = nn.Sequential(layer(4, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch = {"input": torch.randn(5, 4), "target": torch.tensor([0, 1, 2, 0, 1])}
    if is_refused:
        with pytest.raises(UnavailableError, match="bits of the eager"):
            capture_training_step(model, loss_of_images, optimizer, batch)
    else:
        assert capture_training_step(model, loss_of_images, optimizer, batch).graph.nodes


class Restless(nn.Linear):
    """Scales what it returns by the number of its calls, as kernels do that add in any order."""

    calls = 0

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        Restless.calls += 1
        return super().forward(input) * Restless.calls


def test_a_step_that_gives_other_bits_each_time_is_refused_with_the_setting_that_mends_it() -> None:
    model = nn.Sequential(Restless(4, 3))
    batch = {"input": torch.randn(5, 4), "target": torch.tensor([0, 1, 2, 0, 1])}
    with pytest.raises(UnavailableError, match=r"two eager steps .*use_deterministic_algorithms"):
        capture_training_step(model, loss_of_images, torch.optim.SGD(model.parameters(), lr=0.1), batch)


# ---- recipes

WITHOUT_DROPOUT = {"model": {"config": {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 32,
    "tie_word_embeddings": True,
}}}  # fmt: skip


@pytest.mark.parametrize(
    "changes", [{}, {"training": {"dtype": "bf16", "accumulation": 2}}, {"optimizer": {"kind": "sgd", "momentum": 0.9}}]
)
def test_the_step_of_a_recipe_has_the_bits_of_its_trainer(
    recipe_of: Callable[..., Any], batches_of: Callable[..., Any], changes: dict[str, Any]
) -> None:
    recipe = recipe_of(WITHOUT_DROPOUT, changes)
    captured, trainer = capture_recipe_step(recipe, 256), Trainer(recipe, 256)
    replay = Replay(captured, trainer.model, trainer.optimizer)
    assert set(captured.state) == {name for name in trainer.state() if not name.startswith("rng.")}
    for step in range(1, 4):
        replay.rates = [learning_rate(recipe, step)]
        batches = batches_of(recipe, step)
        torches = [{name: torch.from_numpy(np.asarray(value)) for name, value in batch.items()} for batch in batches]
        outputs, seen = replay.step(step, torches), trainer.step(batches)
        expected = trainer.state()
        assert [n for n in captured.state if not torch.equal(from_tensor(expected[n]), outputs[n])] == []
        assert (float(outputs["loss"]), float(outputs["gradient_norm"])) == (seen.loss, seen.gradient_norm)
        assert (float(outputs["activation.mean"]), float(outputs["activation.rms"])) == seen.activation


def test_module_paths_are_written_on_request_and_leave_the_graph_as_it_is(recipe_of: Callable[..., Any]) -> None:
    recipe = recipe_of(WITHOUT_DROPOUT)
    bare, named = capture_recipe_step(recipe, 256), capture_recipe_step(recipe, 256, ModuleTrail())
    assert bare.modules == {}
    assert {*named.modules} == {node.number for node in named.graph.nodes}
    assert graph_root(bare.graph) == graph_root(named.graph)


def test_a_recipe_with_dropout_is_refused(recipe_of: Callable[..., Any]) -> None:
    ends = r"to have one, set attention_dropout = 0 in \[model\.config\]$"
    with pytest.raises(UnavailableError, match=f"dropout draws random numbers .*: {ends}") as refused:
        capture_recipe_step(recipe_of(), 256)
    assert "seed=" not in str(refused.value)


def test_the_check_of_a_capture_computes_no_update(monkeypatch: pytest.MonkeyPatch) -> None:
    """Moments and new weights would take as much memory again as the training does."""
    compiled: list[Graph] = []
    compile_ = TorchEngine.compile
    monkeypatch.setattr(TorchEngine, "compile", lambda self, graph: compiled.append(graph) or compile_(self, graph))
    model = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    batch = {"input": torch.ones(4, 3), "target": torch.zeros(4, dtype=torch.int64)}
    captured = capture_training_step(model, loss_of_images, optimizer, batch)
    (checked,) = compiled
    assert {each.name for each in checked.inputs} == {"weights.weight", "weights.bias", "inputs.input", "inputs.target"}
    assert len(checked.nodes) < len(captured.graph.nodes) / 2
