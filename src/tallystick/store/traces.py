"""A trace on disk: a folder of its own, or `traces/NAME` in a run directory.

trace.json      the statement: header and root, written last
cluster.json    the devices that the events name
events.jsonl    the events, one canonical line each; events.index and tiles/events/ beside it
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from tallystick.commitments.digests import digest_from
from tallystick.commitments.tree import Frontier, leaf_hash
from tallystick.documents.files import read_document, write_atomically
from tallystick.errors import ProofError, UnavailableError
from tallystick.store.log import read_lines
from tallystick.store.log_writer import appending
from tallystick.traces.cluster import Cluster
from tallystick.traces.event import EVENT_BYTES_MAX, TraceEvent, read_event
from tallystick.traces.statement import TraceStatement
from tallystick.transcripts.claim import Log

TRACES: Final = "traces/"
"""The folder of a run directory in which its traces lie."""
BATCH: Final = 64
"""Lines that are hashed into the tree together, which takes a third of the time."""
EMPTY: Final = Log(root=digest_from(Frontier.empty().root()), size=0)


class StoredEvent(NamedTuple):
    """An event as a plain row: its place in the log, the byte at which its line starts, and its fields."""

    place: int
    offset: int
    kind: str
    start: int
    duration: int
    device: str
    stream: int | None
    operator: int | None
    fused: tuple[int, ...]
    step: int | None
    name: str
    members: tuple[str, ...]
    memory: int | None
    moved: int | None
    subject: str | None


@dataclass(frozen=True)
class TraceFolder:
    """Names and reads the parts of a trace."""

    path: Path

    @property
    def statement_path(self) -> Path:
        """The header and the root."""
        return self.path / "trace.json"

    @property
    def events_path(self) -> Path:
        """The events, one canonical line each."""
        return self.path / "events.jsonl"

    @property
    def cluster_path(self) -> Path:
        """The devices."""
        return self.path / "cluster.json"

    def statement(self) -> TraceStatement:
        """The statement; raises `UnavailableError` where there is none, `MalformedError` where it is no statement."""
        if self.events_path.is_file() and not self.statement_path.exists():
            raise UnavailableError(f"trace.json: not there; {self.path} is unfinished, import the trace anew")
        return TraceStatement.from_bytes(read_document(self.statement_path), "trace.json")

    def cluster(self) -> Cluster:
        """The devices that the statement names; raises `ProofError` where other devices stand there."""
        found = Cluster.from_bytes(read_document(self.cluster_path), "cluster.json")
        if found.identity != self.statement().cluster:
            raise ProofError("cluster.json does not hold the cluster that trace.json names")
        return found

    def events(self) -> Iterator[TraceEvent]:
        """The events, one at a time.

        Raises `MalformedError` at a line that is no event, and behind the last one `ProofError` unless they are those
        under the root of the statement.
        """
        return (event for _, event in self._placed_events())

    def rows(self) -> Iterator[StoredEvent]:
        """The events as plain rows with their places; raises what `events` raises."""
        for place, (offset, event) in enumerate(self._placed_events()):
            yield StoredEvent(
                place,
                offset,
                event.kind,
                event.start,
                event.duration,
                event.device,
                event.stream,
                event.operator,
                event.fused or (),
                event.step,
                event.name,
                event.members or (),
                event.memory,
                event.moved,
                event.subject,
            )

    def _placed_events(self) -> Iterator[tuple[int, TraceEvent]]:
        """Every event with the byte at which its line starts."""
        log = self.statement().events
        lines, frontier, offset = read_lines(self.events_path, EVENT_BYTES_MAX), Frontier.empty(), 0
        while batch := list(islice(lines, BATCH)):
            for number, line in enumerate(batch, frontier.size):
                yield offset, read_event(line, f"event {number}")
                offset += len(line) + 1
            frontier = frontier.extend([leaf_hash(line) for line in batch])
        if (digest_from(frontier.root()), frontier.size) != (log.root, log.size):
            raise ProofError(f"events.jsonl: its {frontier.size} events are not those under the root in trace.json")


def write_trace(folder: Path, header: TraceStatement, cluster: Cluster, events: Iterable[TraceEvent]) -> TraceStatement:
    """Write a trace of these events into a new folder, one event at a time; returns the statement with their root.

    Raises `UnavailableError` if the folder holds anything already. Where reading the events fails, nothing stays.
    """
    if folder.exists() and any(folder.iterdir()):
        raise UnavailableError(f"{folder}: already there; remove it, or name another folder")
    assert header.cluster == cluster.identity
    draft = folder.with_name(f".{folder.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    try:
        statement = _write(TraceFolder(draft), header, cluster, events)
        if folder.exists():
            folder.rmdir()
        draft.replace(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return statement


def _write(
    folder: TraceFolder, header: TraceStatement, cluster: Cluster, events: Iterable[TraceEvent]
) -> TraceStatement:
    with appending(folder.events_path) as log:
        for event in events:
            log.append(event.to_bytes())
        log.sync()
        statement = header.model_copy(update={"events": log.close()})
    write_atomically(folder.cluster_path, cluster.to_bytes())
    write_atomically(folder.statement_path, statement.to_bytes())
    return statement


def traces_of(run: Path) -> list[TraceFolder]:
    """The traces in a run directory, by name."""
    return [TraceFolder(path.parent) for path in sorted((run / TRACES).glob("*/trace.json"))]
