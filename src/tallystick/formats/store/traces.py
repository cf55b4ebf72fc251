"""Traces: what a device did, when, and for which operator; on disk, and as Chrome trace JSON."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import Field, TypeAdapter, model_validator

from tallystick.core.digests import Frontier, digest_from, leaf_hash
from tallystick.core.documents import Count, DigestText, Document, Label, read_canonical
from tallystick.core.errors import ProofError, UnavailableError
from tallystick.core.files import read_document, write_atomically
from tallystick.formats.claims import Log
from tallystick.formats.cluster import Cluster, DeviceName
from tallystick.formats.store.folders import Part
from tallystick.formats.store.log import appending, read_lines

# One event of a trace: what a device did, when, and for which operator of the graph.

EVENT_BYTES_MAX: Final = 1 << 20
FUSED_MAX: Final = 1 << 16
EventKind = Literal["challenge", "checkpoint", "collective", "kernel", "memcpy", "response", "sample", "sync"]
Members = Annotated[tuple[DeviceName, ...], Field(min_length=1, max_length=4096)]


class TraceEvent(Document):
    """An event: `start` and `duration` in nanoseconds of the clock of the trace.

    `operator` is the number of a node of the graph, and `fused` are further nodes that the same kernel computed.
    `moved` are the bytes of a copy or a collective, `members` the devices of a collective, `memory` the bytes in use
    on the device after the event, `subject` the digest of the anchor, challenge or response that it is about.
    """

    # in ascending order, so that pydantic writes the canonical bytes (RFC 8785) itself: there are no floats
    device: DeviceName
    duration: Count
    fused: Annotated[tuple[Count, ...], Field(min_length=1, max_length=FUSED_MAX)] | None = None
    kind: EventKind
    members: Members | None = None
    memory: Count | None = None
    moved: Count | None = None
    name: Label
    operator: Count | None = None
    start: Count
    step: Count | None = None
    stream: Count | None = None
    subject: DigestText | None = None

    @model_validator(mode="after")
    def _is_of_its_kind(self) -> Self:
        if (self.kind == "collective") != (self.members is not None):
            raise ValueError("a collective has members, and no other event has")
        if self.members is not None and (list(self.members) != sorted(set(self.members))):
            raise ValueError("members stand once each, in ascending order")
        if self.members is not None and self.device not in self.members:
            raise ValueError("the device is one of the members of its collective")
        if self.fused is not None and self.operator is None:
            raise ValueError("further operators stand beside a first one")
        return self

    @property
    def end(self) -> int:
        """When it ended, in nanoseconds."""
        return self.start + self.duration

    @property
    def operators(self) -> tuple[int, ...]:
        """The nodes that it computed, none where it names none."""
        return () if self.operator is None else (self.operator, *(self.fused or ()))

    def to_bytes(self) -> bytes:  # noqa: D102
        return self.__pydantic_serializer__.to_json(self, exclude_none=True)


_READER: Final[TypeAdapter[TraceEvent]] = TypeAdapter(TraceEvent)


def read_event(line: bytes, what: str) -> TraceEvent:
    """Read one canonical event; raises `MalformedError` naming `what` and the field."""
    return read_canonical(_READER.validate_json, line, what, EVENT_BYTES_MAX)


# What a trace is about, and the root of its events: the statement that stands beside them.

TRACE_NAME: Final = r"[A-Za-z0-9][A-Za-z0-9._\-]{0,63}"
"""What the folder of a trace in a run directory may be called, as a regular expression."""


class TraceStatement(Document):
    """The header of a trace and the root of its events.

    `cluster` is the digest of the devices, `graph` the root of the graph whose nodes events name, `claim` the digest of
    the claim of the run. `clock` says which clock the events were timed by, and `began` the microseconds from
    1970-01-01 (UTC) to its zero. `source` says what reported the events.
    """

    digest_noun: ClassVar[str] = "trace"

    trace: Literal["events"] = "events"
    version: Literal[1] = 1
    cluster: DigestText
    graph: DigestText | None = None
    claim: DigestText | None = None
    clock: Label
    began: Count | None = None
    source: Label
    events: Log


# A trace on disk: a folder of its own, or `traces/NAME` in a run directory.
#
# trace.json      the statement: header and root, written last
# cluster.json    the devices that the events name
# events.jsonl    the events, one canonical line each; events.index and tiles/events/ beside it

TRACES: Final = "traces/"
"""The folder of a run directory in which its traces lie."""
BATCH: Final = 64
"""Lines that are hashed into the tree together, which takes a third of the time."""
EMPTY: Final = Log(root=digest_from(Frontier.empty().root()), size=0)


@dataclass(frozen=True)
class TraceFolder:
    """Names and reads the parts of a trace."""

    path: Path

    statement_path = Part("trace.json")  # the header and the root
    events_path = Part("events.jsonl")
    cluster_path = Part("cluster.json")

    def statement(self) -> TraceStatement:
        """The statement; raises `UnavailableError` where there is none, `MalformedError` where it is no statement."""
        if self.events_path.is_file() and not self.statement_path.exists():
            raise UnavailableError(f"trace.json: not there; {self.path} is unfinished, import the trace anew")
        return TraceStatement.from_bytes(read_document(self.statement_path), "trace.json")

    def cluster(self) -> Cluster:
        """The devices that the statement names; raises `ProofError` where other devices stand there."""
        cluster = Cluster.from_bytes(read_document(self.cluster_path), "cluster.json")
        if cluster.identity != self.statement().cluster:
            raise ProofError("cluster.json does not hold the cluster that trace.json names")
        return cluster

    def events(self) -> Iterator[TraceEvent]:
        """The events, one at a time.

        Raises `MalformedError` at a line that is no event, and behind the last one `ProofError` unless they are those
        under the root of the statement.
        """
        log = self.statement().events
        lines, frontier = read_lines(self.events_path, EVENT_BYTES_MAX), Frontier.empty()
        while batch := list(islice(lines, BATCH)):
            yield from (read_event(line, f"event {number}") for number, line in enumerate(batch, frontier.size))
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
        trace = TraceFolder(draft)
        with appending(trace.events_path) as log:
            for event in events:
                log.append(event.to_bytes())
            log.sync()
            statement = header.model_copy(update={"events": log.close()})
        write_atomically(trace.cluster_path, cluster.to_bytes())
        write_atomically(trace.statement_path, statement.to_bytes())
        if folder.exists():
            folder.rmdir()
        draft.replace(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return statement


def traces_of(run: Path) -> list[TraceFolder]:
    """The traces in a run directory, by name."""
    return [TraceFolder(path.parent) for path in sorted((run / TRACES).glob("*/trace.json"))]


# A trace as Chrome trace JSON, which Perfetto opens: one process a device, one thread a stream.

SHOWN: Final = ("operator", "fused", "step", "moved", "members", "memory", "subject")
Entry = dict[str, Any]


def chrome_json(statement: TraceStatement, cluster: Cluster, events: Iterable[TraceEvent]) -> Iterator[str]:
    """The text of the file in pieces; events are read one at a time, and times become microseconds."""
    header = {"graph": statement.graph, "claim": statement.claim, "clock": statement.clock, "source": statement.source}
    yield f'{{"displayTimeUnit":"ns","otherData":{_text({k: v for k, v in header.items() if v is not None})},'
    yield '"traceEvents":['
    for number, entry in enumerate(_entries(cluster, events)):
        yield ("\n" if number == 0 else ",\n") + _text(entry)
    yield "\n]}\n"


def _entries(cluster: Cluster, events: Iterable[TraceEvent]) -> Iterator[Entry]:
    """All entries of the file in the order of the events; devices and streams are named when they are first met."""
    processes = {name: number for number, name in enumerate(cluster.by_name, 1)}
    devices, tracks = set[str](), set[tuple[str, int]]()
    calls, joined = Counter[tuple[Any, ...]](), Counter[tuple[Any, ...]]()
    for event in events:
        process = processes.setdefault(event.device, len(processes) + 1)
        track = 0 if event.stream is None else event.stream + 1
        place, start = {"pid": process, "tid": track}, {"ts": _microseconds(event.start)}
        if event.device not in devices:
            yield {"ph": "M", "name": "process_name", **place, "args": {"name": event.device}}
            devices.add(event.device)
        if (event.device, track) not in tracks:
            name = "no stream" if event.stream is None else f"stream {event.stream}"
            yield {"ph": "M", "name": "thread_name", **place, "args": {"name": name}}
            tracks.add((event.device, track))
        times = {**start, "dur": _microseconds(event.duration)}
        shown = {name: value for name in SHOWN if (value := getattr(event, name)) is not None}
        yield {"ph": "X", "name": event.name, "cat": event.kind, **place, **times, "args": shown}
        if event.memory is not None:
            now, used = _microseconds(event.end), {"bytes": event.memory}
            yield {"ph": "C", "name": "memory", "pid": process, "ts": now, "args": used}
        if event.members is not None:
            # one end of the arrows between the members of the n-th collective of this name
            number = calls[event.name, event.device, event.members]
            before = joined[event.name, event.members, number]
            calls[event.name, event.device, event.members] += 1
            joined[event.name, event.members, number] += 1
            phase = "s" if before == 0 else "f" if before == len(event.members) - 1 else "t"
            arrow = {"bp": "e", "id": f"{event.name} {','.join(event.members)} {number}"}
            yield {"ph": phase, **arrow, "name": event.name, "cat": "members", **place, **start}


def _microseconds(nanoseconds: int) -> float | int:
    return nanoseconds // 1000 if nanoseconds % 1000 == 0 else nanoseconds / 1000


def _text(value: Entry) -> str:
    return json.dumps(value, separators=(",", ":"))
