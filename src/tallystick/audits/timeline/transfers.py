"""Copies and collectives: all members take part, of one size, at one time, and no faster than the links."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from tallystick.audits.timeline.comparisons import Comparing
from tallystick.audits.timeline.durations import LAUNCH_MAX, Excess
from tallystick.audits.timeline.limits import TraceLimits
from tallystick.traces.cluster import Cluster
from tallystick.traces.event import TraceEvent

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
        told = f"{where}, {event.kind} {event.name} {bytes_moved} in {spent:,} ns"
        too_long = spent - int(self.limits.longer * needed)
        self.excess.add(too_long, too_long, told)

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
