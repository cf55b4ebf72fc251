"""What takes far longer than its work needs is named, and the rest of its time is unexplained."""

from __future__ import annotations

from pathlib import Path

import pytest

from tallystick.audits.timeline.audit import audit_trace
from tallystick.audits.timeline.graph_work import TraceLimits
from tallystick.formats.store.traces import TraceEvent
from tallystick.verdicts.verdict import Verdict
from tests.support.traces import ONE, TWO, honest_events, kernel, reduction, traced

MILLISECOND = 1_000_000


def audited(folder: Path, events: list[TraceEvent]) -> Verdict:
    return audit_trace(traced(folder, sorted(events, key=lambda event: event.start)))


def with_relu_of(duration: int, pieces: int = 1) -> list[TraceEvent]:
    """The honest steps, of which the second takes so long for its ReLU, in so many kernels."""
    first, last = honest_events()[:5], honest_events()[5:-1]
    each = duration // pieces
    relu = [last[1].model_copy(update={"start": last[1].start + each * i, "duration": each}) for i in range(pieces)]
    late = [event.model_copy(update={"start": event.start + duration}) for event in last[2:]]
    return [*first, last[0], *relu, *late]


def named(verdict: Verdict) -> list[str]:
    return [line for line in verdict.shown if "beyond 100 times" in line]


@pytest.mark.parametrize("pieces", [1, 400])
def test_an_operator_that_took_far_too_long_is_named_and_unexplained(tmp_path: Path, pieces: int) -> None:
    verdict = audited(tmp_path, with_relu_of(400 * MILLISECOND, pieces))
    assert verdict.outcome == "inconclusive"
    (line,) = named(verdict)
    assert "step 2, node 1 aten.relu.default took 400,000,000 ns, and its work needs about" in line
    assert any("in operators that took too long" in line for line in verdict.unavailable)


@pytest.mark.parametrize(("duration", "is_named"), [(0, False), (MILLISECOND // 2, False), (25 * MILLISECOND, True)])
def test_a_busy_machine_may_stop_a_process(tmp_path: Path, duration: int, is_named: bool) -> None:
    verdict = audited(tmp_path, with_relu_of(duration))
    assert verdict.accepted
    assert bool(named(verdict)) == is_named


def test_slow_operators_are_compared_with_each_other(tmp_path: Path) -> None:
    """A slow machine is no forger: all operators take fifty times as long."""
    slow = [event.model_copy(update={"duration": 50 * event.duration}) for event in honest_events()[:3]]
    events = [event.model_copy(update={"start": 100 * MILLISECOND * place}) for place, event in enumerate(slow)]
    verdict = audited(tmp_path, events)
    assert verdict.accepted
    assert not named(verdict)


@pytest.mark.parametrize(
    ("moved", "outcome"), [(None, "inconclusive"), (1000, "inconclusive"), (3 * 10**9, "accepted")]
)
def test_a_copy_takes_the_time_of_its_bytes(tmp_path: Path, moved: int | None, outcome: str) -> None:
    copy = kernel(5 * MILLISECOND, 400 * MILLISECOND, kind="memcpy", name="Memcpy HtoD", moved=moved, stream=9)
    verdict = audited(tmp_path, [*honest_events(), copy])
    assert verdict.outcome == outcome
    assert any("Memcpy HtoD" in line for line in named(verdict)) == (outcome == "inconclusive")


def test_a_member_of_a_collective_may_wait_for_the_others(tmp_path: Path) -> None:
    late = [reduction(ONE, 10 * MILLISECOND, 500 * MILLISECOND), reduction(TWO, 509 * MILLISECOND, MILLISECOND)]
    assert audited(tmp_path / "waiting", [*honest_events(), *late]).accepted
    long = [reduction(device, 10 * MILLISECOND, 500 * MILLISECOND) for device in (ONE, TWO)]
    verdict = audited(tmp_path / "working", [*honest_events(), *long])
    assert verdict.outcome == "inconclusive"
    assert any("all_reduce moved 100 bytes in 500,000,000 ns" in line for line in named(verdict))


@pytest.fixture(autouse=True)
def folders(tmp_path: Path) -> None:
    for name in ("waiting", "working"):
        (tmp_path / name).mkdir()


def test_a_verifier_may_allow_more(tmp_path: Path) -> None:
    trace = traced(tmp_path, with_relu_of(400 * MILLISECOND))
    assert audit_trace(trace, TraceLimits(longer=1e6)).accepted
