"""What holds on every stream: events in order of time, one at a time, on devices that exist and hold what is in use."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from tallystick.audits.timeline.comparisons import Comparing
from tallystick.audits.timeline.limits import TraceLimits
from tallystick.traces.cluster import Cluster
from tallystick.traces.event import TraceEvent

COMPUTING = frozenset({"collective", "kernel", "memcpy"})
"""The kinds of events during which a device is busy."""


@dataclass
class Streams:
    """Follows every stream through the log; memory grows with the number of streams alone."""

    cluster: Cluster
    limits: TraceLimits
    compared: Comparing
    starts: dict[tuple[str, int | None], int] = field(default_factory=dict)
    ends: dict[tuple[str, int | None], int] = field(default_factory=dict)
    busy: defaultdict[bool, int] = field(default_factory=lambda: defaultdict(int))
    """Nanoseconds of device time: those that an operator accounts for, and those that none does."""

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
            return
        is_explained = event.kind != "kernel" or event.operator is not None
        self.busy[is_explained] += event.duration
        over = self.ends.get(stream, 0) - event.start
        why = f"{event.device} stream {event.stream}: starts {over:,} ns before the one before it has ended"
        self.compared.check("overlap", over <= self.limits.resolution, where, why, over, self.limits.resolution)
        self.ends[stream] = max(self.ends.get(stream, 0), event.end)

    @property
    def unexplained(self) -> float:
        """The share of the device time that no operator accounts for."""
        whole = sum(self.busy.values())
        return self.busy[False] / whole if whole else 0.0
