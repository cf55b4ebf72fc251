"""The folder of a trace: written whole or not at all, and read against its root."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tallystick.core.errors import MalformedError, ProofError, UnavailableError
from tallystick.formats.store.log import open_line
from tallystick.formats.store.traces import TraceEvent, TraceFolder, traces_of
from tests.support.traces import ONE, TWO, kernel, reduction, trace_at

EVENTS = [kernel(0, 10, operator=3, step=1, memory=900), reduction(ONE, 20, 5), reduction(TWO, 20, 5)]


@pytest.fixture
def trace(tmp_path: Path) -> TraceFolder:
    return trace_at(tmp_path / "run" / "traces" / "first", EVENTS)


def test_what_is_written_is_read(trace: TraceFolder) -> None:
    assert list(trace.events()) == EVENTS
    assert trace.statement().events.size == 3
    assert trace.cluster().identity == trace.statement().cluster
    assert [each.path for each in traces_of(trace.path.parents[1])] == [trace.path]


def test_one_event_opens_with_a_proof(trace: TraceFolder) -> None:
    opened = open_line(trace.events_path, 1, 3)
    opened.check(trace.statement().events)
    assert opened.line == EVENTS[1].to_bytes()


def test_changed_events_are_seen(trace: TraceFolder) -> None:
    trace.events_path.write_bytes(trace.events_path.read_bytes().replace(b'"duration":10', b'"duration":11'))
    with pytest.raises(ProofError, match="not those under the root"):
        list(trace.events())


def test_an_event_left_out_is_seen(trace: TraceFolder) -> None:
    trace.events_path.write_bytes(b"".join(trace.events_path.read_bytes().splitlines(keepends=True)[:2]))
    with pytest.raises(ProofError, match="its 2 events"):
        list(trace.events())


def test_a_line_that_is_no_event_is_named(trace: TraceFolder) -> None:
    trace.events_path.write_bytes(EVENTS[0].to_bytes() + b"\n{}\n")
    with pytest.raises(MalformedError, match="event 1: "):
        list(trace.events())


def test_another_cluster_is_seen(trace: TraceFolder) -> None:
    trace.cluster_path.write_bytes(trace.cluster_path.read_bytes().replace(b'"memory":1000', b'"memory":9000'))
    with pytest.raises(ProofError, match="cluster"):
        trace.cluster()


def test_nothing_stays_of_a_trace_whose_events_fail(tmp_path: Path) -> None:
    def failing() -> Iterator[TraceEvent]:
        yield EVENTS[0]
        raise MalformedError("the source ends here")

    with pytest.raises(MalformedError, match="ends here"):
        trace_at(tmp_path / "trace", failing())
    assert list(tmp_path.iterdir()) == []


def test_a_trace_is_never_written_over(trace: TraceFolder) -> None:
    with pytest.raises(UnavailableError, match="already there"):
        trace_at(trace.path, EVENTS)
    assert list(trace.events()) == EVENTS


def test_an_unfinished_trace_says_so(trace: TraceFolder) -> None:
    trace.statement_path.unlink()
    with pytest.raises(UnavailableError, match="unfinished"):
        trace.statement()
