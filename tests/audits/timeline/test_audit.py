"""Traces that cannot have happened are rejected; each has an honest twin that is accepted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tallystick.audits.timeline.audit import audit_trace, open_trace
from tallystick.audits.timeline.graph_work import TraceLimits
from tallystick.core.errors import ProofError
from tallystick.formats.cluster import Cluster
from tallystick.formats.store.traces import TraceEvent
from tallystick.programs.encoding import graph_root
from tallystick.programs.files import save_program
from tallystick.verdicts.verdict import Verdict
from tests.support.traces import (
    ONE,
    TWO,
    honest_events,
    kernel,
    reduction,
    small_graph,
    trace_at,
    traced,
    two_nodes,
    two_products,
)

Forge = Callable[[list[TraceEvent]], list[TraceEvent]]


def audited(folder: Path, events: list[TraceEvent], cluster: Cluster | None = None) -> Verdict:
    return audit_trace(traced(folder, events, cluster))


def objecting(verdict: Verdict) -> set[str]:
    return {finding.name for finding in verdict.objections}


def changed(place: int, **fields: object) -> Forge:
    """The forgery that changes one event."""
    return lambda events: [*events[:place], events[place].model_copy(update=fields), *events[place + 1 :]]


def without(place: int) -> Forge:
    return lambda events: [*events[:place], *events[place + 1 :]]


def test_an_honest_trace_is_accepted(tmp_path: Path) -> None:
    verdict = audited(tmp_path, honest_events())
    assert (verdict.outcome, verdict.unavailable) == ("accepted", ())
    assert verdict.shown == (
        "2 steps of 4 operators",
        "0.0 % of the device time is explained by no operator",
        "device time: 61.5 % collectives, 38.5 % operators, checkpoint for 0.0 % of the time, "
        "nothing ran for 91.4 % of the time",
    )
    assert any("made up" in line for line in verdict.assumptions)


ATTACKS: dict[str, tuple[Forge, str]] = {
    "an operator left out": (without(1), "every operator"),
    "the order swapped": (lambda e: [changed(0, operator=1)(e)[0], changed(1, operator=0)(e)[1], *e[2:]], "order"),
    "a device invented": (changed(0, device="node3/gpu0"), "device"),
    "two kernels at once": (changed(1, start=1_004_000), "overlap"),
    "faster than the peak": (changed(0, duration=1), "peak"),
    "more memory than there is": (changed(0, memory=1001), "memory"),
    "an operator that the graph does not have": (changed(1, operator=9), "operator"),
    "a collective without one member": (without(4), "collective"),
    "a collective of two sizes": (changed(4, moved=50), "collective"),
    "a collective at two times": (changed(4, start=1_400_000), "collective"),
    "a collective faster than the links": (changed(3, duration=0, moved=10**6), "bandwidth"),
    "a clock that runs backwards": (lambda events: [*events[5:], *events[:5]], "clock"),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_what_cannot_have_happened_is_rejected(tmp_path: Path, name: str) -> None:
    forge, check = ATTACKS[name]
    cluster = slow_cluster() if check == "peak" else None
    verdict = audited(tmp_path, forge(honest_events()), cluster)
    assert verdict.outcome == "rejected"
    assert check in objecting(verdict)
    assert all(finding.where for finding in verdict.objections)


def slow_cluster() -> Cluster:
    """The two nodes, with a peak at which the products of the scene take 8000 ns of their 10000."""
    found = two_nodes()
    slow = [device.model_copy(update={"peak": {"F32": 4_000_000}} if device.peak else {}) for device in found.devices]
    return Cluster.of(slow, [*found.links])


@pytest.mark.parametrize(("begins", "outcome"), [(1_010_000, "accepted"), (1_000_000, "rejected")])
def test_streams_together_are_no_faster_than_their_device(tmp_path: Path, begins: int, outcome: str) -> None:
    events = [kernel(1_000_000, 10_000, operator=0), kernel(begins, 10_000, operator=1, stream=8)]
    verdict = audit_trace(traced(tmp_path, events, slow_cluster(), two_products()))
    assert verdict.outcome == outcome
    assert objecting(verdict) <= {"peak"}


@pytest.mark.parametrize(("begins", "outcome"), [(1_010_000, "accepted"), (1_000_000, "rejected")])
def test_kernels_without_a_stream_are_on_one(tmp_path: Path, begins: int, outcome: str) -> None:
    events = [kernel(1_000_000, 10_000, operator=0, stream=None), kernel(begins, 10_000, operator=1, stream=None)]
    verdict = audit_trace(traced(tmp_path, events, graph=two_products()))
    assert verdict.outcome == outcome
    assert objecting(verdict) <= {"overlap"}


def test_kernels_at_the_peak_are_accepted(tmp_path: Path) -> None:
    assert audited(tmp_path, honest_events(), slow_cluster()).accepted


def test_what_may_be_an_unexplained_kernel_is_not_rejected(tmp_path: Path) -> None:
    verdict = audited(tmp_path, changed(1, operator=None)(honest_events()))
    assert verdict.outcome == "inconclusive"
    assert any("1 operators may be among the kernels that name none" in line for line in verdict.unavailable)


def test_an_unexplained_kernel_at_another_time_is_no_excuse(tmp_path: Path) -> None:
    events = honest_events()
    late = kernel(1_080_000, 10, step=1)
    verdict = audited(tmp_path, [*events[:1], *events[2:3], late, *events[3:]])
    assert objecting(verdict) == {"every operator"}


def test_much_unexplained_time_is_inconclusive_and_names_the_setting(tmp_path: Path) -> None:
    events = [kernel(100, 400_000, name="mystery"), *honest_events()]
    verdict = audited(tmp_path, events)
    assert verdict.outcome == "inconclusive"
    assert any("--unexplained" in line for line in verdict.unavailable)
    assert audit_trace(open_trace_again(tmp_path), TraceLimits(unexplained=1.0)).accepted


def open_trace_again(folder: Path):
    from tallystick.formats.store.traces import TraceFolder

    return open_trace(TraceFolder(folder / "trace"), folder / "graph.json")


def test_a_kernel_that_computes_two_operators_is_accepted(tmp_path: Path) -> None:
    events = honest_events()
    for place in (0, 4):
        events[place] = events[place].model_copy(update={"fused": (1,)})
        del events[place + 1]
    assert audited(tmp_path, events).accepted


def test_replicas_may_run_one_after_the_other(tmp_path: Path) -> None:
    """Each device has an order of its own: a second one may begin when the first is done."""
    late = [kernel(1_200_000 + 20_000 * i, 9000, device=TWO, operator=n, step=1) for i, n in enumerate((0, 1, 3))]
    events = honest_events()
    assert audited(tmp_path, [*events[:5], *late, *events[5:]]).accepted


def test_without_its_graph_a_trace_is_inconclusive(tmp_path: Path) -> None:
    trace = trace_at(tmp_path / "trace", honest_events())
    verdict = audit_trace(open_trace(trace))
    assert verdict.outcome == "inconclusive"
    assert any("names no graph" in line for line in verdict.unavailable)


def test_a_graph_that_is_named_mends_a_trace_without_it(tmp_path: Path) -> None:
    trace = trace_at(tmp_path / "alone", honest_events(), graph=graph_root(small_graph()))
    verdict = audit_trace(open_trace(trace))
    assert any("the graph is not here; name its file with --graph" in line for line in verdict.unavailable)
    file = save_program(tmp_path / "graph", small_graph(), {})
    assert audit_trace(open_trace(trace, file)).accepted


def test_marks_mend_a_trace_whose_events_name_no_operator(tmp_path: Path) -> None:
    unnamed = [each.model_copy(update={"operator": None, "step": None}) for each in honest_events()]
    verdict = audited(tmp_path / "unnamed", unnamed)
    assert any("no event names one; record with marks, as docs/traces.md says" in line for line in verdict.unavailable)
    assert audited(tmp_path / "named", honest_events()).accepted


def test_another_graph_is_refused(tmp_path: Path) -> None:
    traced(tmp_path, honest_events())
    trace = trace_at(tmp_path / "other", honest_events(), graph=f"sha256:{'0' * 64}")
    with pytest.raises(ProofError, match="not the graph"):
        open_trace(trace, tmp_path / "graph.json")


def test_changed_events_are_rejected(tmp_path: Path) -> None:
    trace = traced(tmp_path, honest_events())
    path = trace.folder.events_path
    path.write_bytes(path.read_bytes().replace(b'"duration":10000', b'"duration":10001', 1))
    assert objecting(audit_trace(trace)) == {"trace root"}


def test_peaks_that_nobody_states_are_listed(tmp_path: Path) -> None:
    found = two_nodes()
    bare = [device.model_copy(update={"peak": {}}) for device in found.devices]
    verdict = audited(tmp_path, honest_events(), Cluster.of(bare, [*found.links]))
    assert verdict.accepted
    assert f"operations per second: not stated for {ONE}, {TWO}" in verdict.not_checked


def test_many_objections_stay_few_lines(tmp_path: Path) -> None:
    events = [kernel(1000 * i, 10, device=f"gpu{i}", stream=None) for i in range(500)]
    verdict = audited(tmp_path, events)
    assert len(verdict.objections) == 13
    assert "488 more" in verdict.objections[-1].detail


def test_the_small_graph_has_a_view_that_nobody_runs() -> None:
    from tallystick.audits.timeline.graph_work import graph_work

    work = graph_work(small_graph())
    assert [number for number, each in work.items() if each.must_run] == [0, 1, 3]
    assert work[0].flops >= 2 * 4 * 4 * 3
    assert reduction(ONE, 0, 1).members == (ONE, TWO)
