"""Imports the timeline of a profiler as a trace: events sorted by time, and a header that says what they are about."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tallystick.commitments.digests import Digest
from tallystick.documents.files import read_document
from tallystick.errors import UnavailableError
from tallystick.graphs.graph import Graph
from tallystick.graphs.root import graph_root
from tallystick.recorders.timelines.chrome_entries import chrome_file
from tallystick.recorders.timelines.compiled_names import CompiledNames
from tallystick.recorders.timelines.graph_names import GraphNames
from tallystick.recorders.timelines.jax_import import JaxImport
from tallystick.recorders.timelines.sorted_rows import SortedRows
from tallystick.recorders.timelines.torch_import import TorchImport
from tallystick.recorders.timelines.torch_rows import DevicePlaces, torch_rows
from tallystick.store.traces import EMPTY, write_trace
from tallystick.traces.cluster import Cluster
from tallystick.traces.event import TraceEvent, read_event
from tallystick.traces.statement import TraceStatement


@dataclass(frozen=True)
class TraceSubject:
    """What a trace is about: the devices, and as far as they are known the graph, the claim of the run, and a step."""

    cluster: Cluster
    placement: DevicePlaces
    graph: Graph | None = None
    claim: Digest | None = None
    step: int | None = None
    compiled: Path | None = None
    """The text of the compiled program, of a trace of JAX."""

    def header(self, source: str, began: int | None) -> TraceStatement:
        """The header of a trace by `source`, whose clock began so many microseconds after 1970."""
        return TraceStatement(
            cluster=self.cluster.identity,
            graph=None if self.graph is None else graph_root(self.graph),
            claim=self.claim,
            clock=source,
            began=began,
            source=source,
            events=EMPTY,
        )


def import_torch(
    files: Sequence[Path], out: Path, subject: TraceSubject, source: str = "torch.profiler"
) -> TraceStatement:
    """Write the trace that torch.profiler reported in `files`, one of each process, into the new folder `out`.

    Raises:
        MalformedError: a file is no trace of torch.profiler; nothing is written.
        UnavailableError: a file cannot be read, or `out` is not empty.
    """
    names = GraphNames({}, ()) if subject.graph is None else GraphNames.of(subject.graph)
    with torch_rows(files) as rows:
        if not rows.sorted.count:
            raise UnavailableError(f"{files[0].name}: holds no event of torch.profiler")
        rows.began -= rows.began % 1000
        began = rows.began // 1000 if rows.has_epoch else None
        known = frozenset(device.name for device in subject.cluster.devices)
        events = TorchImport(subject.placement, names, subject.step, known).events(rows)
        with in_order_of_time(events) as ordered:
            return write_trace(out, subject.header(source, began), subject.cluster, ordered)


@contextmanager
def in_order_of_time(events: Iterable[TraceEvent]) -> Iterator[Iterator[TraceEvent]]:
    """The events by their start; equal ones keep their order."""
    with SortedRows() as rows:
        for event in events:
            rows.add([event.start, rows.count, event.to_bytes().decode()])
        yield (read_event(line.encode(), "event") for _, _, line in rows)


def import_jax(files: Sequence[Path], out: Path, subject: TraceSubject) -> TraceStatement:
    """Write the trace that JAX's profiler reported in `files`; raises what `import_torch` raises."""
    names = None
    if subject.compiled is not None and subject.graph is not None:
        text = read_document(subject.compiled).decode(errors="replace")
        names = CompiledNames.of(text, subject.graph, subject.compiled.name)
    reading = JaxImport(subject.placement, names, subject.step)
    with SortedRows() as rows:
        reading.read(files, rows)
        if not rows.count:
            raise UnavailableError(f"{files[0].name}: holds no instruction that ran on a device")
        return write_trace(out, subject.header("jax.profiler", None), subject.cluster, reading.events(rows))


def import_profile(files: Sequence[Path], out: Path, subject: TraceSubject) -> TraceStatement:
    """Write what a profiler reported; torch.profiler states a version of its schema, and JAX's does not."""
    with chrome_file(files[0]) as first:
        is_torch = "schemaVersion" in first.header
    return (import_torch if is_torch else import_jax)(files, out, subject)
