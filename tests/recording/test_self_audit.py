"""Segments are replayed while there is time; when one departs, those that were not replayed are, or are withdrawn."""

from __future__ import annotations

import math
import warnings
from pathlib import Path

import pytest

from tallystick.formats.store.run import RunDirectory
from tests.recording import test_every_loop as loops
from tests.recording.honest import Loop

torch = pytest.importorskip("torch")

ALONE = Loop(scaled=lambda step: 3.0 if step == 4 else 1.0)
"""Departs in step 5."""
AGAIN = Loop(scaled=lambda step: 3.0 if step in {4, 7} else 1.0)
"""Departs in steps 5 and 8."""


@pytest.fixture(autouse=True)
def spent(monkeypatch: pytest.MonkeyPatch, one_thread: None) -> None:
    """There is no time for replays, and besides the first step, step 8 is checked."""
    monkeypatch.setattr("tallystick.recording.loop.self_check.SelfCheck.is_due", lambda _, index: index in {1, 8})
    monkeypatch.setattr("tallystick.recording.loop.self_check.FREE_SECONDS", -1.0)


def recorded(out: Path, loop: Loop) -> list[tuple[int, int]]:
    """Train, and return the steps that were withdrawn."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loop.train(out)
    return [(each.first, each.last) for each in RunDirectory(out).claim().withdrawn or ()]


def with_share(loop: Loop, share: float) -> Loop:
    return Loop(scaled=loop.scaled, settings={"self_audit": share})


def test_a_departure_that_is_seen_sends_the_recorder_back_to_what_it_left(tmp_path: Path) -> None:
    assert recorded(tmp_path / "run", with_share(AGAIN, 0.0)) == [(4, 7)]
    verdict = loops.audited(tmp_path / "run")
    assert (verdict.outcome, verdict.objections) == ("inconclusive", ())


def test_what_cannot_be_replayed_any_more_is_withdrawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tallystick.recording.loop.self_check.UNSEEN_MAX", 1)
    monkeypatch.setattr("tallystick.recording.loop.graph_guard.FINISH_SECONDS", -1.0)
    withdrawn = recorded(tmp_path / "run", with_share(AGAIN, 0.0))
    assert {step for first, last in withdrawn for step in range(first, last + 1)} >= {4, 5, 6, 7}
    verdict = loops.audited(tmp_path / "run")
    assert (verdict.outcome, verdict.objections) == ("inconclusive", ())


def test_with_all_the_time_every_step_is_replayed(tmp_path: Path) -> None:
    assert recorded(tmp_path / "run", with_share(ALONE, math.inf)) == [(5, 6)]
    verdict = loops.audited(tmp_path / "run")
    assert (verdict.outcome, verdict.objections, verdict.coverage.done) == ("inconclusive", (), 7)


@pytest.mark.parametrize("share", [0.0, math.inf])
def test_a_loop_that_never_departs_is_accepted_whatever_was_replayed(tmp_path: Path, share: float) -> None:
    assert recorded(tmp_path / "run", with_share(Loop(), share)) == []
    assert loops.audited(tmp_path / "run").outcome == "accepted"


def test_steps_withdrawn_in_any_order_are_claimed_in_theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tallystick.recording.loop.graph_guard.WITHDRAWN_MAX", 1)
    withdrawn = recorded(tmp_path / "run", with_share(AGAIN, math.inf))
    assert len(withdrawn) == 1
    assert loops.audited(tmp_path / "run").objections == ()
