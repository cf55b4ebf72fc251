"""Reads graphs, tensors, traces and the devices they name into the database."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final, TypeAlias

import sqlalchemy as sa

from tallystick.core.canonical_json import encode
from tallystick.core.digests import PREFIX, Digest, digest
from tallystick.core.errors import MalformedError, UnavailableError, UsageError, refusal
from tallystick.core.sql import lock
from tallystick.core.tensor_digests import StateDigests, TensorDigest, digest_file
from tallystick.core.tensors import TensorSpec
from tallystick.database.bulk import insert_many, insert_new, inserted
from tallystick.database.indexing.sources import keep_document, of_run, source_of
from tallystick.database.schema import (
    ANCHOR,
    BINDING,
    CLUSTER,
    DEVICE,
    EVENT,
    GRAPH,
    GRAPH_LINK,
    GRAPH_USE,
    LINK,
    OPERATOR,
    RUN,
    SOURCE,
    STEP,
    TENSOR,
    TRACE,
)
from tallystick.database.workload_database import WorkloadDatabase
from tallystick.formats.cluster import Cluster
from tallystick.formats.records import batch_file, graph_file
from tallystick.formats.store.run import RunDirectory
from tallystick.formats.store.traces import TraceFolder, TraceStatement
from tallystick.programs.encoding import graph_root
from tallystick.programs.files import load_graph, load_modules
from tallystick.programs.graph import Graph
from tallystick.programs.inspection import Inspection

# Reads graphs into the database, each once by its root: its form, its operators, and who names it.

RELATIONS_OF_FORMS: Final = (
    *("logical form of", "distributed form of", "verification form of", "slice of", "template of"),
    "other shape of",
)


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
    beginning = root if root.startswith(PREFIX) else f"{PREFIX}{root}"
    begins = GRAPH.c.root.startswith(beginning, autoescape=True)
    graphs = connection.execute(sa.select(GRAPH.c.id, GRAPH.c.root).where(begins).limit(2)).all()
    if len(graphs) > 1:
        raise UnavailableError(f"{root[:80]}: several graphs in the database begin so")
    if not graphs:
        raise UnavailableError(
            f"{root[:80]}: no graph in the database begins so; `tally query 'SELECT root FROM graphs'` lists them"
        )
    return int(graphs[0].id), Digest(graphs[0].root)


def link_graphs(connection: sa.Connection, graph: int, relation: str, other: Digest) -> None:
    """State that a graph is the `relation` (logical form of, …) the one with root `other`, once."""
    insert_new(connection, GRAPH_LINK, [{"graph": graph, "relation": relation, "other": other}])


def add_graphs_of(database: WorkloadDatabase, run: RunDirectory, name: str) -> None:
    """Read the graphs that a run names and holds, and note which run names which."""
    with database.writing(name) as connection:
        number, spec_graph = connection.execute(of_run(name, RUN.c.id, RUN.c.graph)).one()
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
    insert_new(connection, GRAPH_USE, [{"run": run, "graph": graph, "role": role, "file": file}])


def _insert(connection: sa.Connection, path: Path, graph: Graph, root: Digest) -> int:
    inspection = Inspection(graph)
    counts = {"nodes": len(graph.nodes), "inputs": len(graph.inputs), "outputs": len(graph.outputs)}
    values = {"form": str(graph.form), "dialect": graph.dialect, "place": str(path.absolute()), **counts}
    number = inserted(connection, GRAPH, root=root, operations=inspection.flops, **values)
    insert_many(connection, OPERATOR, _operators(number, inspection, path))
    return number


def _operators(graph: int, inspection: Inspection, path: Path) -> Iterator[tuple[Any, ...]]:
    modules = load_modules(path, inspection.graph).paths
    for node in inspection.graph.nodes:
        results = ", ".join(text_of(spec) for spec in node.results if spec is not None)
        yield (
            graph,
            node.number,
            node.operator,
            modules.get(node.number),
            results,
            inspection.costs[node.number].flops,
        )


def text_of(spec: TensorSpec) -> str:
    """A dtype and a shape as text, such as `F32 2x3`; a number without a shape is `F32`."""
    return " ".join(filter(None, (spec.dtype, shape_text(spec.shape))))


def shape_text(shape: tuple[int, ...]) -> str:
    """A shape as text, such as `2x3`."""
    return "x".join(map(str, shape))


# Reads the tensors of a run into the database: those of its anchors, and of the batches that loops keep as files.
#
# Their digests are computed from the bytes, and the digest of the whole is compared with the one that the record
# states.

NAMES_AT_ONCE: Final = 500


_Tensors: TypeAlias = Mapping[str, tuple[TensorDigest, str]]
"""The tensors of a state or a batch by their names, each with the file that holds it."""


def add_tensors(database: WorkloadDatabase, run: RunDirectory, name: str) -> int:
    """Read the tensors of every anchor and batch that is there and not read yet; returns how many files were read.

    Raises `MalformedError` where a file does not hold what its record states.
    """
    with database.writing(name) as connection:
        number, root = connection.execute(of_run(name, RUN.c.id, RUN.c.graph)).one()
        connection.execute(sa.update(RUN).where(RUN.c.id == number, RUN.c.tensors.is_(False)).values(tensors=True))
        bound = sa.select(BINDING.c.step, BINDING.c.moment).where(BINDING.c.run == number).distinct()
        done = {(step, moment) for step, moment in connection.execute(bound)}
        states = sa.select(ANCHOR.c.step, ANCHOR.c.digest).where(ANCHOR.c.run == number, ANCHOR.c.present)
        anchors = [(int(step), Digest(digest)) for step, digest in connection.execute(states.order_by(ANCHOR.c.step))]
        named = sa.select(STEP.c.step, STEP.c.batch).where(STEP.c.run == number, STEP.c.batch.startswith("sha256:"))
        batches = [(int(step), Digest(digest)) for step, digest in connection.execute(named.order_by(STEP.c.step))]
    is_graph_there = root is not None and run.graph_path.is_file()
    inputs = load_graph(run.graph_path).inputs if is_graph_there else ()
    intended = {each.name: each.spec.dtype for each in inputs}

    def bind(step: int, moment: str, tensors: _Tensors) -> None:
        with database.writing(name) as connection:
            numbers = _numbers(connection, [tree for tree, _ in tensors.values()])
            graph = connection.execute(sa.select(GRAPH.c.id).where(GRAPH.c.root == root)).scalar()
            rows = [
                {
                    "run": number,
                    "step": step,
                    "edge": edge,
                    "moment": moment,
                    "tensor": numbers[tree.digest],
                    "graph": graph if edge in intended else None,
                    "intended": intended.get(edge, tree.dtype),
                    "realised": tree.dtype,
                    "file": file,
                }
                for edge, (tree, file) in tensors.items()
            ]
            insert_new(connection, BINDING, rows)

    read = 0
    states_read: dict[int, _Tensors] = {}
    for step, stated in anchors:
        if (step, "after") not in done:
            states_read[step] = _of_anchor(run, step, stated, states_read)
            bind(step, "after", states_read[step])
            read += 1
    for step, stated in batches:
        file = batch_file(stated)
        if (step, "during") not in done and (run.path / file).is_file():
            tensors = _of_file(run.path, run.path / file)
            _check(tensors, stated, file)
            bind(step, "during", tensors)
            read += 1
    return read


def _of_anchor(run: RunDirectory, step: int, stated: Digest, states: dict[int, _Tensors]) -> _Tensors:
    """The tensors of an anchor, those that stand in the files of others included; `states` keeps what was read."""
    path = run.anchors.holding(step)
    tensors = dict(_of_file(run.path, path))
    for name, holder in run.anchors.elsewhere(step).items():
        if holder not in states:
            states[holder] = _of_file(run.path, run.anchors.holding(holder))
        tensors[name] = states[holder][name]
    _check(tensors, stated, path.name)
    return tensors


def _of_file(run: Path, path: Path) -> _Tensors:
    return {name: (tree, str(path.relative_to(run))) for name, tree in digest_file(path).entries}


def _check(tensors: _Tensors, stated: Digest, file: str) -> None:
    computed = StateDigests(tuple((name, tensors[name][0]) for name in sorted(tensors))).digest
    if computed != stated:
        raise MalformedError(f"{file}: the state has digest {computed}, and its record states {stated}")


def _numbers(connection: sa.Connection, tensors: Iterable[TensorDigest]) -> dict[Digest, int]:
    """The row numbers of tensors by their digests; those that are new are inserted."""
    by_digest = {tree.digest: tree for tree in tensors}
    numbers = _known(connection, list(by_digest))
    if new := sorted(by_digest.keys() - numbers.keys()):
        specs = {digest: TensorSpec(by_digest[digest].dtype, by_digest[digest].shape) for digest in new}
        rows = [
            {
                "digest": digest,
                "dtype": spec.dtype,
                "shape": shape_text(spec.shape),
                "layout": "row-major",
                "bytes": spec.nbytes,
            }
            for digest, spec in specs.items()
        ]
        insert_new(connection, TENSOR, rows)
        numbers |= _known(connection, new)
    return numbers


def _known(connection: sa.Connection, digests: list[Digest]) -> dict[Digest, int]:
    numbers: dict[Digest, int] = {}
    for at in range(0, len(digests), NAMES_AT_ONCE):
        some = sa.select(TENSOR.c.digest, TENSOR.c.id).where(TENSOR.c.digest.in_(digests[at : at + NAMES_AT_ONCE]))
        numbers |= {Digest(digest): number for digest, number in connection.execute(some)}
    return numbers


# Reads traces and the devices that they name into the database.
#
# A trace is read and checked before the database is locked, so that others write meanwhile.

MICROSECOND: Final = 1000
BATCH: Final = 10_000
IN_MEMORY: Final = 100_000
"""Events: some 50 MB."""


def add_trace(database: WorkloadDatabase, folder: TraceFolder, name: str | None = None) -> str:
    """Read a trace into the database, all of it or nothing; returns its name there.

    Raises:
        MalformedError: an event has no known form, or the database holds another trace under this place.
        ProofError: the events are not those under the root of the statement.
        UnavailableError: a file of it is missing.
    """
    statement, cluster = folder.statement(), folder.cluster()
    place = str(folder.path.absolute())
    name = name or (f"{folder.path.parent.parent.name}/{folder.path.name}" if _is_in_run(folder) else folder.path.name)
    with database.sql.reading() as connection:
        known = connection.execute(
            sa.select(SOURCE.c.id).where(SOURCE.c.kind == "trace", SOURCE.c.place == place)
        ).scalar()
        if known is not None and _is_known(connection, known, folder, statement):
            return name
    with _read_before(_events(folder)) as rows, database.writing(place) as connection:
        source = source_of(connection, "trace", place, name)
        if not _is_known(connection, source, folder, statement):  # somebody else may have added it meanwhile
            _write(connection, source, folder, statement, cluster, rows)
    return name


def _is_known(connection: sa.Connection, source: int, folder: TraceFolder, statement: TraceStatement) -> bool:
    """Whether the database holds this trace; raises `MalformedError` where it holds another one under this place."""
    known = connection.execute(sa.select(TRACE.c.digest).where(TRACE.c.source == source)).scalar()
    if known is not None and known != statement.identity:
        raise MalformedError(f"{folder.path}: another trace than the one in the database; `tally db forget` it first")
    return known is not None


def _write(
    connection: sa.Connection,
    source: int,
    folder: TraceFolder,
    statement: TraceStatement,
    cluster: Cluster,
    rows: Iterator[tuple[Any, ...]],
) -> None:
    trace = inserted(
        connection,
        TRACE,
        source=source,
        run=_run_of(connection, folder, statement.claim),
        cluster=add_cluster(connection, cluster),
        digest=statement.identity,
        graph=statement.graph,
        claim=statement.claim,
        program=statement.source,
        clock=statement.clock,
        began_ns=None if statement.began is None else statement.began * MICROSECOND,
        events=statement.events.size,
    )
    insert_many(connection, EVENT, ((trace, *row) for row in rows))
    span = sa.select(sa.func.min(EVENT.c.start_ns), sa.func.max(EVENT.c.start_ns + EVENT.c.duration_ns))
    start, end = connection.execute(span.where(EVENT.c.trace == trace)).one()
    connection.execute(sa.update(TRACE).where(TRACE.c.id == trace).values(start_ns=start, end_ns=end))


@contextmanager
def _read_before(rows: Iterator[tuple[Any, ...]]) -> Iterator[Iterator[tuple[Any, ...]]]:
    """The same rows, all of which were read before the first one is given; many of them wait in a temporary file."""
    first = list(islice(rows, IN_MEMORY))
    with tempfile.TemporaryFile("w+", prefix="tally-trace-", encoding="utf-8") as file:
        while batch := list(islice(rows, BATCH)):
            file.write(json.dumps(batch) + "\n")
        file.seek(0)
        yield chain(first, (row for line in file for row in json.loads(line)))


def add_cluster(connection: sa.Connection, cluster: Cluster) -> int:
    """The number of a cluster, whose devices and links are added if it is new."""
    body = cluster.to_bytes()
    identity = digest("cluster", body)
    keep_document(connection, "cluster", identity, body)  # waits for whoever is adding it, too
    known = connection.execute(sa.select(CLUSTER.c.id).where(CLUSTER.c.digest == identity)).scalar()
    if known is not None:
        return int(known)
    number = inserted(connection, CLUSTER, digest=identity)
    devices = (
        (
            *(number, device.name, device.kind, device.model, device.host, device.memory, device.bandwidth),
            max(device.peak.values(), default=None),
            encode(dict(device.peak)).decode(),
        )
        for device in cluster.devices
    )
    insert_many(connection, DEVICE, devices)
    links = ((number, *each.ends, each.bandwidth, each.latency) for each in cluster.links)
    insert_many(connection, LINK, links)
    return number


def _is_in_run(folder: TraceFolder) -> bool:
    return folder.path.parent.name == "traces"


def _run_of(connection: sa.Connection, folder: TraceFolder, claim: str | None) -> int | None:
    """The run whose directory holds the trace, or else whose claim it names."""
    if _is_in_run(folder):
        run = str(folder.path.parent.parent.absolute())
        holder = sa.select(RUN.c.id).join(SOURCE).where(SOURCE.c.kind == "run", SOURCE.c.place == run)
        return connection.execute(holder).scalar()
    return None if claim is None else connection.execute(sa.select(RUN.c.id).where(RUN.c.claim == claim)).scalar()


def _events(folder: TraceFolder) -> Iterator[tuple[Any, ...]]:
    for number, event in enumerate(folder.events()):
        yield (
            number,
            event.kind,
            event.name,
            event.device,
            event.stream,
            event.operator,
            event.step,
            event.start,
            event.duration,
            event.moved,
            event.memory,
            " ".join(event.members) if event.members else None,
            event.subject,
        )
