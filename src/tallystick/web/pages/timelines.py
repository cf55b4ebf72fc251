"""Timelines: a list of traces, and one trace by device, as events or, where they are many, as shares of busy time."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, Final

from tallystick.api.database import Database
from tallystick.errors import UsageError
from tallystick.store.database.query import Query, below, between
from tallystick.store.database.rows import EventRow, TraceRow
from tallystick.web.pages.asked import PageQuestion, place_text

PAGE: Final = 60
LANES: Final = 12
"""Devices on one page."""
DRAWN: Final = 2_000
"""More events than these are drawn as shares of busy time."""
SLICES: Final = 80
DEVICES: Final = 4_096


def timelines_view(database: Database, asked: PageQuestion) -> dict[str, Any]:
    """The traces, newest first."""
    page = database.traces.newest_first().page(asked.after, PAGE)
    return {
        "total": database.traces.count(),
        "traces": [asdict(trace) for trace in page.rows],
        "after": place_text(page.after),
    }


def timeline_view(database: Database, asked: PageQuestion) -> dict[str, Any]:
    """One trace between two times, some devices of it, and a page of its events there."""
    trace = database.traces.where(name=asked.text("name")).one()
    whole = (trace.start_ns or 0, max(trace.end_ns or 0, (trace.start_ns or 0) + 1))
    start, end = asked.number("start", whole[0]), asked.number("end", whole[1])
    if start >= end:
        raise UsageError("start, end: the start comes before the end")
    events = database.events.where(trace=trace.name)
    devices = list(_devices(database, trace, events))
    first = min(asked.number("lane", 0), max(0, len(devices) - 1)) // LANES * LANES
    inside = events.between(start, end)
    found = inside.count()
    page = inside.by("start_ns").page(asked.after, PAGE)
    return {
        "trace": asdict(trace),
        "whole": whole,
        "start": start,
        "end": end,
        "devices": len(devices),
        "lane": first,
        "lanes_at_once": LANES,
        "found": found,
        "is_thinned": found > DRAWN,
        "lanes": [_lane(events, device, start, end, found) for device in devices[first : first + LANES]],
        "events": [asdict(event) for event in page.rows],
        "after": place_text(page.after),
    }


def _lane(events: Query[EventRow], device: str, start: int, end: int, found: int) -> dict[str, Any]:
    """What one device did: its events, or how busy it was in each of some slices of the time."""
    own = events.where(device=device)
    if found > DRAWN:
        return {"device": device, "events": [], "busy": list(_busy(own, start, end))}
    before = own.where(start_ns=below(start)).by("start_ns", descending=True).first(1)
    reaching = [each for each in before if each.start_ns + each.duration_ns > start]
    rows = [*reaching, *own.between(start, end).by("start_ns").first(DRAWN)]
    return {"device": device, "events": [_drawn(each) for each in rows], "busy": []}


def _busy(own: Query[EventRow], start: int, end: int) -> Iterator[float]:
    """The share of each slice that events take which start in it; streams at once may take more than all of it."""
    edges = [start + (end - start) * index // SLICES for index in range(SLICES + 1)]
    for a, b in itertools.pairwise(edges):
        yield own.where(start_ns=between(a, b)).total("duration_ns") / max(1, b - a) if b > a else 0.0


def _drawn(event: EventRow) -> dict[str, Any]:
    names = ("number", "kind", "name", "stream", "operator", "step", "start_ns", "duration_ns")
    return {name: getattr(event, name) for name in names}


def _devices(database: Database, trace: TraceRow, events: Query[EventRow]) -> Iterator[str]:
    """The devices of the cluster that have events in the trace."""
    stated = database.devices.where(cluster=trace.cluster).first(DEVICES)
    for device in sorted({each.name for each in stated}):
        if list(events.where(device=device).first(1)):
            yield device
