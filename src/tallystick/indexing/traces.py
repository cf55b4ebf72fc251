"""Reads traces and the devices that they name into the database."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import sqlalchemy as sa

from tallystick.commitments.encoding import encode
from tallystick.errors import MalformedError
from tallystick.indexing.documents import keep_document
from tallystick.indexing.sources import source_of
from tallystick.store.database.bulk import insert_many, inserted
from tallystick.store.database.schema import CLUSTER, DEVICE, EVENT, LINK, RUN, TRACE
from tallystick.store.database.workload_database import WorkloadDatabase
from tallystick.store.traces import TraceFolder
from tallystick.traces.cluster import Cluster, Device

EVENT_COLUMNS: Final = (
    *("trace", "number", "kind", "name", "device", "stream", "operator", "step", "start_ns", "duration_ns"),
    *("bytes", "memory_bytes", "members", "subject"),
)
MICROSECOND: Final = 1000


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
    with database.writing(place) as connection:
        source = source_of(connection, "trace", place, name)
        known = connection.execute(sa.select(TRACE.c.digest).where(TRACE.c.source == source)).scalar()
        if known == statement.identity:
            return name
        if known is not None:
            raise MalformedError(
                f"{folder.path}: another trace than the one in the database; `tally db forget` it first"
            )
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
        insert_many(connection, EVENT, EVENT_COLUMNS, _events(folder, trace))
        span = sa.select(sa.func.min(EVENT.c.start_ns), sa.func.max(EVENT.c.start_ns + EVENT.c.duration_ns))
        start, end = connection.execute(span.where(EVENT.c.trace == trace)).one()
        connection.execute(sa.update(TRACE).where(TRACE.c.id == trace).values(start_ns=start, end_ns=end))
    return name


def add_cluster(connection: sa.Connection, cluster: Cluster) -> int:
    """The number of a cluster, whose devices and links are added if it is new."""
    keep_document(connection, "cluster", cluster.identity, cluster.to_bytes())  # waits for whoever is adding it, too
    known = connection.execute(sa.select(CLUSTER.c.id).where(CLUSTER.c.digest == cluster.identity)).scalar()
    if known is not None:
        return int(known)
    number = inserted(connection, CLUSTER, digest=cluster.identity)
    connection.execute(sa.insert(DEVICE), [_device(number, device) for device in cluster.devices])
    links = [
        {
            "cluster": number,
            "one": one,
            "other": other,
            "bytes_per_second": each.bandwidth,
            "latency_seconds": each.latency,
        }
        for each in cluster.links
        for one, other in (each.ends,)
    ]
    if links:
        connection.execute(sa.insert(LINK), links)
    return number


def _device(cluster: int, device: Device) -> dict[str, Any]:
    return {
        "cluster": cluster,
        "name": device.name,
        "kind": device.kind,
        "model": device.model,
        "host": device.host,
        "memory_bytes": device.memory,
        "bytes_per_second": device.bandwidth,
        "operations_per_second": max(device.peak.values(), default=None),
        "peaks": encode(dict(device.peak)).decode(),
    }


def _is_in_run(folder: TraceFolder) -> bool:
    return folder.path.parent.name == "traces"


def _run_of(connection: sa.Connection, folder: TraceFolder, claim: str | None) -> int | None:
    """The run whose directory holds the trace, or else whose claim it names."""
    from tallystick.store.database.schema import SOURCE

    if _is_in_run(folder):
        run = str(folder.path.parent.parent.absolute())
        found = sa.select(RUN.c.id).join(SOURCE).where(SOURCE.c.kind == "run", SOURCE.c.place == run)
        return connection.execute(found).scalar()
    return None if claim is None else connection.execute(sa.select(RUN.c.id).where(RUN.c.claim == claim)).scalar()


def _events(folder: TraceFolder, trace: int) -> Iterator[tuple[Any, ...]]:
    for number, each in enumerate(folder.events()):
        yield (
            trace,
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
