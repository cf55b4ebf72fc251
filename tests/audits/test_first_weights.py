"""Whether a run begins with the weights of a directory: a loop of one's own, a recipe, LoRA, and starts that do not."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tallystick
from tallystick.core.errors import UnavailableError, UsageError
from tallystick.core.safetensors import write_state
from tallystick.core.tensors import Tensor
from tallystick.formats.store.directories import open_origin
from tallystick.formats.store.run import RunDirectory
from tallystick.recording.training import read_config

torch = pytest.importorskip("torch")
FULL = tallystick.Policy(full=True)
TEXT = "\n".join(f"Notch {number}: both halves of the stick show {number * number}." for number in range(90))
RECIPE = """
[data]
kind = "text"
path = "text.txt"
[model]
architecture = "llama"
{initial}
[model.config]
hidden_size = 16
intermediate_size = 16
num_hidden_layers = 1
num_attention_heads = 2
max_position_embeddings = 32
[training]
steps = 2
batch = 2
sequence = 16
seed = {seed}
[record]
anchor_stride = 1
"""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint")
    write_state(folder / "model.safetensors", {n: Tensor.of(v.numpy()) for n, v in network().state_dict().items()})
    return folder


def network() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))


def record(out: Path, model: Any, initial: Path | None) -> Path:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with tallystick.record_training(out, model, optimizer, initial=initial) as recorder:
        for x in torch.randn(3, 8, 3, generator=torch.Generator().manual_seed(5)):
            loss = model(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            recorder.step(loss, batch=x)
    return out


@pytest.fixture(scope="module")
def started(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("started") / "run", network(), checkpoint)


def test_the_spec_states_the_digest_and_the_audit_compares_it(started: Path, checkpoint: Path) -> None:
    digest = open_origin(checkpoint).digest
    assert RunDirectory(started).spec().initial == digest
    result = tallystick.audit(started, FULL, initial=checkpoint)
    assert result.accepted
    assert result.verdict.shown == (f"the run begins with the weights of {checkpoint}, {digest}",)
    assert f"checked: the run begins with the weights of {checkpoint}" in result.text()
    assert result.to_json()["checked"] == list(result.verdict.shown)
    assert f"--initial {checkpoint}" in result.made.command
    assert not any("first state" in line for line in result.verdict.not_checked)


def test_without_the_directory_the_statement_is_not_checked(started: Path, checkpoint: Path) -> None:
    result = tallystick.audit(started, FULL)
    assert result.accepted
    (line,) = (each for each in result.verdict.not_checked if "--initial" in each)
    assert str(open_origin(checkpoint).digest) in line


def test_a_spot_check_reads_the_first_state_for_it(started: Path, checkpoint: Path) -> None:
    result = tallystick.audit(started, tallystick.Policy(samples=1), initial=checkpoint)
    assert result.verdict.shown


def test_another_directory_accuses_nobody(started: Path, tmp_path: Path) -> None:
    write_state(tmp_path / "model.safetensors", {"0.weight": Tensor.of(np.zeros((8, 3), np.float32))})
    result = tallystick.audit(started, FULL, initial=tmp_path)
    assert result.outcome == "inconclusive"
    assert "holds other numbers in 1 tensor (weights.0.weight), and the spec states sha256:" in result.text()


def test_a_tuned_model_is_not_stated_and_the_loop_goes_on(checkpoint: Path, tmp_path: Path) -> None:
    model = network()
    with torch.no_grad():
        model[0].bias += 1e-3
    with pytest.warns(RuntimeWarning, match=r"does not state that it began with .*weights\.0\.bias differs"):
        run = record(tmp_path / "run", model, checkpoint)
    assert RunDirectory(run).spec().initial is None
    assert tallystick.audit(run, FULL).accepted
    result = tallystick.audit(run, FULL, initial=checkpoint)
    assert result.outcome == "inconclusive"
    assert "the spec states no origin" in result.text()


def test_what_the_directory_does_not_hold_is_named(checkpoint: Path, tmp_path: Path) -> None:
    model = torch.nn.Sequential(*network(), torch.nn.Linear(1, 1))
    run = record(tmp_path / "run", model, checkpoint)
    result = tallystick.audit(run, FULL, initial=checkpoint)
    assert result.accepted
    assert any("first values of 2 tensors (weights.3.bias, weights.3.weight)" in x for x in result.verdict.not_checked)


def test_a_run_begins_where_another_ended(started: Path, tmp_path: Path) -> None:
    model, claim = network(), RunDirectory(started).claim()
    ended = {name: torch.from_numpy(each.array().copy()) for name, each in open_origin(started).weights.items()}
    model.load_state_dict(ended)
    run = record(tmp_path / "run", model, started)
    assert RunDirectory(run).spec().initial == claim.weights
    assert tallystick.audit(run, FULL, initial=started).accepted


def test_a_place_without_weights_is_refused_before_the_training(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="not there"):
        record(tmp_path / "run", network(), tmp_path / "nowhere")


@pytest.fixture(scope="module")
def recipes(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str, int], Path]:
    folder = tmp_path_factory.mktemp("recipes")
    (folder / "text.txt").write_text(TEXT)

    def train(name: str, initial: str = "", seed: int = 1) -> Path:
        config = folder / f"{name}.toml"
        config.write_text(RECIPE.format(initial=initial and f'initial = "{initial}"', seed=seed))
        if not (folder / name).exists():
            tallystick.train(config, folder / name, graph=False)
        return folder / name

    return train


def test_a_recipe_goes_on_from_an_earlier_run(recipes: Callable[..., Path]) -> None:
    first, second = recipes("first"), recipes("second", "first", 2)
    recipe = RunDirectory(second).spec().recipe
    assert recipe is not None
    assert recipe.model.initial == RunDirectory(first).claim().weights
    accepted = tallystick.audit(second, FULL, initial=first)
    assert accepted.accepted
    assert accepted.verdict.shown
    left = tallystick.audit(second, FULL)
    assert left.outcome == "inconclusive"
    assert f"the recipe begins with {recipe.model.initial}: give the directory" in left.text()


def test_a_recipe_that_begins_elsewhere_is_rejected(recipes: Callable[..., Path], tmp_path: Path) -> None:
    first, second = recipes("first"), recipes("second", "first", 2)
    recipe = RunDirectory(second).spec().recipe
    assert recipe is not None
    weights = {name: each.copy() for name, each in open_origin(first).weights.items()}
    weights["model.norm.weight"] = Tensor.of(weights["model.norm.weight"].array() + np.float32(1e-3))
    write_state(tmp_path / "model.safetensors", weights)
    tuned, forged = open_origin(tmp_path), tmp_path / "forged"
    retrain_from(tuned, second, forged)
    result = tallystick.audit(forged, FULL, initial=first)
    assert result.outcome == "rejected"
    assert [each.name for each in result.objections] == ["first weights"]
    assert "weights.model.norm.weight" in result.objections[0].where


def retrain_from(origin: Any, run: Path, out: Path) -> None:
    """Train by the recipe of a run from other weights than it states, and record that under its spec."""
    from tallystick.recording.training import TrainingRun

    shutil.copytree(run / "data", out / "data")
    TrainingRun(RunDirectory(out), RunDirectory(run).spec(), origin=origin).record()


def test_the_seed_still_gives_everything_else(recipes: Callable[..., Path]) -> None:
    first, second = recipes("first"), recipes("second", "first", 2)
    checks = tallystick.audit(second, FULL, initial=first).findings
    assert {"first weights", "initial state"} <= {each.name for each in checks}


def test_a_recipe_of_another_model_is_refused(recipes: Callable[..., Path], checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match=r"the recipe's model has no 0\.bias"):
        recipes("other", str(checkpoint))
    first = recipes("first")
    recipe = read_config(first.with_suffix(".toml")).recipe
    with pytest.raises(UsageError, match="and the recipe begins with its seed"):
        tallystick.train(recipe, tmp_path / "run", source=first.parent / "text.txt", initial=first)


@pytest.mark.filterwarnings("default")  # peft asks a deprecated name of transformers
def test_a_lora_run_begins_with_its_base_model(tmp_path: Path) -> None:
    transformers, peft = pytest.importorskip("transformers"), pytest.importorskip("peft")
    torch.manual_seed(0)
    sizes = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    base = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, num_attention_heads=2))
    base.to(torch.bfloat16).save_pretrained(tmp_path / "base")
    loaded = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "base", dtype=torch.float32)
    model = peft.get_peft_model(loaded, peft.LoraConfig(r=2, target_modules=["q_proj"]))
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=1e-2)
    rows = torch.randint(32, (2, 2, 8), generator=torch.Generator().manual_seed(5))
    with tallystick.record_training(tmp_path / "run", model, optimizer, initial=tmp_path / "base") as recorder:
        for row in rows:
            loss = model(input_ids=row, labels=row).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            recorder.step(loss, batch=row)
    result = tallystick.audit(tmp_path / "run", FULL, initial=tmp_path / "base")
    assert result.accepted
    assert result.verdict.shown
    line, buffers = sorted(each for each in result.verdict.not_checked if "first values" in each)[::-1]
    assert "2 tensors (buffers." in buffers
    assert "1 tensor (weights.base_model.model.model.layers.0.self_attn.q_proj.lora_A.default.weight)" in line
