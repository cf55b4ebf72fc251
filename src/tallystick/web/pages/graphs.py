"""Graphs: a list, one graph with its operators, and one operator with what it reads, gives and costs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

from tallystick.api.database import Database
from tallystick.errors import TallyError, UnavailableError
from tallystick.graphs.graph import Graph, Node, refs_of
from tallystick.graphs.inspection import Inspection
from tallystick.graphs.slicing import givers_of, readers_of
from tallystick.store.database.query import Query, starts_with
from tallystick.store.database.rows import OperatorRow
from tallystick.web.pages.asked import PageQuestion, place_text
from tallystick.web.pages.graph_files import StoredGraph, stored_graph

PAGE: Final = 60
USES: Final = 50
FINDINGS: Final = 50
DEPTHS: Final = 12
SCALES: Final = ("fit", "40", "60", "80", "100", "150")


def graphs_view(database: Database, asked: PageQuestion) -> dict[str, Any]:
    """The graphs, newest first, each with the runs that name it."""
    page = database.graphs.newest_first().page(asked.after, PAGE)
    return {
        "total": database.graphs.count(),
        "graphs": [asdict(graph) | {"runs": _runs_of(database, graph.root)} for graph in page.rows],
        "after": place_text(page.after),
    }


def graph_view(database: Database, asked: PageQuestion) -> dict[str, Any]:
    """One graph: who names it, how it is to be drawn, and a page of its operators."""
    row = database.graphs.where(root=asked.text("root")).one()
    operators = _operators(database, row.root, asked)
    page = operators.page(asked.after, PAGE)
    stored, problem = _stored(row.place, row.root)
    depth = asked.optional("depth")
    around = asked.optional("around")
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
        "operator": asked.optional("operator"),
        "in_module": asked.optional("in_module"),
        "found": operators.count(),
        "operators": [asdict(each) for each in page.rows],
        "after": place_text(page.after),
    }


def operator_view(database: Database, asked: PageQuestion) -> dict[str, Any]:
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
            for ref in _given(node)
        ],
        "operations": cost.flops,
        "bytes_moved": cost.bytes_moved,
        "depth": inspection.depths[number],
    }


def findings_at(database: Database, graph: str, number: int) -> list[dict[str, Any]]:
    """What audits of the runs of this graph found at a node: the observed distance, and the bound or limit of it."""
    runs = [use.run for use in database.about("graph_uses").where(graph=graph).first(USES)]
    audits = database.audits.where(run=runs)
    found = audits.about("findings").where(place=starts_with(f"n{number} (")).first(FINDINGS) if runs else ()
    return [asdict(each) for each in found]


def _operators(database: Database, root: str, asked: PageQuestion) -> Query[OperatorRow]:
    found = database.operators.where(graph=root)
    if (operator := asked.optional("operator")) is not None:
        found = found.where(operator=starts_with(operator[:128]))
    if (module := asked.optional("in_module")) is not None:
        found = found.where(module=starts_with(module[:128]))
    return found


def _given(node: Node) -> list[str]:
    return [ref for ref in node.outputs if ref is not None]


def _runs_of(database: Database, root: str) -> list[str]:
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
