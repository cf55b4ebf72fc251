"""Audits a reported trace in one pass: its streams, copies and collectives, and steps."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

from tallystick.audits.timeline.graph_work import (
    DEFAULT,
    LAUNCH_MAX,
    Comparing,
    Durations,
    Excess,
    TraceLimits,
    graph_work,
)
from tallystick.audits.timeline.steps import TracedSteps
from tallystick.core.errors import ProofError
from tallystick.core.files import read_document
from tallystick.formats.claims import Claim
from tallystick.formats.cluster import Cluster
from tallystick.formats.store.traces import TraceEvent, TraceFolder, TraceStatement
from tallystick.programs.encoding import document_root, graph_root
from tallystick.programs.files import load_graph
from tallystick.programs.graph import Graph, GraphLimits
from tallystick.verdicts.tolerance import Finding
from tallystick.verdicts.verdict import Verdict, VerdictCoverage

# What holds on every stream: events in order of time, one at a time, on devices that exist and hold what is in use.

UP_TO_GRADIENTS, UPDATE, NOTHING = "up to the gradients", "update", "no operator"
NAMES = {"memcpy": "copies", "collective": "collectives"}
COMPUTING = frozenset({"collective", "kernel", "memcpy"})
"""The kinds of events during which a device is busy."""


@dataclass
class Streams:
    """Follows every stream through the log; memory grows with the number of streams alone."""

    cluster: Cluster
    limits: TraceLimits
    compared: Comparing
    update: Collection[int] = ()
    starts: dict[tuple[str, int | None], int] = field(default_factory=dict)
    ends: dict[tuple[str, int | None], int] = field(default_factory=dict)
    busy: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    """Nanoseconds of device time by what accounts for them."""
    beside: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    """Nanoseconds of what is no work of a device, by its kind."""
    first: int | None = None
    latest: int = 0
    idle: int = 0

    def see(self, place: int, event: TraceEvent) -> None:
        """Check one event against the devices and the event before it on its stream."""
        where, device = f"event {place}", self.cluster.by_name.get(event.device)
        self.compared.check("device", device is not None, where, f"{event.device} is no device of the cluster")
        if device is not None and device.memory is not None and event.memory is not None:
            why = f"{event.memory:,} bytes in use on {event.device}, which has {device.memory:,}"
            self.compared.check("memory", event.memory <= device.memory, where, why, event.memory, device.memory)
        self._follow(where, event)

    def _follow(self, where: str, event: TraceEvent) -> None:
        stream = (event.device, event.stream)
        before = self.starts.get(stream, 0)
        why = f"{event.device} stream {event.stream}: starts {before - event.start:,} ns before the event before it"
        self.compared.check("clock", event.start >= before, where, why)
        self.starts[stream] = max(before, event.start)
        if event.kind not in COMPUTING:
            self.beside[event.kind] += event.duration
            return
        self._note_busy(event)
        over = self.ends.get(stream, 0) - event.start
        why = f"{event.device} stream {event.stream}: starts {over:,} ns before the one before it has ended"
        self.compared.check("overlap", over <= self.limits.resolution, where, why, over, self.limits.resolution)
        self.ends[stream] = max(self.ends.get(stream, 0), event.end)

    def _note_busy(self, event: TraceEvent) -> None:
        kind = NAMES.get(event.kind, NOTHING)
        if event.kind == "kernel" and event.operator is not None:
            kind = UPDATE if event.operator in self.update else UP_TO_GRADIENTS if self.update else "operators"
        self.busy[kind] += event.duration
        self.first = event.start if self.first is None else self.first
        self.idle += max(0, event.start - max(self.latest, self.first))
        self.latest = max(self.latest, event.end)

    @property
    def whole(self) -> int:
        """The device time, in nanoseconds."""
        return sum(self.busy.values())

    @property
    def unexplained(self) -> float:
        """The share of the device time that no operator accounts for."""
        return self.busy[NOTHING] / self.whole if self.whole else 0.0

    def shares(self) -> str:
        """What device time was spent on, and how much of the time between the first and the last event on nothing."""
        spent = sorted(((time, kind) for kind, time in self.busy.items() if time), reverse=True)
        parts = [f"{100 * time / self.whole:.1f} % {kind}" for time, kind in spent]
        lasted = max(1, self.latest - (self.first or 0))
        parts += [f"{kind} for {100 * time / lasted:.1f} % of the time" for kind, time in sorted(self.beside.items())]
        return f"device time: {', '.join([*parts, f'nothing ran for {100 * self.idle / lasted:.1f} % of the time'])}"


# Copies and collectives: all members take part, of one size, at one time, and no faster than the links.

Group: TypeAlias = tuple[str, tuple[str, ...]]
"""The name and the members of a collective."""
SECOND: Final = 10**9
SLOWEST: Final = 10**8
"""Bytes in a second that memory and links move at least, where nothing states it."""


@dataclass
class Transfers:
    """Matches the n-th collective of each name and members on every member; holds those that are not complete yet."""

    cluster: Cluster
    limits: TraceLimits
    compared: Comparing
    turns: Counter[tuple[Group, str]] = field(default_factory=Counter)
    open: dict[tuple[Group, int], dict[str, tuple[int, TraceEvent]]] = field(default_factory=dict)
    rates: dict[str, int | None] = field(default_factory=dict)
    excess: Excess = field(default_factory=Excess)

    def see(self, place: int, event: TraceEvent) -> None:
        """Check one event, and the whole collective where it is the last member's."""
        if event.kind in ("collective", "memcpy") and event.moved is not None:
            self._check_speed(f"event {place}", event, event.moved)
        if event.kind == "memcpy":
            self._note_long(f"event {place}", event, event.duration)
        if event.members is None:
            return
        group = (event.name, event.members)
        turn = (group, self.turns[group, event.device])
        self.turns[group, event.device] += 1
        met = self.open.setdefault(turn, {})
        met[event.device] = (place, event)
        if len(met) == len(event.members):
            self._check_whole(self.open.pop(turn))

    def finish(self) -> None:
        """Every collective that is left lacks a member."""
        for ((name, members), turn), met in self.open.items():
            place, _ = next(iter(met.values()))
            why = f"{name}, number {turn + 1}: {', '.join(sorted({*members} - met.keys())[:4])} took no part"
            self.compared.check("collective", False, f"event {place}", why)

    def _check_whole(self, met: dict[str, tuple[int, TraceEvent]]) -> None:
        place, first = next(iter(met.values()))
        events = [event for _, event in met.values()]
        sizes = {event.moved for event in events}
        gap = max(event.start for event in events) - min(event.end for event in events)
        begun = max(event.start for event in events)
        for where, event in met.values():
            self._note_long(f"event {where}", event, event.end - max(begun, event.start))
        why = f"{first.name}: its members moved {sorted(map(str, sizes))} bytes"
        self.compared.check("collective", len(sizes) == 1, f"event {place}", why)
        why = f"{first.name}: one member had ended {gap:,} ns before another began"
        self.compared.check("collective", gap <= self.limits.skew, f"event {place}", why, gap, self.limits.skew)

    def _check_speed(self, where: str, event: TraceEvent, moved: int) -> None:
        rate = self._rate(event)
        if rate is None:
            return
        least = moved * SECOND // rate - self.limits.resolution
        why = f"{event.name}: {moved:,} bytes in {event.duration:,} ns, and {event.device} moves {rate:,} in a second"
        self.compared.check("bandwidth", event.duration >= least, where, why, least - event.duration, 0.0)

    def _note_long(self, where: str, event: TraceEvent, spent: int) -> None:
        """Note the time beyond what moving its bytes needs, which does not count while a member is waited for."""
        needed = LAUNCH_MAX + (event.moved or 0) * len(event.members or (0,)) * SECOND // (self._rate(event) or SLOWEST)
        bytes_moved = "states no bytes" if event.moved is None else f"moved {event.moved:,} bytes"
        what = f"{where}, {event.kind} {event.name} {bytes_moved} in {spent:,} ns"
        too_long = spent - int(self.limits.longer * needed)
        self.excess.add(too_long, too_long, what)

    def _rate(self, event: TraceEvent) -> int | None:
        """Bytes per second: of the memory for a copy, of all links together for a collective; None if unknown."""
        device = self.cluster.by_name.get(event.device)
        if device is None or event.kind == "memcpy":
            return None if device is None else device.bandwidth
        if device.name not in self.rates:
            own = self.cluster.links_of(device.name) or self.cluster.links_of(device.host or device.name)
            known = [link.bandwidth for link in own if link.bandwidth is not None]
            self.rates[device.name] = sum(known) if own and len(known) == len(own) else None
        return self.rates[device.name]


# Audits a reported trace: one pass over its events, against the devices and the graph that it names.

ASSUMED: Final = (
    "the times are those of the prover's clock: a trace that was made up can agree with itself throughout",
    "the devices are as the prover states them",
    "the values that operators computed are no part of a trace: `tally audit` replays them",
)


@dataclass(frozen=True)
class AuditedTrace:
    """A trace, the graph that it names, and the run it stands in, as far as they are there."""

    folder: TraceFolder
    graph: Graph | None
    missing: str = ""
    run: Path | None = None


def open_trace(folder: TraceFolder, graph: Path | None = None) -> AuditedTrace:
    """The trace with its graph: the file given, or the one in the run directory around it.

    Raises `ProofError` where the file given holds another graph, `MalformedError` where it holds none.
    """
    statement = folder.statement()
    run = folder.path.resolve().parent.parent
    run_of = run if (run / "claim.json").is_file() and folder.path.resolve().parent.name == "traces" else None
    if statement.graph is None:
        return AuditedTrace(folder, None, "operators: trace.json names no graph", run_of)
    path = graph or _find_graph(run_of, statement)
    if path is None:
        return AuditedTrace(folder, None, "operators: the graph is not here; name its file with --graph", run_of)
    loaded = load_graph(path)
    if graph_root(loaded) != statement.graph:
        raise ProofError(f"{path.name} is not the graph that trace.json names")
    return AuditedTrace(folder, loaded, run=run_of)


def _find_graph(run: Path | None, statement: TraceStatement) -> Path | None:
    """The file in a run directory that holds the graph; `graphs/` names graphs by root, but for the first."""
    if run is None or statement.graph is None:
        return None
    named = run / "graphs" / f"{statement.graph.removeprefix('sha256:')}.json"
    first = run / "graphs" / "step.json"
    if named.is_file() or not first.is_file():
        return named if named.is_file() else None
    limits = GraphLimits()
    return first if document_root(read_document(first, limits.document_bytes), limits) == statement.graph else None


def audit_trace(trace: AuditedTrace, limits: TraceLimits = DEFAULT) -> Verdict:
    """Judge a trace. Memory grows with the graph and the steps under way at one time, not with the trace.

    Raises `MalformedError` at a line that is no event, `UnavailableError` where a file is not there.
    """
    try:
        cluster = trace.folder.cluster()
        return _judge(trace, cluster, limits)
    except ProofError as error:
        return Verdict((Finding(1.0, 0.0, "trace root", detail=str(error)),), assumptions=ASSUMED)


def _judge(trace: AuditedTrace, cluster: Cluster, limits: TraceLimits) -> Verdict:
    compared = Comparing()
    work = graph_work(trace.graph) if trace.graph else {}
    streams = Streams(cluster, limits, compared, {number for number, node in work.items() if node.is_update})
    transfers = Transfers(cluster, limits, compared)
    steps = TracedSteps(work, cluster, limits, compared, Durations(limits.longer))
    for place, event in enumerate(trace.folder.events()):
        streams.see(place, event)
        transfers.see(place, event)
        if trace.graph is not None:
            steps.see(place, event)
    transfers.finish()
    steps.finish()
    findings = (Finding(0.0, 0.0, "trace root"), *_claim(trace), *compared.findings())
    excess = steps.durations.excess(work)
    excess.join(transfers.excess)
    size = trace.folder.statement().events.size
    return Verdict(
        findings,
        unavailable=tuple(_undecided(trace, streams, steps, excess, limits)),
        not_checked=tuple(_not_checked(cluster)),
        assumptions=ASSUMED,
        coverage=VerdictCoverage(size, size, "events", "compared"),
        shown=(
            f"{steps.judged:,} steps of {len(steps.work):,} operators",
            f"{100 * streams.unexplained:.1f} % of the device time is explained by no operator",
            streams.shares(),
            *_too_long(excess, streams, limits),
        ),
    )


def _claim(trace: AuditedTrace) -> list[Finding]:
    """Whether the claim that the header names is that of the run around the trace."""
    named = trace.folder.statement().claim
    if named is None or trace.run is None:
        return []
    claim = Claim.from_bytes(read_document(trace.run / "claim.json"), "claim.json")
    is_named = claim.identity == named
    return [Finding(0.0 if is_named else 1.0, 0.0, "claim of the trace", detail="" if is_named else "of another run")]


def _too_long(excess: Excess, streams: Streams, limits: TraceLimits) -> list[str]:
    """The operators that took longer than the limit allows."""
    if not excess.nanoseconds:
        return []
    share = 100 * excess.nanoseconds / streams.whole
    more = f"{share:.1f} % of the device time is beyond {limits.longer:g} times what its operators need"
    return [f"{more}: {'; '.join(what for _, what in excess.longest)}"]


def _undecided(
    trace: AuditedTrace, streams: Streams, steps: TracedSteps, excess: Excess, limits: TraceLimits
) -> list[str]:
    lines = [trace.missing] if trace.missing else []
    if trace.graph is not None and not steps.judged:
        lines.append("operators: no event names one; record with marks, as docs/traces.md says")
    if steps.undecided:
        count, step = sum(steps.undecided.values()), min(steps.undecided)
        lines.append(f"{count:,} operators may be among the kernels that name none (the first in step {step})")
    counted = max(0, excess.nanoseconds - limits.stall * max(1, steps.judged))
    too_long = counted / streams.whole if streams.whole else 0.0
    if streams.unexplained + too_long > limits.unexplained:
        share, allowed = 100 * (streams.unexplained + too_long), 100 * limits.unexplained
        why = f" ({100 * too_long:.1f} % in operators that took too long)" if counted else ""
        lines.append(f"{share:.1f} % of the device time is unexplained{why}, more than {allowed:g} % (--unexplained)")
    return lines


def _not_checked(cluster: Cluster) -> list[str]:
    """What the devices do not state."""
    computing = [device for device in cluster.devices if device.kind in ("cpu", "gpu", "tpu", "other")]
    stated = {
        "operations per second": [device.name for device in computing if not device.peak],
        "bandwidth of the memory": [device.name for device in computing if device.bandwidth is None],
        "memory": [device.name for device in computing if device.memory is None],
    }
    return [f"{what}: not stated for {_listed(names)}" for what, names in stated.items() if names]


def _listed(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
