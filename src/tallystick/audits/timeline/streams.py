"""What holds on every stream: events in order of time, one at a time, on devices that exist and hold what is in use."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field

from tallystick.audits.timeline.comparisons import Comparing
from tallystick.audits.timeline.limits import TraceLimits
from tallystick.traces.cluster import Cluster
from tallystick.traces.event import TraceEvent

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
