"""Graphs with their operators, and timelines by device with the clusters they ran on."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from tallystick.core.errors import MalformedError, TallyError, UnavailableError, UsageError
from tallystick.database.pages.addresses import PageQuestion, place_text, to
from tallystick.database.query import DatabaseQueries, Query, below, between, starts_with
from tallystick.database.rows import DeviceRow, EventRow, TraceRow
from tallystick.programs.drawing import draw_svg, shortened
from tallystick.programs.encoding import graph_root
from tallystick.programs.files import ModulePaths, load_graph, load_modules
from tallystick.programs.graph import Graph, refs_of
from tallystick.programs.inspection import Inspection
from tallystick.programs.slicing import givers_of, readers_of, subgraph

# The files of graphs: each is read and checked against its root once.


@dataclass(frozen=True)
class StoredGraph:
    """A graph whose root has been checked, and the module paths beside it."""

    graph: Graph
    modules: ModulePaths


@lru_cache(maxsize=4)
def stored_graph(place: str, root: str) -> StoredGraph:
    """The graph at `place`; raises `MalformedError` where it is another than `root` names."""
    path = Path(place)
    graph = load_graph(path)
    if (found := graph_root(graph)) != root:
        raise MalformedError(f"{path.name}: the graph has root {found}, and the database says {root}")
    return StoredGraph(graph, load_modules(path, graph).paths)


@lru_cache(maxsize=16)
def drawing(
    place: str, root: str, depth: int | None = None, module: str | None = None, around: int | None = None
) -> str:
    """A drawing whose boxes lead to operators, and those of modules into the module.

    Args:
        place: the file of the graph.
        root: its root.
        depth: one box for each module by so many parts of its path; 0 draws every node.
        module: draw only the nodes of this module, with the phase of the step before it.
        around: draw only this node, those that it reads, and those that read it.

    Raises `UsageError` where there is nothing to draw, or too much.
    """
    stored = stored_graph(place, root)
    numbers = _wanted(stored, module, around)
    part = stored.graph if numbers is None else subgraph(stored.graph, numbers)
    deeper = (depth or 1) + 1

    def link(name: str) -> str | None:
        if name.startswith("n") and name[1:].isdigit():
            return to("operator", graph=root, number=name[1:])
        return to("graph", root=root, module=name, depth=deeper) if name not in stored.graph.specs() else None

    if around is not None or (numbers is not None and len(numbers) <= 60):
        depth = 0
    return draw_svg(part, modules=stored.modules, depth=depth, link=link)


def _wanted(stored: StoredGraph, module: str | None, around: int | None) -> set[int] | None:
    if around is not None:  # the node, what it reads, and what reads it
        givers = givers_of(stored.graph)
        reads = {node.number: {givers[ref] for ref in node.refs if ref in givers} for node in stored.graph.nodes}
        readers = {number for number, read in reads.items() if around in read}
        return {around, *reads.get(around, ()), *readers}
    if module is None:
        return None
    parts = len(module.rpartition(" of ")[2].split("."))
    numbers = {number for number, path in stored.modules.items() if shortened(path, parts) == module}
    if not numbers:
        raise UsageError(f"module {module}: the graph has none of that name")
    return numbers


# Graphs: a list, one graph with its operators, and one operator with what it reads, gives and costs.

PAGE: Final = 60
USES: Final = 50
FINDINGS: Final = 50
DEPTHS: Final = 12
SCALES: Final = ("fit", "40", "60", "80", "100", "150")


def graphs_view(database: DatabaseQueries, asked: PageQuestion) -> dict[str, Any]:
    """The graphs, newest first, each with the runs that name it."""
    page = database.graphs.newest_first().page(asked.after, PAGE)
    return {
        "total": database.graphs.count(),
        "graphs": [asdict(graph) | {"runs": _runs_of(database, graph.root)} for graph in page.rows],
        "after": place_text(page.after),
    }


def graph_view(database: DatabaseQueries, asked: PageQuestion) -> dict[str, Any]:
    """One graph: who names it, how it is to be drawn, and a page of its operators."""
    row = database.graphs.where(root=asked.text("root")).one()
    operators = database.operators.where(graph=row.root)
    if (operator := asked.optional("operator")) is not None:
        operators = operators.where(operator=starts_with(operator[:128]))
    if (module := asked.optional("in_module")) is not None:
        operators = operators.where(module=starts_with(module[:128]))
    page = operators.page(asked.after, PAGE)
    stored, problem = _stored(row.place, row.root)
    depth, around = asked.optional("depth"), asked.optional("around")
    return {
        "graph": asdict(row),
        "runs": _runs_of(database, row.root),
        "forms": [asdict(link) for link in database.about("graph_links").where(graph=row.root).first(USES)],
        "problem": problem,
        "drawn": {
            "depth": None if depth is None else min(asked.number("depth", 0), DEPTHS),
            "scale": asked.one_of("scale", SCALES),
            "module": asked.optional("module"),
            "around": None if around is None else asked.number("around", 0),
            "has_modules": bool(stored and stored.modules),
        },
        "operator": operator,
        "in_module": module,
        "found": operators.count(),
        "operators": [asdict(each) for each in page.rows],
        "after": place_text(page.after),
    }


def operator_view(database: DatabaseQueries, asked: PageQuestion) -> dict[str, Any]:
    """One operator of a graph: its operands, attributes, results and costs, what audits found."""
    graph = database.graphs.where(root=asked.text("graph")).one()
    row = database.operators.where(graph=graph.root, number=asked.number("number", 0)).one()
    stored, problem = _stored(graph.place, graph.root)
    return {
        "graph": asdict(graph),
        "operator": asdict(row),
        "problem": problem,
        "node": None if stored is None else node_of(stored.graph, row.number),
        "findings": findings_at(database, graph.root, row.number),
    }


def node_of(graph: Graph, number: int) -> dict[str, Any]:
    """What the program itself says about one of its nodes."""
    inspection = Inspection(graph)
    node, givers, readers = inspection.nodes[number], givers_of(graph), readers_of(graph)
    cost = inspection.costs[number]
    named = {output.value: output.name for output in graph.outputs}
    return {
        "operands": [
            {"name": name, "ref": ref, "spec": str(inspection.specs[ref]), "giver": givers.get(ref)}
            for name, operand in node.operands.items()
            for ref in refs_of(operand)
        ],
        "attributes": [{"name": name, "value": str(value)} for name, value in node.attributes.items()],
        "results": [
            {
                "ref": ref,
                "spec": str(inspection.specs[ref]),
                "output": named.get(ref),
                "readers": readers.get(ref, []),
            }
            for ref in node.outputs
            if ref is not None
        ],
        "operations": cost.flops,
        "bytes_moved": cost.bytes_moved,
        "depth": inspection.depths[number],
    }


def findings_at(database: DatabaseQueries, graph: str, number: int) -> list[dict[str, Any]]:
    """What audits of the runs of this graph found at a node: the observed distance, and the bound or limit of it."""
    runs = [use.run for use in database.about("graph_uses").where(graph=graph).first(USES)]
    audits = database.audits.where(run=runs)
    findings = audits.about("findings").where(place=starts_with(f"n{number} (")).first(FINDINGS) if runs else ()
    return [asdict(each) for each in findings]


def _runs_of(database: DatabaseQueries, root: str) -> list[str]:
    uses = database.about("graph_uses").where(graph=root).first(USES)
    return list(dict.fromkeys(use.run for use in uses))


def _stored(place: str | None, root: str) -> tuple[StoredGraph | None, str | None]:
    """The program itself, or why it is not there."""
    try:
        if place is None:
            raise UnavailableError("no file of the graph is known")
        return stored_graph(place, root), None
    except TallyError as error:
        return None, str(error)


# Devices and how they are connected, by the cluster that states them.

DEVICES: Final = 2_000
LINKS: Final = 4_000


def devices_view(database: DatabaseQueries, asked: PageQuestion) -> dict[str, Any]:
    """The devices of every cluster, or of one, with their links and the traces that ran on them."""
    cluster = asked.optional("cluster")
    devices, links = database.devices, database.links
    if cluster is not None:
        devices, links = devices.where(cluster=cluster), links.where(cluster=cluster)
    members_of: dict[str, list[DeviceRow]] = {}
    for device in devices.first(DEVICES):
        members_of.setdefault(device.cluster, []).append(device)
    connections = list(links.first(LINKS))
    return {
        "asked": cluster,
        "clusters": [
            {
                "digest": digest,
                "devices": [asdict(device) for device in members],
                "links": [asdict(link) for link in connections if link.cluster == digest],
                "traces": [trace.name for trace in database.traces.where(cluster=digest).first(LINKS)],
            }
            for digest, members in members_of.items()
        ],
    }


# Timelines: a list of traces, and one trace by device, as events or, where they are many, as shares of busy time.

LANES: Final = 12
"""Devices on one page."""
DRAWN: Final = 2_000
"""More events than these are drawn as shares of busy time."""
SLICES: Final = 80
TIMELINE_DEVICES: Final = 4_096


def timelines_view(database: DatabaseQueries, asked: PageQuestion) -> dict[str, Any]:
    """The traces, newest first."""
    page = database.traces.newest_first().page(asked.after, PAGE)
    return {
        "total": database.traces.count(),
        "traces": [asdict(trace) for trace in page.rows],
        "after": place_text(page.after),
    }


def timeline_view(database: DatabaseQueries, asked: PageQuestion) -> dict[str, Any]:
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
    count = inside.count()
    page = inside.by("start_ns").page(asked.after, PAGE)
    return {
        "trace": asdict(trace),
        "whole": whole,
        "start": start,
        "end": end,
        "devices": len(devices),
        "lane": first,
        "lanes_at_once": LANES,
        "found": count,
        "is_thinned": count > DRAWN,
        "lanes": [_lane(events, device, start, end, count) for device in devices[first : first + LANES]],
        "events": [asdict(event) for event in page.rows],
        "after": place_text(page.after),
    }


def _lane(events: Query[EventRow], device: str, start: int, end: int, count: int) -> dict[str, Any]:
    """What one device did: its events, or how busy it was in each of some slices of the time."""
    own = events.where(device=device)
    if count > DRAWN:
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


def _devices(database: DatabaseQueries, trace: TraceRow, events: Query[EventRow]) -> Iterator[str]:
    """The devices of the cluster that have events in the trace."""
    stated = database.devices.where(cluster=trace.cluster).first(TIMELINE_DEVICES)
    for device in sorted({each.name for each in stated}):
        if list(events.where(device=device).first(1)):
            yield device
