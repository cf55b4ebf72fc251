"""The tables of the workload database and their views, as the row classes describe them.

One table holds one noun, and is named by it in the singular. The tables are an index: what they say can be read again
from run directories, receipts, reports and coordinators, which a row of `source` names. Rows refer to each other by
small numbers. The views are the stable face: they show names and digests in place of these numbers.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import GenericFunction

from tallystick.database.nouns import ELSEWHERE, HASH, INDEXED, KEY, UNIQUE, Noun, RowField
from tallystick.database.rows import NOUNS

METADATA: Final = sa.MetaData()
NUMBER: Final = sa.BigInteger().with_variant(sa.Integer, "sqlite")
"""An integer of 64 bits; SQLite makes a key of it that counts by itself only under the name INTEGER."""

TEXT: Final = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
"""Text in the order of its bytes, on both databases."""

KINDS: Final[dict[type, Any]] = {str: TEXT, int: NUMBER, float: sa.Double, bool: sa.Boolean}


def _id() -> sa.Column[Any]:
    return sa.Column("id", NUMBER, primary_key=True)


def _text(name: str, **settings: Any) -> sa.Column[Any]:
    return sa.Column(name, TEXT, **{"nullable": False, **settings})


def _number(name: str, *links: sa.ForeignKey, **settings: Any) -> sa.Column[Any]:
    return sa.Column(name, NUMBER, *links, **{"nullable": False, **settings})


def _refers(table: str, needed: bool = True) -> sa.ForeignKey:
    return sa.ForeignKey(f"{table}.id", ondelete="CASCADE" if needed else "SET NULL")


def _position() -> tuple[sa.Column[Any], ...]:
    """How far a log was read: its bytes, and the tree over its lines."""
    return _number("bytes_read"), sa.Column("frontier", sa.LargeBinary, nullable=False)


def _column(field: RowField) -> sa.Column[Any]:
    """The column that keeps a field."""
    is_key, is_unique = KEY in field.marks, UNIQUE in field.marks
    settings: dict[str, Any] = {"primary_key": is_key, "nullable": field.is_optional, "unique": is_unique or None}
    if field.number_of is not None:
        link = _refers(field.number_of.table, not field.is_optional)
        settings |= {"index": not (is_key or is_unique)} | ({"autoincrement": False} if is_key else {})
        return sa.Column(field.column, NUMBER, link, **settings)
    if is_key and field.kind is int:
        settings["autoincrement"] = False
    kind = sa.LargeBinary(32) if HASH in field.marks else KINDS[field.kind]
    return sa.Column(field.name, kind, index=INDEXED in field.marks, **settings)


def _table(noun: Noun, *further: sa.schema.SchemaItem) -> sa.Table:
    """The table of a noun, with `further` columns and constraints that no view shows."""
    assert noun.table is not None  # as the caller asked
    numbered = () if any(KEY in field.marks for field in noun.fields) else (_id(),)
    columns = (_column(field) for field in noun.fields if ELSEWHERE not in field.marks)
    return sa.Table(noun.table, METADATA, *numbered, *columns, *further)


SOURCE: Final = sa.Table(
    "source",
    METADATA,
    _id(),
    _text("kind"),
    _text("name", index=True),
    _text("place"),
    sa.UniqueConstraint("kind", "name"),
    sa.UniqueConstraint("kind", "place"),
)
DOCUMENT: Final = sa.Table("document", METADATA, _text("digest", primary_key=True), _text("noun"), _text("body"))
CLUSTER: Final = sa.Table("cluster", METADATA, _id(), _text("digest", unique=True))
RUN: Final = _table(NOUNS["runs"], *_position(), sa.Column("tensors", sa.Boolean, nullable=False, default=False))
RECORD: Final = _table(NOUNS["records"])
STEP: Final = _table(NOUNS["steps"])
ANCHOR: Final = _table(NOUNS["anchors"])
STORED_FILE: Final = _table(NOUNS["stored_files"])
GRAPH: Final = _table(NOUNS["graphs"])
GRAPH_USE: Final = _table(NOUNS["graph_uses"])
GRAPH_LINK: Final = _table(NOUNS["graph_links"])
OPERATOR: Final = _table(NOUNS["operators"])
TENSOR: Final = _table(NOUNS["tensors"])
BINDING: Final = _table(NOUNS["bindings"])
DEVICE: Final = _table(NOUNS["devices"], sa.UniqueConstraint("cluster", "name"))
LINK: Final = _table(NOUNS["links"], sa.UniqueConstraint("cluster", "one", "other"))
TRACE: Final = _table(NOUNS["traces"])
EVENT: Final = _table(
    NOUNS["events"],
    sa.Index("event_start", "trace", "start_ns", "number"),
    sa.Index("event_device", "trace", "device", "start_ns"),
)
AUDIT: Final = _table(NOUNS["audits"], _number("source", _refers("source"), index=True))
AUDITED_SEGMENT: Final = _table(NOUNS["audited_segments"])
FINDING: Final = _table(NOUNS["findings"])
CHALLENGE: Final = _table(NOUNS["challenges"])
RESPONSE: Final = _table(NOUNS["responses"])
STREAM: Final = _table(NOUNS["streams"], *_position())
RECEIPT: Final = _table(NOUNS["receipts"])
RECEIPT_VERDICT: Final = sa.Table(
    "receipt_verdict",
    METADATA,
    _text("receipt", primary_key=True),
    _number("audit", _refers("audit"), primary_key=True, autoincrement=False),
    _text("outcome"),
    _text("sentence"),
    _text("rung", nullable=True),
)
DISPUTE: Final = _table(NOUNS["disputes"], sa.UniqueConstraint("source", "number"))
MOVE: Final = _table(NOUNS["moves"])
TOKEN: Final = sa.Table(
    "token",
    METADATA,
    _text("name", primary_key=True),
    _text("number", unique=True),
    _text("digest"),
    _text("scopes"),
    _text("runs", nullable=True),
    *(_number(name) for name in ("requests_per_minute", "run_bytes_max", "made_ns")),
    _number("end_ns", nullable=True),
)
UPLOAD: Final = sa.Table("upload", METADATA, _text("name", primary_key=True), _text("token"))
ONLY_HERE: Final = frozenset({"challenge", "response", "stored_file", "token", "upload"})
"""The tables whose rows no file holds: they cannot be read again, nor compared with anything."""


def target_of(column: sa.Column[Any]) -> sa.Table:
    """The table that a link leads to."""
    return next(iter(column.foreign_keys)).column.table


# The views. Every field of a row class is a column of the view of its noun; columns that end in `_id` order the rows.

COLUMNS: Final = {
    "runs": "run_id name place kind status title spec environment data claim transcript final_state weights graph "
    "no_graph *",
    "graph_uses": "run_id run * graph_id graph",
    "bindings": "run_id run * tensor graph",
    "traces": "trace_id name place * run cluster",
    "audits": "run_id run id digest source claim outcome sentence kind * audit_id",
    "findings": "audit_id audit run *",
    "challenges": "run_id run id digest * challenge_id",
    "streams": "stream_id name place *",
    "disputes": "dispute_id coordinator source *",
}
"""The order of columns where it is not that of the row class, as `SELECT *` has it; `*` stands for the other fields."""


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


class _View:
    """Finds the columns of one view, and joins the tables that its links lead to."""

    def __init__(self, noun: Noun) -> None:
        self.noun, self.table = noun, METADATA.tables[str(noun.table)]
        self.joined: sa.FromClause = self.table
        self.tables = {self.table}
        self.fields = {field.name: field for field in noun.fields}

    def select(self) -> sa.Select[Any]:
        """The columns, those aside that other tables have."""
        columns = [(name, self._column(name)) for name in self._names()]
        named = [column if name == column.key else column.label(name) for name, column in columns]
        return sa.select(*named).select_from(self.joined)

    def _names(self) -> list[str]:
        own = [] if any(KEY in field.marks for field in self.noun.fields) else [f"{self.table.name}_id"]
        for field in self.noun.fields:
            own += [f"{field.column}_id"] if field.number_of and KEY in field.marks else []
            own.append(field.name)
        order = COLUMNS.get(self.noun.name, "*").split()
        rest = [name for name in own if name not in order and not name.startswith("verdict")]
        return [name for word in order for name in (rest if word == "*" else [word])]

    def _column(self, name: str) -> sa.ColumnElement[Any]:
        field = self.fields.get(name)
        if field is not None and field.number_of is not None:
            return self._name_behind(self.table.c[field.column])
        if name in self.table.c:
            column = self.table.c[name]
            return HexText(column) if field is not None and HASH in field.marks else column
        if name == "place":
            return SOURCE.c.place
        if name == "run":  # of what belongs to an audit
            return self._name_behind(AUDIT.c.run)
        return self.table.c["id" if name == f"{self.table.name}_id" else name.removesuffix("_id")]

    def _name_behind(self, column: sa.Column[Any]) -> sa.ColumnElement[Any]:
        """The name of the row that a link leads to: its unique column, or the name of its source."""
        link: sa.ColumnElement[Any] = column
        is_outer = False
        while column.foreign_keys:
            table, is_outer = target_of(column), is_outer or bool(column.nullable)
            is_second = table in self.tables
            joined = table.alias(f"of_{table.name}") if is_second else table
            self.joined = self.joined.join(joined, joined.c.id == link, isouter=is_outer)
            self.tables.add(table)
            column = SOURCE.c.name if table is SOURCE else next(each for each in table.c if each.unique)
            link = joined.c[column.name]
        return link


def _receipts() -> sa.Select[Any]:
    """Each receipt with the verdict of the newest check of it."""
    verdict, other = RECEIPT_VERDICT, RECEIPT_VERDICT.alias("other_verdict")
    newest = sa.select(sa.func.max(other.c.audit)).where(other.c.receipt == RECEIPT.c.digest).scalar_subquery()
    of_receipt = sa.and_(verdict.c.receipt == RECEIPT.c.digest, verdict.c.audit == newest)
    select = _View(NOUNS["receipts"]).select().outerjoin(verdict, of_receipt)
    return select.add_columns(verdict.c.outcome.label("verdict"), verdict.c.sentence.label("verdict_sentence"))


SPECIAL: Final[dict[str, sa.Select[Any]]] = {
    "environments": sa.select(DOCUMENT.c.digest, DOCUMENT.c.body).where(
        DOCUMENT.c.noun == sa.literal_column("'environment'")
    ),
    "claims": sa.select(
        RUN.c.id.label("run_id"), RUN.c.claim.label("digest"), SOURCE.c.name.label("run"), DOCUMENT.c.body
    ).select_from(RUN.join(DOCUMENT, DOCUMENT.c.digest == RUN.c.claim).join(SOURCE, SOURCE.c.id == RUN.c.source)),
    "receipts": _receipts(),
}
VIEWS: Final[dict[str, sa.Select[Any]]] = {
    name: SPECIAL[name] if name in SPECIAL else _View(noun).select() for name, noun in NOUNS.items()
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
