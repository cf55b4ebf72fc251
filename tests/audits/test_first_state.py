"""The first state of a loop beside its weights: moments, averages and counters that a prover could have chosen."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tallystick
from research.attacks.graphs import program_of, remake
from tallystick.core.safetensors import write_state
from tallystick.core.tensors import Tensor
from tallystick.formats.records import anchor_file
from tallystick.formats.store.run import RunDirectory
from tallystick.tally.attacks.forging import read_anchor

torch = pytest.importorskip("torch")
FULL = tallystick.Policy(full=True)


def network() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))


def fit(out: Path, model: Any, optimizer: Any, initial: Path | None, steps: int = 4, **known: Any) -> Path:
    with tallystick.record_training(out, model, optimizer, initial=initial, anchor_stride=2, **known) as recorder:
        for x in torch.randn(steps, 8, 3, generator=torch.Generator().manual_seed(5)):
            loss = model(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            recorder.step(loss, batch=x)
    return out


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint")
    write_state(folder / "model.safetensors", {n: Tensor.of(v.numpy()) for n, v in network().state_dict().items()})
    return folder


@pytest.fixture(scope="module")
def started(checkpoint: Path, one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = network()
    out = tmp_path_factory.mktemp("started") / "run"
    return fit(out, model, torch.optim.AdamW(model.parameters(), lr=1e-2), checkpoint)


def begun_with(run: Path, out: Path, change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> Path:
    """The run made anew from a changed first state, under the same spec: consistent in every record."""
    staged = out.with_name("staged")
    shutil.copytree(run, staged)
    write_state(staged / anchor_file(0), change(dict(read_anchor(RunDirectory(run), 0))))
    program = program_of(run)
    remake(staged, out, program, program, RunDirectory(run).spec())
    return out


def moved(state: dict[str, Tensor], part: str, by: float) -> dict[str, Tensor]:
    return {n: Tensor.of(t.array() + np.asarray(by, t.array().dtype)) if part in n else t for n, t in state.items()}


LIES: dict[str, Callable[[dict[str, Tensor]], dict[str, Tensor]]] = {
    "first moments": lambda state: moved(state, ".exp_avg", 0.1),
    "second moments": lambda state: moved(state, ".exp_avg_sq", 1e-12),
    "counters": lambda state: moved(state, ".weight.step", 1000.0),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_memory_that_was_chosen_leaves_the_origin_open(
    started: Path, checkpoint: Path, tmp_path: Path, lie: str
) -> None:
    forged = begun_with(started, tmp_path / "run", LIES[lie])
    with_origin = tallystick.audit(forged, FULL, initial=checkpoint)
    assert with_origin.outcome != "accepted"
    assert "neither what the optimizer starts with nor what" in with_origin.text()
    alone = tallystick.audit(forged, FULL)
    assert any("where the first values of" in line for line in alone.verdict.not_checked)


def test_an_honest_start_has_nothing_of_the_kind(started: Path, checkpoint: Path) -> None:
    result = tallystick.audit(started, FULL, initial=checkpoint)
    assert result.accepted
    assert not any("first values" in line for line in result.verdict.not_checked)


@pytest.fixture(scope="module")
def continued(started: Path, one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that goes on where `started` ended, with its weights and its moments."""
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    end = read_anchor(RunDirectory(started), 4)
    for name, parameter in model.named_parameters():
        parameter.data = torch.from_numpy(end[f"weights.{name}"].array().copy())
        slots = {slot: end[f"optimizer.{name}.{slot}"] for slot in ("step", "exp_avg", "exp_avg_sq")}
        optimizer.state[parameter] = {slot: torch.from_numpy(t.array().copy()) for slot, t in slots.items()}
    return fit(tmp_path_factory.mktemp("continued") / "run", model, optimizer, started)


def test_a_run_that_goes_on_with_the_memory_of_another_is_accepted(continued: Path, started: Path) -> None:
    assert tallystick.audit(continued, FULL, initial=started).accepted


def test_a_run_that_goes_on_is_not_rejected_without_the_other(continued: Path) -> None:
    result = tallystick.audit(continued, FULL)
    assert result.accepted
    assert any("where the first values of 12 tensors" in line for line in result.verdict.not_checked)


def test_the_memory_of_another_run_turned_round_leaves_it_open(continued: Path, started: Path, tmp_path: Path) -> None:
    def turn(state: dict[str, Tensor]) -> dict[str, Tensor]:
        return {n: Tensor.of(t.array() * np.float32(-3)) if n.endswith(".exp_avg") else t for n, t in state.items()}

    result = tallystick.audit(begun_with(continued, tmp_path / "run", turn), FULL, initial=started)
    assert result.outcome != "accepted"
    assert "first state: 4 tensors" in result.text()


class Copied(torch.nn.Module):  # type: ignore[misc]
    """A network, and beside it an idle copy with the published weights."""

    def __init__(self) -> None:
        super().__init__()
        self.base = network().requires_grad_(False)
        self.trainee = network()

    def forward(self, x: Any) -> Any:
        return self.trainee(x)


def test_a_trained_copy_beside_an_idle_one_leaves_the_origin_open(
    checkpoint: Path, tmp_path: Path, one_thread: None
) -> None:
    model = Copied()
    with torch.no_grad():
        for parameter in model.trainee.parameters():
            parameter += 0.5
    optimizer = torch.optim.AdamW(model.trainee.parameters(), lr=1e-2)
    result = tallystick.audit(fit(tmp_path / "run", model, optimizer, checkpoint), FULL, initial=checkpoint)
    assert result.outcome == "inconclusive"
    assert "no step reads weights.base.0." in result.text(), result.text()


def test_a_frozen_part_that_is_read_and_a_new_head_are_accepted(
    checkpoint: Path, tmp_path: Path, one_thread: None
) -> None:
    base = network().requires_grad_(False)
    model = torch.nn.Sequential(*base, torch.nn.Linear(1, 1))
    optimizer = torch.optim.AdamW(model[3].parameters(), lr=1e-2)
    result = tallystick.audit(fit(tmp_path / "run", model, optimizer, checkpoint), FULL, initial=checkpoint)
    assert result.accepted, result.text()
    assert any("first values of 2 tensors (weights.3.bias" in line for line in result.verdict.not_checked)


def test_a_momentum_planted_for_a_layer_that_trains_later_is_named(
    checkpoint: Path, tmp_path: Path, one_thread: None
) -> None:
    model = network()
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    optimizer.state[model[0].weight]["momentum_buffer"] = torch.full((8, 3), 7.0)
    out = tmp_path / "run"
    with tallystick.record_training(out, model, optimizer, initial=checkpoint, anchor_stride=2) as recorder:
        for index, x in enumerate(torch.randn(6, 8, 3)):
            if index == 3:
                model[0].requires_grad_(True)
            loss = model(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            recorder.step(loss, batch=x)
    result = tallystick.audit(out, FULL, initial=checkpoint)
    assert result.outcome == "inconclusive"
    assert "optimizer.0.weight.momentum_buffer" in result.text()
