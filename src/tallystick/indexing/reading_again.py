"""Reads a place that a database names into another database, as it was read there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import sqlalchemy as sa

from tallystick.commitments.digests import digest
from tallystick.commitments.encoding import encode, parse
from tallystick.errors import MalformedError, UnavailableError
from tallystick.indexing.add import add_place
from tallystick.indexing.audits import REPORT_BYTES_MAX, add_audit
from tallystick.indexing.graphs import RELATIONS_OF_FORMS, add_graph, link_graphs
from tallystick.indexing.sources import SourcePlace
from tallystick.store.database.schema import AUDIT, GRAPH, GRAPH_LINK, RUN, SOURCE
from tallystick.store.database.workload_database import WorkloadDatabase


def read_again(again: WorkloadDatabase, ours: sa.Connection, place: SourcePlace, *, quick: bool = False) -> str:
    """Read `place`, which the database behind `ours` names; returns what could not be compared with a file, or nothing.

    With `quick`, the bytes of states and batches are left out. Raises what `add_place` raises.
    """
    if place.kind == "audit":
        return _read_audit(again, ours, place)
    add_place(again, place.place, place.name, tensors=place.tensors and not quick)
    with again.writing(place.name) as connection:
        source = sa.select(SOURCE.c.id).where(SOURCE.c.kind == place.kind, SOURCE.c.name == place.name)
        of_place = RUN.c.source == source.scalar_subquery()
        connection.execute(sa.update(RUN).where(of_place).values(tensors=place.tensors))
    return ""


def read_rest(again: WorkloadDatabase, ours: sa.Connection) -> dict[str, str]:
    """Read what belongs to no place: graphs that stand in files by themselves, and the forms that people linked.

    Returns the graphs that are not there, and why. A link is a statement of whoever made it: taken as it is.
    """
    lacking = {}
    with again.writing("graphs") as connection:
        have = set(connection.execute(sa.select(GRAPH.c.root)).scalars())
        for root, place in ours.execute(sa.select(GRAPH.c.root, GRAPH.c.place).order_by(GRAPH.c.id)).all():
            if root not in have:
                try:
                    add_graph(connection, Path(place or ""), root)
                except UnavailableError as error:
                    lacking[root] = str(error)
                except MalformedError:
                    continue  # another graph stands there: it has no row in the second database
        numbers = {root: number for number, root in connection.execute(sa.select(GRAPH.c.id, GRAPH.c.root))}
        for root, relation, other in ours.execute(_links()).all():
            if root in numbers and relation in RELATIONS_OF_FORMS:
                link_graphs(connection, numbers[root], relation, other)
    return lacking


def _links() -> sa.Select[Any]:
    joined = GRAPH_LINK.join(GRAPH, GRAPH.c.id == GRAPH_LINK.c.graph)
    return sa.select(GRAPH.c.root, GRAPH_LINK.c.relation, GRAPH_LINK.c.other).select_from(joined)


def _read_audit(again: WorkloadDatabase, ours: sa.Connection, place: SourcePlace) -> str:
    """Read the report that the database keeps whole; its file may hold a later report by now, or be gone."""
    body, audited = _kept_report(ours, place)
    if report_digest(body) != place.name:
        raise MalformedError("the report is another one than the digest that names it")
    report = parse(body, "report", bytes_max=REPORT_BYTES_MAX)
    if not isinstance(report, dict):
        raise MalformedError("the report is no object of JSON")
    add_audit(again, report, place.place, audited)
    file = Path(place.place)
    if place.is_in_database:
        return ""  # its digest names it, and there is no file to compare it with
    if file.is_file() and report_digest(file.read_bytes()) == place.name:
        return ""
    return "its file is not there, or holds another report: its rows follow from the report that the database keeps"


def _kept_report(ours: sa.Connection, place: SourcePlace) -> tuple[bytes, Path | None]:
    """The report that the database keeps, and the run that was audited."""
    audited = SOURCE.alias()
    joined = AUDIT.join(SOURCE, AUDIT.c.source == SOURCE.c.id).outerjoin(RUN, RUN.c.id == AUDIT.c.run)
    joined = joined.outerjoin(audited, audited.c.id == RUN.c.source)
    asked = sa.select(AUDIT.c.body, audited.c.place).select_from(joined)
    row = ours.execute(asked.where(SOURCE.c.kind == place.kind, SOURCE.c.name == place.name)).one_or_none()
    if row is None:
        raise MalformedError("the database names it, and has no row of it")
    return row.body.encode(), None if row.place is None else Path(row.place)


def report_digest(data: bytes) -> str:
    """The digest of a report in any layout of JSON; raises `MalformedError` where it is no JSON."""
    return digest("report", encode(parse(data, "report", bytes_max=REPORT_BYTES_MAX)))
