"""A dispute about the weights that a run begins with: the first anchor is compared with the stated checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from research.attacks.loops import train_loop, tunes, with_start
from tallystick.core.errors import UnavailableError
from tallystick.disputes.evidence.doubting import doubter_for
from tallystick.disputes.evidence.judging import DisputeJudge
from tallystick.disputes.evidence.statement import statement_at
from tallystick.disputes.evidence.traces import torch_engine, trace_of
from tallystick.disputes.game.protocols import Doubt
from tallystick.formats.store.directories import open_origin
from tallystick.verdicts.verdict import Fault
from tests.support.rehearsal import Outcome, Rehearsal

ANCHOR = 1
"""The place of the first anchor in a transcript, behind the header."""


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> Path:
    """`honest` begins with `checkpoint`, which its spec states; `forged` states it too, and begins elsewhere."""
    folder = tmp_path_factory.mktemp("scene")
    train_loop(folder / "honest", initial=folder / "checkpoint")
    with_start(tunes)(folder / "honest", folder / "forged")
    return folder


def contested(scene: Path, run: str, board: Path, judge: DisputeJudge, doubt: Doubt | None = None) -> Outcome | None:
    """A dispute with a challenger who has the checkpoint, up to the ruling of a judge."""
    trace = trace_of(statement_at(scene / run), board / "work")
    doubter = doubter_for(initial=[scene / "checkpoint"])
    return Rehearsal(scene / run, board / "board").play(trace, doubter, judge, doubt)


def having(scene: Path, *, member: bool) -> DisputeJudge:
    return DisputeJudge(torch_engine() if member else None, origins=(open_origin(scene / "checkpoint"),))


@pytest.mark.parametrize("member", [False, True], ids=["referee", "member"])
def test_whoever_has_the_checkpoint_convicts_a_run_that_begins_elsewhere(
    scene: Path, tmp_path: Path, member: bool
) -> None:
    outcome = contested(scene, "forged", tmp_path, having(scene, member=member))
    assert outcome is not None
    assert outcome.dispute.low == ANCHOR
    assert outcome.fault is Fault.PROVER
    assert "anchor 0 holds other numbers than sha256:" in outcome.reason


def test_a_run_that_begins_with_its_checkpoint_is_not_contested(scene: Path, tmp_path: Path) -> None:
    assert contested(scene, "honest", tmp_path, having(scene, member=True)) is None


def test_nobody_without_the_checkpoint_contests_the_start_or_is_sure_of_it(scene: Path, tmp_path: Path) -> None:
    trace = trace_of(statement_at(scene / "forged"), tmp_path / "work")
    rehearsal = Rehearsal(scene / "forged", tmp_path / "board")
    assert rehearsal.play(trace, doubter_for(), DisputeJudge()) is None
    for judge in (DisputeJudge(), DisputeJudge(torch_engine())):
        outcome = contested(scene, "forged", tmp_path / str(judge.is_member), judge)
        assert outcome is not None
        assert outcome.fault is None


@pytest.mark.parametrize("member", [False, True], ids=["referee", "member"])
def test_an_honest_start_that_is_contested_convicts_nobody(scene: Path, tmp_path: Path, member: bool) -> None:
    doubt = Doubt(ANCHOR, ANCHOR + 1, "")
    outcome = contested(scene, "honest", tmp_path, having(scene, member=member), doubt)
    assert outcome is not None
    assert outcome.fault is not Fault.PROVER


def test_other_weights_than_the_stated_ones_say_nothing(scene: Path, tmp_path: Path) -> None:
    import numpy as np

    from tallystick.core.safetensors import read_state, write_state
    from tallystick.core.tensors import Tensor

    weights = read_state(scene / "checkpoint" / "model.safetensors")
    (tmp_path / "tuned").mkdir()
    moved = {name: Tensor.of((each.array() + np.float32(1)).astype(np.float32)) for name, each in weights.items()}
    write_state(tmp_path / "tuned" / "model.safetensors", moved)
    trace = trace_of(statement_at(scene / "honest"), tmp_path / "work")
    doubter = doubter_for(initial=[tmp_path / "tuned"])
    assert Rehearsal(scene / "honest", tmp_path / "board").play(trace, doubter, DisputeJudge()) is None
    with pytest.raises(UnavailableError, match="no"):
        doubter_for(initial=[tmp_path / "nothing"])
