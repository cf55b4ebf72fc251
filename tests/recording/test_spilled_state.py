"""The state before a step that is checked: set aside in a file, and found again as it was."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest

from tallystick.core.tensors import Tensor
from tallystick.recording.loop import self_check as module
from tallystick.recording.loop.self_check import SpilledState, spill

torch = pytest.importorskip("torch")

from tests.recording.loops import claim_of, fit  # noqa: E402


def live() -> tuple[np.ndarray, dict[str, Tensor]]:
    array = np.arange(8, dtype=np.float32)
    return array, {"weights.a": Tensor.of(array), "position.step": Tensor.of(np.asarray(3, np.int64))}


@pytest.mark.parametrize("most", [0, 1 << 20])
def test_what_is_written_later_does_not_reach_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(module, "IN_MEMORY_BYTES_MAX", most)
    array, state = live()
    kept = spill(tmp_path, state)
    array[:] = 9
    assert isinstance(kept, SpilledState) == (most == 0)
    assert kept["weights.a"].array().tolist() == list(range(8))
    assert (sorted(kept), len(kept), "weights.b" in kept) == (["position.step", "weights.a"], 2, False)
    assert not any(tmp_path.iterdir())


def test_memory_that_was_given_back_is_read_again(tmp_path: Path) -> None:
    kept = SpilledState(tmp_path, live()[1])
    assert kept.copied("weights.a").tolist() == list(range(8))
    assert kept["weights.a"].array().tolist() == list(range(8))


def test_a_disk_that_refuses_costs_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IN_MEMORY_BYTES_MAX", 0)
    (tmp_path / "file").write_bytes(b"")
    assert spill(tmp_path / "file", live()[1])["weights.a"].array().tolist() == list(range(8))


def test_a_loop_is_checked_with_its_states_set_aside(
    one_thread: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "IN_MEMORY_BYTES_MAX", 0)
    fit(tmp_path / "honest")
    assert claim_of(tmp_path / "honest").no_graph is None
    with warnings.catch_warnings(record=True) as caught:  # later steps are drawn for a check, or not
        warnings.simplefilter("always")
        fit(tmp_path / "doubled", told=lambda step, loss, batch: (loss * (2 if step else 1), batch))
    assert any("step 2: the captured step gives another loss" in str(each.message) for each in caught)
    assert b"another loss" in (tmp_path / "doubled" / "claim.json").read_bytes()
    assert not list(tmp_path.rglob(".spilled*"))
