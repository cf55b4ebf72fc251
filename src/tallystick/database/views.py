"""The nouns of the database and their views, with names and digests in place of row numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache, cached_property
from typing import Any, Final, get_args, get_type_hints

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import GenericFunction

from tallystick.database import schema as t
from tallystick.database.rows import (
    AnchorRow,
    AuditedSegmentRow,
    AuditRow,
    BindingRow,
    ChallengeRow,
    ClaimRow,
    DeviceRow,
    DisputeRow,
    EnvironmentRow,
    EventRow,
    FindingRow,
    GraphLinkRow,
    GraphRow,
    GraphUseRow,
    LinkRow,
    MoveRow,
    OperatorRow,
    ReceiptRow,
    RecordRow,
    ResponseRow,
    RunRow,
    StepRow,
    StoredFileRow,
    StreamRow,
    TensorRow,
    TraceRow,
)

# The nouns of the database: the rows of each, the columns of its view that order them, and how nouns are related.


@dataclass(frozen=True)
class Noun:
    """What can be asked for by `name`: its rows, and the columns of its view that order them and name one row.

    `orders` are further columns by which rows can be ordered, within what they belong to. None of these columns is ever
    empty.
    """

    name: str
    row: type[Any]
    key: tuple[str, ...]
    orders: tuple[str, ...] = ()

    @cached_property
    def types(self) -> Mapping[str, type]:
        """The type of each field, without `None`."""
        hints = get_type_hints(self.row)
        return {
            each.name: next((kind for kind in get_args(hints[each.name]) if kind is not type(None)), hints[each.name])
            for each in fields(self.row)
        }

    @cached_property
    def optional(self) -> frozenset[str]:
        """The fields that need not be stated."""
        hints = get_type_hints(self.row)
        return frozenset(each.name for each in fields(self.row) if type(None) in get_args(hints[each.name]))


NOUNS: Final = {
    noun.name: noun
    for noun in (
        Noun("runs", RunRow, ("run_id",), ("name",)),
        Noun("records", RecordRow, ("run_id", "number")),
        Noun("steps", StepRow, ("run_id", "step")),
        Noun("anchors", AnchorRow, ("run_id", "step")),
        Noun("stored_files", StoredFileRow, ("source_id", "file")),
        Noun("graphs", GraphRow, ("graph_id",)),
        Noun("graph_uses", GraphUseRow, ("run_id", "graph_id", "role")),
        Noun("graph_links", GraphLinkRow, ("graph_id", "relation", "other")),
        Noun("operators", OperatorRow, ("graph_id", "number")),
        Noun("tensors", TensorRow, ("tensor_id",)),
        Noun("bindings", BindingRow, ("run_id", "step", "edge", "moment")),
        Noun("environments", EnvironmentRow, ("digest",)),
        Noun("claims", ClaimRow, ("digest", "run_id")),
        Noun("devices", DeviceRow, ("device_id",)),
        Noun("links", LinkRow, ("link_id",)),
        Noun("traces", TraceRow, ("trace_id",)),
        Noun("events", EventRow, ("trace_id", "number"), ("start_ns",)),
        Noun("audits", AuditRow, ("audit_id",)),
        Noun("audited_segments", AuditedSegmentRow, ("audit_id", "first_step")),
        Noun("findings", FindingRow, ("audit_id", "number")),
        Noun("challenges", ChallengeRow, ("challenge_id",)),
        Noun("responses", ResponseRow, ("challenge_id", "digest")),
        Noun("streams", StreamRow, ("stream_id",)),
        Noun("receipts", ReceiptRow, ("stream_id", "number")),
        Noun("disputes", DisputeRow, ("dispute_id",)),
        Noun("moves", MoveRow, ("dispute_id", "number")),
    )
}

RELATIONS: Final = {
    ("runs", "records"): ("name", "run"),
    ("runs", "steps"): ("name", "run"),
    ("runs", "anchors"): ("name", "run"),
    ("runs", "bindings"): ("name", "run"),
    ("runs", "stored_files"): ("name", "run"),
    ("runs", "graph_uses"): ("name", "run"),
    ("runs", "traces"): ("name", "run"),
    ("runs", "audits"): ("name", "run"),
    ("runs", "audited_segments"): ("name", "run"),
    ("runs", "challenges"): ("name", "run"),
    ("runs", "claims"): ("name", "run"),
    ("runs", "environments"): ("environment", "digest"),
    ("runs", "disputes"): ("transcript", "root"),
    ("steps", "graphs"): ("graph", "root"),
    ("graph_uses", "graphs"): ("graph", "root"),
    ("graphs", "operators"): ("root", "graph"),
    ("graphs", "traces"): ("root", "graph"),
    ("graphs", "graph_links"): ("root", "graph"),
    ("graph_links", "graphs"): ("other", "root"),
    ("bindings", "tensors"): ("tensor", "digest"),
    ("bindings", "graphs"): ("graph", "root"),
    ("traces", "events"): ("name", "trace"),
    ("traces", "devices"): ("cluster", "cluster"),
    ("events", "devices"): ("device", "name"),
    ("audits", "findings"): ("digest", "audit"),
    ("audits", "audited_segments"): ("digest", "audit"),
    ("challenges", "responses"): ("digest", "challenge"),
    ("streams", "receipts"): ("name", "stream"),
    ("disputes", "moves"): ("name", "dispute"),
}
"""Which fields of two nouns hold the same; each can be followed in both directions."""


# The views: the stable face of the tables, with names and digests in place of row numbers.
#
# Every field of the rows in `rows` is a column of the view of that noun; columns that end in `_id` order the rows.

SOURCE: Final = t.SOURCE.c


class HexText(GenericFunction[str]):
    """Bytes as hexadecimal digits in lower case."""

    name = "hex_text"
    type = sa.Text()
    inherit_cache = True


@compiles(HexText, "sqlite")
def _on_sqlite(element: HexText, compiler: Any, **words: Any) -> str:
    return f"lower(hex({compiler.process(element.clauses, **words)}))"


@compiles(HexText, "postgresql")
def _on_postgresql(element: HexText, compiler: Any, **words: Any) -> str:
    return f"encode({compiler.process(element.clauses, **words)}, 'hex')"


def _all(table: sa.Table, *without: str) -> list[sa.Column[Any]]:
    return [column for column in table.c if column.name not in without]


def _named(table: sa.Table, link: sa.Column[Any], number: str, name: str) -> sa.Select[Any]:
    """The columns of a table whose `link` leads to a row that has a source: its number, and the source's name."""
    target = t.METADATA.tables[next(iter(link.foreign_keys)).column.table.name]
    of_target = target.outerjoin(t.SOURCE, SOURCE.id == target.c.source)
    joined = table.outerjoin(of_target, target.c.id == link)
    return sa.select(link.label(number), SOURCE.name.label(name), *_all(table, link.name)).select_from(joined)


def _of_run(table: sa.Table, *without: str) -> sa.Select[Any]:
    joined = table.join(t.RUN, t.RUN.c.id == table.c.run).join(t.SOURCE, SOURCE.id == t.RUN.c.source)
    columns = _all(table, "run", *without)
    return sa.select(table.c.run.label("run_id"), SOURCE.name.label("run"), *columns).select_from(joined)


def _sourced(table: sa.Table, number: str, *without: str) -> sa.Select[Any]:
    joined = table.join(t.SOURCE, SOURCE.id == table.c.source)
    columns = _all(table, "id", "source", "frontier", "bytes_read", "tensors", *without)
    return sa.select(table.c.id.label(number), SOURCE.name, SOURCE.place, *columns).select_from(joined)


def _plain(table: sa.Table, number: str) -> sa.Select[Any]:
    return sa.select(table.c.id.label(number), *_all(table, "id"))


def _documents(noun: str) -> sa.Select[Any]:
    return sa.select(t.DOCUMENT.c.digest, t.DOCUMENT.c.body).where(t.DOCUMENT.c.noun == sa.literal_column(f"'{noun}'"))


def _of_graph(table: sa.Table) -> sa.Select[Any]:
    joined = table.join(t.GRAPH, t.GRAPH.c.id == table.c.graph)
    columns = (table.c.graph.label("graph_id"), t.GRAPH.c.root.label("graph"), *_all(table, "graph"))
    return sa.select(*columns).select_from(joined)


def _audit_columns(table: sa.Table) -> sa.Select[Any]:
    """The rows of a table about audits, with the digest of each audit, and the run that it was of."""
    joined = table.join(t.AUDIT, t.AUDIT.c.id == table.c.audit).outerjoin(t.RUN, t.RUN.c.id == t.AUDIT.c.run)
    joined = joined.outerjoin(t.SOURCE, SOURCE.id == t.RUN.c.source)
    columns = (table.c.audit.label("audit_id"), t.AUDIT.c.digest.label("audit"), SOURCE.name.label("run"))
    return sa.select(*columns, *_all(table, "audit")).select_from(joined)


def _runs() -> sa.Select[Any]:
    return _sourced(t.RUN, "run_id")


def _records() -> sa.Select[Any]:
    return _of_run(t.RECORD, "leaf").add_columns(HexText(t.RECORD.c.leaf).label("leaf"))


def _stored_files() -> sa.Select[Any]:
    joined = t.STORED_FILE.join(t.SOURCE, SOURCE.id == t.STORED_FILE.c.source)
    columns = (t.STORED_FILE.c.source.label("source_id"), SOURCE.name.label("run"), *_all(t.STORED_FILE, "source"))
    return sa.select(*columns).select_from(joined)


def _graph_uses() -> sa.Select[Any]:
    use = t.GRAPH_USE
    graph = (use.c.graph.label("graph_id"), t.GRAPH.c.root.label("graph"))
    return _of_run(use, "graph").add_columns(*graph).join(t.GRAPH, t.GRAPH.c.id == use.c.graph)


def _bindings() -> sa.Select[Any]:
    bound = t.BINDING
    found = _of_run(bound, "tensor", "graph").join(t.TENSOR, t.TENSOR.c.id == bound.c.tensor)
    found = found.outerjoin(t.GRAPH, t.GRAPH.c.id == bound.c.graph)
    return found.add_columns(t.TENSOR.c.digest.label("tensor"), t.GRAPH.c.root.label("graph"))


def _claims() -> sa.Select[Any]:
    document, run = t.DOCUMENT, t.RUN
    joined = run.join(document, document.c.digest == run.c.claim).join(t.SOURCE, SOURCE.id == run.c.source)
    columns = (run.c.id.label("run_id"), run.c.claim.label("digest"), SOURCE.name.label("run"), document.c.body)
    return sa.select(*columns).select_from(joined)


def _of_cluster(table: sa.Table, number: str) -> sa.Select[Any]:
    joined = table.join(t.CLUSTER, t.CLUSTER.c.id == table.c.cluster)
    columns = (table.c.id.label(number), t.CLUSTER.c.digest.label("cluster"), *_all(table, "id", "cluster"))
    return sa.select(*columns).select_from(joined)


def _traces() -> sa.Select[Any]:
    run, source = t.RUN.alias("of_run"), t.SOURCE.alias("of_source")
    found = _sourced(t.TRACE, "trace_id", "run", "cluster").outerjoin(run, run.c.id == t.TRACE.c.run)
    found = found.outerjoin(source, source.c.id == run.c.source)
    found = found.outerjoin(t.CLUSTER, t.CLUSTER.c.id == t.TRACE.c.cluster)
    return found.add_columns(source.c.name.label("run"), t.CLUSTER.c.digest.label("cluster"))


def _events() -> sa.Select[Any]:
    joined = t.EVENT.join(t.TRACE, t.TRACE.c.id == t.EVENT.c.trace).join(t.SOURCE, SOURCE.id == t.TRACE.c.source)
    columns = (t.EVENT.c.trace.label("trace_id"), SOURCE.name.label("trace"), *_all(t.EVENT, "trace"))
    return sa.select(*columns).select_from(joined)


def _audits() -> sa.Select[Any]:
    found = _named(t.AUDIT, t.AUDIT.c.run, "run_id", "run")
    return found.add_columns(t.AUDIT.c.id.label("audit_id"))


def _challenges() -> sa.Select[Any]:
    found = _named(t.CHALLENGE, t.CHALLENGE.c.run, "run_id", "run")
    return found.add_columns(t.CHALLENGE.c.id.label("challenge_id"))


def _responses() -> sa.Select[Any]:
    joined = t.RESPONSE.join(t.CHALLENGE, t.CHALLENGE.c.id == t.RESPONSE.c.challenge)
    columns = (t.RESPONSE.c.challenge.label("challenge_id"), t.CHALLENGE.c.digest.label("challenge"))
    return sa.select(*columns, *_all(t.RESPONSE, "challenge")).select_from(joined)


def _receipts() -> sa.Select[Any]:
    found, verdict = _named(t.RECEIPT, t.RECEIPT.c.stream, "stream_id", "stream"), t.RECEIPT_VERDICT
    other = verdict.alias("other_verdict")
    newest = sa.select(sa.func.max(other.c.audit)).where(other.c.receipt == t.RECEIPT.c.digest).scalar_subquery()
    of_receipt = sa.and_(verdict.c.receipt == t.RECEIPT.c.digest, verdict.c.audit == newest)
    found = found.outerjoin(verdict, of_receipt)
    return found.add_columns(verdict.c.outcome.label("verdict"), verdict.c.sentence.label("verdict_sentence"))


def _disputes() -> sa.Select[Any]:
    found = sa.select(t.DISPUTE.c.id.label("dispute_id"), SOURCE.name.label("coordinator"), *_all(t.DISPUTE, "id"))
    return found.select_from(t.DISPUTE.join(t.SOURCE, SOURCE.id == t.DISPUTE.c.source))


def _moves() -> sa.Select[Any]:
    joined = t.MOVE.join(t.DISPUTE, t.DISPUTE.c.id == t.MOVE.c.dispute)
    names = (t.MOVE.c.dispute.label("dispute_id"), t.DISPUTE.c.name.label("dispute"))
    return sa.select(*names, *_all(t.MOVE, "dispute")).select_from(joined)


VIEWS: Final[dict[str, sa.Select[Any]]] = {
    "runs": _runs(),
    "records": _records(),
    "steps": _of_run(t.STEP),
    "anchors": _of_run(t.ANCHOR),
    "stored_files": _stored_files(),
    "graphs": _plain(t.GRAPH, "graph_id"),
    "graph_uses": _graph_uses(),
    "graph_links": _of_graph(t.GRAPH_LINK),
    "operators": _of_graph(t.OPERATOR),
    "tensors": _plain(t.TENSOR, "tensor_id"),
    "bindings": _bindings(),
    "environments": _documents("environment"),
    "claims": _claims(),
    "devices": _of_cluster(t.DEVICE, "device_id"),
    "links": _of_cluster(t.LINK, "link_id"),
    "traces": _traces(),
    "events": _events(),
    "audits": _audits(),
    "audited_segments": _audit_columns(t.AUDITED_SEGMENT),
    "findings": _audit_columns(t.FINDING),
    "challenges": _challenges(),
    "responses": _responses(),
    "streams": _sourced(t.STREAM, "stream_id"),
    "receipts": _receipts(),
    "disputes": _disputes(),
    "moves": _moves(),
}


def make_views(connection: sa.Connection) -> None:
    """Make every view anew."""
    drop_views(connection)
    for name, select in VIEWS.items():
        text = select.compile(dialect=connection.dialect, compile_kwargs={"literal_binds": True})
        connection.exec_driver_sql(f'CREATE VIEW "{name}" AS {text}')


def drop_views(connection: sa.Connection) -> None:
    """Drop every view, so that the tables below them can change."""
    for name in reversed(VIEWS):
        connection.exec_driver_sql(f'DROP VIEW IF EXISTS "{name}"')


@cache
def view(name: str) -> sa.TableClause:
    """A view as something to select from."""
    return sa.table(name, *(sa.column(column.name, column.type) for column in VIEWS[name].selected_columns))
