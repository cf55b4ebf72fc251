"""`tallystick.open_operators` and `tallystick.judge`: the operators of one call, opened and judged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tallystick
from tallystick.core.safetensors import read_state, write_state
from tallystick.core.tensors import Tensor

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def calls(one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("calls") / "run"
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Softmax(-1))
    with torch.no_grad(), tallystick.record_inference(model, out):
        model(torch.ones(1, 3))
    return out


def test_honest_operators_are_accepted(calls: Path, tmp_path: Path) -> None:
    opening = tallystick.open_operators(calls, 1, tmp_path / "opened")
    assert opening.operators.size
    verdict = tallystick.judge(tmp_path / "opened", run=calls, properties=["softmax"])
    assert verdict.outcome == "accepted"
    assert tallystick.judge(tmp_path / "opened", nodes=[0]).not_checked


def test_an_edited_value_is_rejected(calls: Path, tmp_path: Path) -> None:
    tallystick.open_operators(calls, 1, tmp_path / "opened")
    path = next((tmp_path / "opened").rglob("*.safetensors"))
    state = read_state(path)
    name = sorted(state)[-1]
    write_state(path, {**state, name: Tensor.of(state[name].array() + 1)})
    assert tallystick.judge(tmp_path / "opened").outcome == "rejected"


@pytest.mark.parametrize("asked", [{"precision": "guess"}, {"nodes": [99]}, {"properties": ["beauty"]}])
def test_what_does_not_exist_is_a_usage_error(calls: Path, tmp_path: Path, asked: dict[str, Any]) -> None:
    tallystick.open_operators(calls, 1, tmp_path / "opened")
    with pytest.raises(tallystick.UsageError):
        tallystick.judge(tmp_path / "opened", **asked)


def test_what_was_not_recorded_or_opened_is_named(calls: Path, tmp_path: Path) -> None:
    with pytest.raises(tallystick.UsageError, match="calls were recorded"):
        tallystick.open_operators(calls, 2, tmp_path / "opened")
    with pytest.raises(tallystick.UsageError, match="abacus"):
        tallystick.open_operators(calls, 1, tmp_path / "opened", device="abacus")
    with pytest.raises(tallystick.UnavailableError):
        tallystick.judge(tmp_path / "nothing")
    with pytest.raises(tallystick.UnavailableError, match="no such run directory"):
        tallystick.judge(tmp_path / "nothing", run=tmp_path / "none")
