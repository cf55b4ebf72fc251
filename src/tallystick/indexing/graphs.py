"""Reads graphs into the database, each once by its root: its form, its operators, and who names it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa

from tallystick.commitments.digests import PREFIX, Digest
from tallystick.documents.suggestions import refusal
from tallystick.errors import MalformedError, UnavailableError, UsageError
from tallystick.graphs.files import load_graph
from tallystick.graphs.graph import Graph, Node
from tallystick.graphs.inspection import Inspection
from tallystick.graphs.modules import load_modules
from tallystick.graphs.root import graph_root
from tallystick.store.database.bulk import insert_many, insert_new, inserted
from tallystick.store.database.engine import lock
from tallystick.store.database.schema import GRAPH, GRAPH_LINK, GRAPH_USE, OPERATOR, RUN, SOURCE, STEP
from tallystick.store.database.workload_database import WorkloadDatabase
from tallystick.store.run import RunDirectory
from tallystick.tensors.spec import TensorSpec
from tallystick.transcripts.record import graph_file

RELATIONS_OF_FORMS: Final = (
    *("logical form of", "distributed form of", "verification form of", "slice of", "template of"),
    "other shape of",
)
OPERATOR_COLUMNS: Final = ("graph", "number", "operator", "module", "results", "operations")


def add_graph(connection: sa.Connection, path: Path, stated: Digest | None = None) -> int:
    """The number of the graph at `path`, which is read and checked if the database does not have it.

    Raises `MalformedError` where it is no graph, or another one than `stated`.
    """
    known = stated and connection.execute(sa.select(GRAPH.c.id).where(GRAPH.c.root == stated)).scalar()
    if known is not None:
        return int(known)
    graph = load_graph(path)
    root = graph_root(graph)
    if stated is not None and root != stated:
        raise MalformedError(f"{path.name}: the graph has root {root}, and {stated} is stated")
    lock(connection, "graphs")  # whoever has it may be inserting this one
    known = connection.execute(sa.select(GRAPH.c.id).where(GRAPH.c.root == root)).scalar()
    return _insert(connection, path, graph, root) if known is None else int(known)


def add_graph_file(database: WorkloadDatabase, path: Path) -> str:
    """Read a graph that stands in a file by itself; returns its root. Raises what `add_graph` raises."""
    with database.writing("graphs") as connection:
        number = add_graph(connection, path)
        return str(connection.execute(sa.select(GRAPH.c.root).where(GRAPH.c.id == number)).scalar_one())


def link_forms(database: WorkloadDatabase, root: str, relation: str, other: str) -> None:
    """State that the graph `root` is one form of the computation of which `other` is another one.

    Raises:
        UsageError: there is no such relation.
        UnavailableError: one of the two is not in the database, or several begin with the digits given.
    """
    if relation not in RELATIONS_OF_FORMS:
        raise UsageError(f"a graph is {refusal(relation, RELATIONS_OF_FORMS)}")
    with database.writing("graphs") as connection:
        (number, _), (_, whole) = _graph_named(connection, root), _graph_named(connection, other)
        link_graphs(connection, number, relation, whole)


def _graph_named(connection: sa.Connection, root: str) -> tuple[int, Digest]:
    """A graph by its root, or by the first digits of it."""
    asked = root if root.startswith(PREFIX) else f"{PREFIX}{root}"
    begins = GRAPH.c.root.startswith(asked, autoescape=True)
    found = connection.execute(sa.select(GRAPH.c.id, GRAPH.c.root).where(begins).limit(2)).all()
    if len(found) > 1:
        raise UnavailableError(f"{root[:80]}: several graphs in the database begin so")
    if not found:
        raise UnavailableError(
            f"{root[:80]}: no graph in the database begins so; `tally query 'SELECT root FROM graphs'` lists them"
        )
    return int(found[0].id), Digest(found[0].root)


def link_graphs(connection: sa.Connection, graph: int, relation: str, other: Digest) -> None:
    """State that a graph is the `relation` (logical form of, …) the one with root `other`, once."""
    insert_new(connection, GRAPH_LINK, [{"graph": graph, "relation": relation, "other": other}])


def add_graphs_of(database: WorkloadDatabase, run: RunDirectory, name: str) -> None:
    """Read the graphs that a run names and holds, and note which run names which."""
    with database.writing(name) as connection:
        number, spec_graph = connection.execute(
            sa.select(RUN.c.id, RUN.c.graph).join(SOURCE).where(SOURCE.c.kind == "run", SOURCE.c.name == name)
        ).one()
        further = sa.select(STEP.c.graph).where(STEP.c.run == number, STEP.c.graph.is_not(None)).distinct()
        named = [(spec_graph, "step", run.graph_path)] if spec_graph else []
        named += [(root, "further", run.path / graph_file(root)) for root in connection.execute(further).scalars()]
        for root, role, path in named:
            if path.is_file():
                graph = add_graph(connection, path, root)
                use_graph(connection, number, graph, role, str(path.relative_to(run.path)))
                if role == "further" and spec_graph:
                    link_graphs(connection, graph, "other shape of", spec_graph)


def use_graph(connection: sa.Connection, run: int, graph: int, role: str, file: str) -> None:
    """Note that a run names a graph."""
    used = sa.select(GRAPH_USE.c.run).where(
        GRAPH_USE.c.run == run, GRAPH_USE.c.graph == graph, GRAPH_USE.c.role == role
    )
    if connection.execute(used).first() is None:
        connection.execute(sa.insert(GRAPH_USE).values(run=run, graph=graph, role=role, file=file))


def _insert(connection: sa.Connection, path: Path, graph: Graph, root: Digest) -> int:
    inspection = Inspection(graph)
    counts = {"nodes": len(graph.nodes), "inputs": len(graph.inputs), "outputs": len(graph.outputs)}
    values = {"form": str(graph.form), "dialect": graph.dialect, "place": str(path.absolute()), **counts}
    number = inserted(connection, GRAPH, root=root, operations=inspection.flops, **values)
    insert_many(connection, OPERATOR, OPERATOR_COLUMNS, _operators(number, inspection, path))
    return number


def _operators(graph: int, inspection: Inspection, path: Path) -> Iterator[tuple[Any, ...]]:
    modules = load_modules(path, inspection.graph).paths
    for node in inspection.graph.nodes:
        cost = inspection.costs[node.number].flops
        yield graph, node.number, node.operator, modules.get(node.number), _results(node), cost


def _results(node: Node) -> str:
    return ", ".join(text_of(spec) for spec in node.results if spec is not None)


def text_of(spec: TensorSpec) -> str:
    """A dtype and a shape as text, such as `F32 2x3`; a number without a shape is `F32`."""
    return " ".join(filter(None, (spec.dtype, shape_text(spec.shape))))


def shape_text(shape: tuple[int, ...]) -> str:
    """A shape as text, such as `2x3`."""
    return "x".join(map(str, shape))
