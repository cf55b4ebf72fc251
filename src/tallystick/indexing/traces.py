"""Reads traces and the devices that they name into the database.

A trace is read and checked before the database is locked, so that others write meanwhile.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain, islice
from typing import Any, Final

import sqlalchemy as sa

from tallystick.commitments.digests import digest
from tallystick.commitments.encoding import encode
from tallystick.errors import MalformedError
from tallystick.indexing.documents import keep_document
from tallystick.indexing.sources import source_of
from tallystick.store.database.bulk import insert_many, inserted
from tallystick.store.database.schema import CLUSTER, DEVICE, EVENT, LINK, RUN, SOURCE, TRACE
from tallystick.store.database.workload_database import WorkloadDatabase
from tallystick.store.traces import TraceFolder
from tallystick.traces.cluster import Cluster, Device
from tallystick.traces.statement import TraceStatement

EVENT_COLUMNS: Final = (
    *("trace", "number", "kind", "name", "device", "stream", "operator", "step", "start_ns", "duration_ns"),
    *("bytes", "memory_bytes", "members", "subject"),
)
DEVICE_COLUMNS: Final = (
    *("cluster", "name", "kind", "model", "host", "memory_bytes", "bytes_per_second", "operations_per_second", "peaks"),
)
LINK_COLUMNS: Final = ("cluster", "one", "other", "bytes_per_second", "latency_seconds")
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
        held = connection.execute(
            sa.select(SOURCE.c.id).where(SOURCE.c.kind == "trace", SOURCE.c.place == place)
        ).scalar()
        if held is not None and _is_known(connection, held, folder, statement):
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
    insert_many(connection, EVENT, EVENT_COLUMNS, ((trace, *row) for row in rows))
    span = sa.select(sa.func.min(EVENT.c.start_ns), sa.func.max(EVENT.c.start_ns + EVENT.c.duration_ns))
    start, end = connection.execute(span.where(EVENT.c.trace == trace)).one()
    connection.execute(sa.update(TRACE).where(TRACE.c.id == trace).values(start_ns=start, end_ns=end))


@contextmanager
def _read_before(rows: Iterator[tuple[Any, ...]]) -> Iterator[Iterator[tuple[Any, ...]]]:
    """The same rows, all of which were read before the first one is given; many of them wait in a temporary file."""
    held = list(islice(rows, IN_MEMORY))
    with tempfile.TemporaryFile("w+", prefix="tally-trace-", encoding="utf-8") as file:
        while batch := list(islice(rows, BATCH)):
            file.write(json.dumps(batch) + "\n")
        file.seek(0)
        yield chain(held, (row for line in file for row in json.loads(line)))


def add_cluster(connection: sa.Connection, cluster: Cluster) -> int:
    """The number of a cluster, whose devices and links are added if it is new."""
    body = cluster.to_bytes()
    identity = digest("cluster", body)
    keep_document(connection, "cluster", identity, body)  # waits for whoever is adding it, too
    known = connection.execute(sa.select(CLUSTER.c.id).where(CLUSTER.c.digest == identity)).scalar()
    if known is not None:
        return int(known)
    number = inserted(connection, CLUSTER, digest=identity)
    insert_many(connection, DEVICE, DEVICE_COLUMNS, (_device(number, device) for device in cluster.devices))
    links = ((number, *each.ends, each.bandwidth, each.latency) for each in cluster.links)
    insert_many(connection, LINK, LINK_COLUMNS, links)
    return number


def _device(cluster: int, device: Device) -> tuple[Any, ...]:
    peaks = encode(dict(device.peak)).decode()
    named = (cluster, device.name, device.kind, device.model, device.host)
    return *named, device.memory, device.bandwidth, max(device.peak.values(), default=None), peaks


def _is_in_run(folder: TraceFolder) -> bool:
    return folder.path.parent.name == "traces"


def _run_of(connection: sa.Connection, folder: TraceFolder, claim: str | None) -> int | None:
    """The run whose directory holds the trace, or else whose claim it names."""
    if _is_in_run(folder):
        run = str(folder.path.parent.parent.absolute())
        found = sa.select(RUN.c.id).join(SOURCE).where(SOURCE.c.kind == "run", SOURCE.c.place == run)
        return connection.execute(found).scalar()
    return None if claim is None else connection.execute(sa.select(RUN.c.id).where(RUN.c.claim == claim)).scalar()


def _events(folder: TraceFolder) -> Iterator[tuple[Any, ...]]:
    for number, each in enumerate(folder.events()):
        yield (
            number,
            each.kind,
            each.name,
            each.device,
            each.stream,
            each.operator,
            each.step,
            each.start,
            each.duration,
            each.moved,
            each.memory,
            " ".join(each.members) if each.members else None,
            each.subject,
        )
