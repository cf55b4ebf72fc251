"""Imports the timeline of PyTorch's or JAX's profiler as a trace, and says what it is about."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tallystick.core.digests import Digest
from tallystick.core.errors import MalformedError, UnavailableError, UsageError
from tallystick.core.files import read_document
from tallystick.formats.cluster import NAME, Cluster
from tallystick.formats.records import StepRecord, read_record
from tallystick.formats.store.folders import RUN, require_folder
from tallystick.formats.store.log import open_line
from tallystick.formats.store.run import RunDirectory
from tallystick.formats.store.traces import (
    EMPTY,
    TRACE_NAME,
    EventKind,
    TraceEvent,
    TraceStatement,
    read_event,
    write_trace,
)
from tallystick.programs.encoding import graph_root
from tallystick.programs.files import load_graph
from tallystick.programs.graph import Graph
from tallystick.recording.timelines.chrome_entries import ChromeFile, Row, SortedRows, chrome_file, made_event
from tallystick.recording.timelines.graph_names import CompiledNames, GraphNames, Matching, Nodes
from tallystick.recording.timelines.torch_calls import (
    DEVICE,
    LAUNCH,
    MEMORY,
    NODE_MARK,
    OPERATOR,
    SPAN,
    TIME_MAX,
    DevicePlaces,
    ProfiledCall,
    ProfiledCalls,
    nanoseconds,
    torch_row,
)

# A trace of torch.profiler as events: on a GPU its kernels, on a processor the operators themselves.

LAUNCHES_MAX: Final = 1 << 20
"""The launches whose kernel has not been seen yet that are remembered."""
CUDA: Final = 1
EVENT_MARK: Final = re.compile(
    r"tally:(challenge|checkpoint|response|sample|sync)(?: (sha256:[0-9a-f]{64}))?(?: (.+))?", re.DOTALL
)
"""What happened beside the work of devices, the digest that it is about, and a name for people."""
WAITING: Final = re.compile(r"cu\w*Synchronize")
"""The calls of CUDA that wait for a device, a stream or an event."""
BYTES: Final = {
    **dict.fromkeys(("Bool", "Byte", "Char", "Float8_e4m3fn", "Float8_e5m2"), 1),
    **dict.fromkeys(("BFloat16", "Half", "Short"), 2),
    **dict.fromkeys(("Float", "Int"), 4),
    **dict.fromkeys(("Double", "Long", "ComplexFloat"), 8),
}
KINDS: Final[dict[str, EventKind]] = {"kernel": "kernel", "gpu_memcpy": "memcpy", "gpu_memset": "kernel"}


@dataclass
class _TorchVocabulary:
    """Turns the calls of all files into events. The graph's nodes are found in two passes: count, then number.

    `known` are the names of the devices of the cluster, `ranks` those of the files. `began` is the first time of all;
    times count from 1970 (UTC) if `has_epoch`. Rows are `[start, -duration, number, file, kind, thread, name, detail]`.
    """

    placement: DevicePlaces
    names: GraphNames
    first_step: int | None
    known: frozenset[str]
    launches: OrderedDict[tuple[int, Any], tuple[Nodes, int | None]] = field(default_factory=OrderedDict)
    memory: dict[str, int] = field(default_factory=dict)
    streams: dict[tuple[int, str], int] = field(default_factory=dict)
    ranks: list[int | None] = field(default_factory=list)
    began: int = TIME_MAX
    has_devices: bool = False
    has_epoch: bool = True

    source = "torch.profiler"
    empty = "holds no event of torch.profiler"
    is_ordered = False

    @classmethod
    def of(cls, subject: TraceSubject) -> _TorchVocabulary:
        """The words for a graph and a cluster."""
        names = GraphNames({}, ()) if subject.graph is None else GraphNames.of(subject.graph)
        return cls(subject.placement, names, subject.step, frozenset(subject.cluster.by_name))

    def read(self, file: ChromeFile, rows: SortedRows) -> None:
        """Gather the calls; raises `MalformedError` naming the file that is no such trace."""
        base = file.header.get("baseTimeNanoseconds", 0)
        if type(base) is not int or not 0 <= base < TIME_MAX:
            raise MalformedError(f"{file.name}: baseTimeNanoseconds is no natural number")
        self.has_epoch &= base > 0
        group = file.header.get("distributedInfo")
        rank = group.get("rank") if isinstance(group, dict) else None
        number = len(self.ranks)
        self.ranks.append(rank if type(rank) is int else None)
        for entry in file.entries():
            if (row := torch_row(entry, base, number, file.name)) is not None:
                start, minus, *rest = row
                self.began = min(self.began, start)
                self.has_devices |= row[3] == DEVICE
                rows.add([start, minus, rows.count, *rest])

    @property
    def microseconds(self) -> int | None:
        """The microseconds from 1970 (UTC) to the zero of the events' clock."""
        return self.began // 1000 if self.has_epoch else None

    def events(self, rows: SortedRows) -> Iterator[TraceEvent]:
        """The events, by no order of time; those of a processor only where the files hold no work of GPUs."""
        self.began -= self.began % 1000
        matching = Matching(self.names)
        counted = ProfiledCalls(matching, self.first_step)
        for row in rows:
            for _ in counted.end_before(row[0]):
                pass
            if row[4] in (SPAN, OPERATOR):
                counted.begin(row)
        for _ in counted.end_before(1 << 63):
            pass
        matching.finish_counting()
        calls = ProfiledCalls(matching, self.first_step)
        for row in rows:
            for call in calls.end_before(row[0]):
                yield from self._of_processor(call)
            yield from self._event(row, calls)
        for call in calls.end_before(1 << 63):
            yield from self._of_processor(call)

    def _event(self, row: Row, calls: ProfiledCalls) -> Iterator[TraceEvent]:
        _, _, _, file, kind, thread, name, detail = row
        if kind in (SPAN, OPERATOR):
            calls.begin(row)
        if kind == SPAN and (mark := EVENT_MARK.fullmatch(name)):
            yield from self._beside_work(row, calls, kind=mark[1], subject=mark[2], name=mark[3] or mark[1])
        elif kind == LAUNCH and WAITING.fullmatch(name):
            yield from self._beside_work(row, calls, kind="sync", name=name)
        elif kind == LAUNCH and detail is not None:
            self.launches[file, detail] = (calls.nodes_at(file, thread, row[0]), calls.step_at(row[0]))
            if len(self.launches) > LAUNCHES_MAX:
                self.launches.popitem(last=False)
        elif kind == MEMORY:
            place, number, total = detail
            if type(total) is int and total >= 0 and type(number) is int:
                rank = self.ranks[file]
                device = self.placement.gpu(number, rank) if place == CUDA else self.placement.cpu(rank)
                self.memory[device] = total
        elif kind == DEVICE:
            yield self._of_device(row, calls)

    def _beside_work(self, row: Row, calls: ProfiledCalls, **fields: Any) -> Iterator[TraceEvent]:
        """An event of a processor that computes no operator; none where the cluster names no such processor."""
        start, minus, _, file, _, thread, _, _ = row
        device = self.placement.cpu(self.ranks[file])
        if device in self.known:
            fields |= {"device": device, "stream": self.streams.setdefault((file, thread), len(self.streams))}
            yield self._made(fields, start - self.began, -minus, (), calls.step_at(start))

    def _of_processor(self, call: ProfiledCall) -> Iterator[TraceEvent]:
        start, _, _, file, kind, thread, name, _ = call.row
        if self.has_devices or (kind == SPAN and not call.nodes):
            return
        device = self.placement.cpu(self.ranks[file])
        stream = self.streams.setdefault((file, thread), len(self.streams))
        mark = NODE_MARK.fullmatch(name)
        name = (mark and mark[2]) or name
        for part, (begun, end) in enumerate([*call.times()] or [(start, call.end)]):
            fields = {"kind": "kernel", "name": name, "device": device, "stream": stream}
            nodes = call.nodes[:1] if part else call.nodes
            yield self._made(fields, begun - self.began, end - begun, nodes, call.step)

    def _of_device(self, row: Row, calls: ProfiledCalls) -> TraceEvent:
        start, minus, _, file, _, _, name, detail = row
        category, device, stream, correlation, moved, collective, ranks, count, dtype = detail
        if type(device) is not int or type(stream) is not int or device < 0 or stream < 0:
            raise MalformedError(f"kernel {name[:80]!a} names no device and stream")
        launched = (file, correlation if type(correlation) is int else -1)
        nodes, step = self.launches.pop(launched, ((), calls.step_at(start)))
        placed, members = self.placement.gpu(device, self.ranks[file]), self._members(ranks)
        fields: dict[str, Any] = {"kind": KINDS[category], "name": name, "device": placed, "stream": stream}
        if type(moved) is int and moved >= 0:
            fields["moved"] = moved
        if collective is not None and placed in members:
            fields |= {"kind": "collective", "name": str(collective), "members": members}
            if type(count) is int and count >= 0 and str(dtype) in BYTES:
                fields["moved"] = count * BYTES[str(dtype)]
        return self._made(fields, start - self.began, -minus, nodes, step)

    def _members(self, ranks: object) -> tuple[str, ...]:
        """The devices of a group such as `[0, 1]`; none where one of its ranks has no device that was named."""
        numbers = [
            each for each in str(ranks).strip("[]").replace(" ", "").split(",") if each.isdecimal() and len(each) < 10
        ]
        devices = {self.placement.ranks.get(int(each), "") for each in numbers}
        return tuple(sorted(devices)) if "" not in devices else ()

    def _made(self, fields: dict[str, Any], start: int, duration: int, nodes: Nodes, step: int | None) -> TraceEvent:
        memory = self.memory.get(fields["device"])
        fields |= {"start": start, "duration": duration, "step": step, "memory": memory}
        return made_event(**fields, operator=nodes[0] if nodes else None, fused=nodes[1:] or None)


# A trace of JAX's profiler (`perfetto_trace.json.gz`) as events.

ACCELERATOR: Final = re.compile(r"/device:(GPU|TPU):(\d{1,6})")


@dataclass
class _JaxVocabulary:
    """Turns the instructions of one file into events; executions of the named program are steps, in order of time."""

    placement: DevicePlaces
    names: CompiledNames | None
    first_step: int | None
    devices: dict[int, str] = field(default_factory=dict)
    streams: dict[tuple[int, int], int] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)
    runs: dict[str, int] = field(default_factory=dict)

    source = "jax.profiler"
    empty = "holds no instruction that ran on a device"
    is_ordered = True
    microseconds = None

    @classmethod
    def of(cls, subject: TraceSubject) -> _JaxVocabulary:
        """The words for a compiled program."""
        names = None
        if subject.compiled is not None and subject.graph is not None:
            text = read_document(subject.compiled).decode(errors="replace")
            names = CompiledNames.of(text, subject.graph, subject.compiled.name)
        return cls(subject.placement, names, subject.step)

    def events(self, rows: SortedRows) -> Iterator[TraceEvent]:
        """The events, in order of time; what runs inside of another instruction on one thread is part of it."""
        for start, minus, _, process, thread, name, operation, module, run in rows:
            stream = self.streams.setdefault((process, thread), len(self.streams))
            if start < self.ends.get(stream, 0):
                continue
            self.ends[stream] = start - minus
            is_named = self.names is not None and module == self.names.module
            nodes = self.names.nodes.get(operation, ()) if self.names is not None and is_named else ()
            kind: EventKind = "memcpy" if name.lower().startswith("memcpy") else "kernel"
            yield made_event(
                kind=kind,
                name=name,
                device=self.devices.get(process, self.placement.cpu(None)),
                stream=stream,
                start=start,
                duration=-minus,
                operator=nodes[0] if nodes else None,
                fused=nodes[1:] or None,
                step=self._step(run) if is_named else None,
            )

    def _step(self, run: str) -> int | None:
        """The step of an execution: the first one is the step that was named."""
        turn = self.runs.setdefault(run, len(self.runs))
        return None if self.first_step is None else self.first_step + turn

    def read(self, file: ChromeFile, rows: SortedRows) -> None:
        """Gather the instructions that ran; raises `MalformedError` naming the file that is no such trace."""
        for entry in file.entries():
            process, arguments = entry.get("pid"), entry.get("args")
            arguments = arguments if isinstance(arguments, dict) else {}
            if type(process) is not int:
                continue
            if entry.get("name") == "process_name" and (match := ACCELERATOR.match(str(arguments.get("name")))):
                kind, number = match[1].lower(), int(match[2])
                host = self.placement.cpu(None).removesuffix("/cpu")
                self.devices[process] = self.placement.gpu(number, None) if kind == "gpu" else f"{host}/{kind}{number}"
            is_work = "hlo_op" in arguments or process in self.devices
            if entry.get("ph") == "X" and is_work and type(entry.get("tid")) is int:
                start = nanoseconds(entry.get("ts"), file.name)
                duration = nanoseconds(entry.get("dur", 0), file.name)
                texts = [str(arguments.get(key, "")) for key in ("hlo_op", "hlo_module", "run_id")]
                rows.add([start, -duration, rows.count, process, entry["tid"], str(entry.get("name")), *texts])


# Imports the timeline of a profiler as a trace: events sorted by time, and a header that says what they are about.


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


def import_profile(files: Sequence[Path], out: Path, subject: TraceSubject, source: str = "") -> TraceStatement:
    """Write the trace that a profiler reported in `files`, one of each process, into the new folder `out`.

    `source` says what reported it, if not the profiler by itself.

    Raises:
        MalformedError: a file is no trace of torch.profiler or JAX's profiler; nothing is written.
        UnavailableError: a file cannot be read, or `out` is not empty.
    """
    with chrome_file(files[0]) as first:  # torch.profiler states a version of its schema, and JAX's does not
        words = (_TorchVocabulary if "schemaVersion" in first.header else _JaxVocabulary).of(subject)
    with SortedRows() as rows, SortedRows() as sorted_events:
        for path in files:
            with chrome_file(path) as opened:
                words.read(opened, rows)
        if not rows.count:
            raise UnavailableError(f"{files[0].name}: {words.empty}")
        events = words.events(rows)
        if not words.is_ordered:
            for event in events:  # equal times keep their order
                sorted_events.add([event.start, sorted_events.count, event.to_bytes().decode()])
            events = (read_event(line.encode(), "event") for _, _, line in sorted_events)
        header = TraceStatement(
            cluster=subject.cluster.identity,
            graph=None if subject.graph is None else graph_root(subject.graph),
            claim=subject.claim,
            clock=source or words.source,
            began=words.microseconds,
            source=source or words.source,
            events=EMPTY,
        )
        return write_trace(out, header, subject.cluster, events)


# What a timeline is about, out of what a person names: a run, a graph, a cluster, and where it was profiled.


def target_of(run: Path | None, name: str, out: Path | None) -> Path:
    """Where the trace is written; raises `UsageError` unless either a run or a folder is named."""
    if (run is None) == (out is None):
        raise UsageError("--run or --out: name the run that was profiled, or a folder for the trace")
    if re.fullmatch(TRACE_NAME, name) is None:
        raise UsageError(f"--name {name}: letters, digits and . _ -, 64 at most, and the first a letter or a digit")
    return out if run is None else run / "traces" / name  # type: ignore[return-value]


def placement_of(host: str, ranks: Sequence[str]) -> DevicePlaces:
    """The devices of the ranks, each written `RANK=DEVICE`; raises `UsageError` for another form."""
    found: dict[int, str] = {}
    for each in ranks:
        number, _, device = each.partition("=")
        if not (number.isascii() and number.isdigit()) or re.fullmatch(NAME, device) is None:
            raise UsageError(f"--rank {each}: write it as 0=node1/gpu0")
        found[int(number)] = device
    if re.fullmatch(NAME, host) is None:
        raise UsageError(f"--host {host}: no name of a device")
    return DevicePlaces(host, found)


def subject_of(
    run: Path | None,
    graph: Path | None,
    cluster: Path | None,
    placement: DevicePlaces,
    step: int | None,
    compiled: Path | None = None,
) -> TraceSubject:
    """The subject of a trace; raises `UnavailableError` for a missing file, `MalformedError` for one of another."""
    directory = None if run is None else RunDirectory(require_folder(run, RUN))
    path = graph or (None if directory is None else _graph_of(directory, step))
    if cluster is not None:
        devices = Cluster.from_bytes(read_document(cluster), cluster.name)
    else:
        from tallystick.engines.torch.environment import this_machine  # a named cluster needs no PyTorch

        devices = this_machine()
    return TraceSubject(
        devices,
        placement,
        None if path is None else load_graph(path),
        None if directory is None else directory.claim().identity,
        step,
        compiled,
    )


def _graph_of(run: RunDirectory, step: int | None) -> Path | None:
    """The graph that a step ran: the one that its record names, or that of the spec; None where there is none."""
    path = run.graph_path
    if step is not None:
        size = run.claim().transcript.size
        place = run.place_of_step(step, size)
        record = read_record(open_line(run.transcript_path, place, size).line, f"record {place}")
        if isinstance(record, StepRecord):
            path = run.graph_path_of(record)
    return path if path.is_file() else None
