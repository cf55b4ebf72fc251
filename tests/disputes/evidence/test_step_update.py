"""A wrong learning rate ends with the two rates and the operator that reads one, whatever its prover opens."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from research.attacks.loops import train_loop  # noqa: E402
from tallystick.disputes.evidence.doubting import doubter_for  # noqa: E402
from tallystick.disputes.evidence.judging import DisputeJudge  # noqa: E402
from tallystick.disputes.evidence.statement import statement_at  # noqa: E402
from tallystick.disputes.evidence.traces import trace_of  # noqa: E402
from tallystick.disputes.evidence.training import StepUpdate  # noqa: E402
from tallystick.disputes.game.protocols import Trace  # noqa: E402
from tallystick.tally.attacks.catalogue import find_attack  # noqa: E402
from tallystick.verdicts.verdict import Fault  # noqa: E402
from tests.support.attacks.disputes.openings import stage_honest_instead, stage_other_rate_shown  # noqa: E402
from tests.support.attacks.disputes.scene import STEP, Scene  # noqa: E402
from tests.support.rehearsal import Outcome, Rehearsal  # noqa: E402

FOUND = np.array([3.0, 4.0])
NAMED = re.compile(
    r"it is ([\d.]+) times the replayed one, as learning rate ([\d.e-]+) would give; "
    r"(the recipe gives|the record says) ([\d.e-]+); operator \d+ of \d+, aten\.\S+, reads it$"
)


def disputed(statement: Path, trace: Trace, board: Path) -> tuple[str, Outcome]:
    """What a challenger finds in a run, and how the dispute over it ends."""
    rehearsal, doubter = Rehearsal(statement, board), doubter_for()
    doubt = doubter.doubt(rehearsal.state.claims[0], statement)
    assert doubt is not None
    assert doubt.high - doubt.low == 1
    outcome = rehearsal.play(trace, doubter, DisputeJudge(), doubt)
    assert outcome is not None
    assert outcome.fault is Fault.PROVER
    return doubt.reason, outcome


def test_a_step_at_another_rate_is_named_with_both_rates(scene: Scene, tmp_path: Path, board: Path) -> None:
    staged = stage_honest_instead(scene, tmp_path)
    found, outcome = disputed(staged.statement, staged.trace, board)
    program = scene.evidence.program
    assert program is not None  # trained with one
    (rate,) = program.rates(STEP)
    for reason in (found, outcome.reason):
        named = NAMED.search(reason)
        assert named is not None, reason
        assert (named[1], named[2], named[3]) == ("1.1", f"{1.1 * rate:.4g}", "the recipe gives")
        assert named[4] == f"{rate:.4g}"


def test_a_rate_that_is_opened_and_not_the_recorded_one_is_named(scene: Scene, tmp_path: Path, board: Path) -> None:
    staged = stage_other_rate_shown(scene, tmp_path)
    _, outcome = disputed(staged.statement, staged.trace, board)
    assert re.search(r"schedule\.\S+: \S+ is read; at the recorded learning rate \(\S+\) it is \S+$", outcome.reason)


def test_a_loop_whose_record_misstates_its_rate_is_named(one_thread: None, tmp_path: Path, board: Path) -> None:
    train_loop(tmp_path / "loop")
    find_attack("loop-rate-misstated").forge(tmp_path / "loop", tmp_path / "forged")
    trace = trace_of(statement_at(tmp_path / "forged"), tmp_path / "work")
    found, outcome = disputed(tmp_path / "forged", trace, board)
    for reason in (found, outcome.reason):
        named = NAMED.search(reason)
        assert named is not None, reason
        assert (named[2], named[3], named[4]) == ("0.01", "the record says", "0.0101")


def test_an_honest_run_is_not_doubted(scene: Scene, board: Path) -> None:
    assert doubter_for().doubt(Rehearsal(scene.run, board).state.claims[0], scene.run) is None


@pytest.mark.parametrize(
    ("claimed", "is_scaled"),
    [
        (1.01 * FOUND, True),
        (0.5 * FOUND, True),
        (1.001 * FOUND, False),
        (-1.0 * FOUND, False),
        (FOUND + np.array([0.08, -0.06]), False),
        (0.0 * FOUND, False),
    ],
    ids=["more", "less", "within", "backwards", "across", "none"],
)
def test_only_a_multiple_is_explained_by_a_rate(claimed: np.ndarray, is_scaled: bool) -> None:
    assert StepUpdate(claimed, FOUND, 5.0).is_scaled(allowed=0.004) is is_scaled
