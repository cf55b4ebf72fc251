"""The tables of the workload database. One table holds one noun, and is named by it in the singular.

The tables are an index: what they say can be read again from run directories, receipts, reports and coordinators, which
a row of `source` names. Rows refer to each other by small numbers; the views of `views` show names and digests.
"""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa

METADATA: Final = sa.MetaData()
NUMBER: Final = sa.BigInteger().with_variant(sa.Integer, "sqlite")
"""An integer of 64 bits; SQLite makes a key of it that counts by itself only under the name INTEGER."""

TEXT: Final = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
"""Text in the order of its bytes, on both databases."""


def _table(name: str, *columns: sa.schema.SchemaItem) -> sa.Table:
    return sa.Table(name, METADATA, *columns)


def _id() -> sa.Column[int]:
    return sa.Column("id", NUMBER, primary_key=True)


def _key(name: str, of: str | None = None) -> sa.Column[int]:
    """A part of a primary key; `of` is the column that it refers to."""
    refers = () if of is None else (sa.ForeignKey(of, ondelete="CASCADE"),)
    return sa.Column(name, NUMBER, *refers, primary_key=True, autoincrement=False)


def _link(name: str, of: str, needed: bool = False) -> sa.Column[int]:
    ondelete = "CASCADE" if needed else "SET NULL"
    return sa.Column(name, NUMBER, sa.ForeignKey(of, ondelete=ondelete), nullable=not needed, index=True)


def _text(name: str, needed: bool = False, indexed: bool = False) -> sa.Column[str]:
    return sa.Column(name, TEXT, nullable=not needed, index=indexed)


def _count(name: str, needed: bool = False) -> sa.Column[int]:
    return sa.Column(name, NUMBER, nullable=not needed)


def _real(name: str) -> sa.Column[float]:
    return sa.Column(name, sa.Double)


def _hash(name: str) -> sa.Column[bytes]:
    return sa.Column(name, sa.LargeBinary(32), nullable=False)


SOURCE: Final = _table(
    "source",
    _id(),
    _text("kind", needed=True),
    _text("name", needed=True, indexed=True),
    _text("place", needed=True),
    sa.UniqueConstraint("kind", "name"),
    sa.UniqueConstraint("kind", "place"),
)
DOCUMENT: Final = _table(
    "document", sa.Column("digest", TEXT, primary_key=True), _text("noun", needed=True), _text("body", needed=True)
)
RUN: Final = _table(
    "run",
    _id(),
    sa.Column("source", NUMBER, sa.ForeignKey("source.id", ondelete="CASCADE"), nullable=False, unique=True),
    _text("kind", needed=True),
    _text("status", needed=True),
    _text("title"),
    _text("spec"),
    _text("environment"),
    _text("data"),
    _text("claim", indexed=True),
    _text("transcript"),
    _text("final_state"),
    _text("weights"),
    _text("graph"),
    _text("no_graph"),
    _count("records", needed=True),
    _count("steps", needed=True),
    _count("bytes_read", needed=True),
    _real("seconds"),
    sa.Column("tensors", sa.Boolean, nullable=False, default=False),
    sa.Column("frontier", sa.LargeBinary, nullable=False),
)
RECORD: Final = _table("record", _key("run", "run.id"), _key("number"), _text("kind", needed=True), _hash("leaf"))
STEP: Final = _table(
    "step",
    _key("run", "run.id"),
    _key("step"),
    _count("record", needed=True),
    _real("loss"),
    _real("gradient_norm"),
    _real("learning_rate"),
    _text("batch"),
    _text("graph"),
    _text("no_graph"),
    _text("tags"),
    _real("seconds"),
    _real("recording_seconds"),
)
ANCHOR: Final = _table(
    "anchor",
    _key("run", "run.id"),
    _key("step"),
    _count("record", needed=True),
    _text("digest", needed=True, indexed=True),
    _text("file", needed=True),
    sa.Column("present", sa.Boolean, nullable=False),
)
STORED_FILE: Final = _table(
    "stored_file",
    _key("source", "source.id"),
    sa.Column("file", TEXT, primary_key=True),
    _text("blob", needed=True, indexed=True),
    _count("bytes", needed=True),
)
GRAPH: Final = _table(
    "graph",
    _id(),
    sa.Column("root", TEXT, nullable=False, unique=True),
    _text("form", needed=True),
    _text("dialect", needed=True),
    _count("nodes", needed=True),
    _count("inputs", needed=True),
    _count("outputs", needed=True),
    _count("operations"),
    _text("place"),
)
GRAPH_USE: Final = _table(
    "graph_use",
    _key("run", "run.id"),
    _key("graph", "graph.id"),
    sa.Column("role", TEXT, primary_key=True),
    _text("file", needed=True),
)
GRAPH_LINK: Final = _table(
    "graph_link",
    _key("graph", "graph.id"),
    sa.Column("relation", TEXT, primary_key=True),
    sa.Column("other", TEXT, primary_key=True),
)
OPERATOR: Final = _table(
    "operator",
    _key("graph", "graph.id"),
    _key("number"),
    _text("operator", needed=True),
    _text("module"),
    _text("results", needed=True),
    _count("operations"),
)
TENSOR: Final = _table(
    "tensor",
    _id(),
    sa.Column("digest", TEXT, nullable=False, unique=True),
    _text("dtype", needed=True),
    _text("shape", needed=True),
    _text("layout", needed=True),
    _count("bytes", needed=True),
)
BINDING: Final = _table(
    "binding",
    _key("run", "run.id"),
    _key("step"),
    sa.Column("edge", TEXT, primary_key=True),
    sa.Column("moment", TEXT, primary_key=True),
    _link("tensor", "tensor.id", needed=True),
    _link("graph", "graph.id"),
    _text("intended", needed=True),
    _text("realised", needed=True),
    _text("file", needed=True),
)
CLUSTER: Final = _table("cluster", _id(), sa.Column("digest", TEXT, nullable=False, unique=True))
DEVICE: Final = _table(
    "device",
    _id(),
    _link("cluster", "cluster.id", needed=True),
    _text("name", needed=True),
    _text("kind", needed=True),
    _text("model"),
    _text("host"),
    _count("memory_bytes"),
    _real("bytes_per_second"),
    _real("operations_per_second"),
    _text("peaks", needed=True),
    sa.UniqueConstraint("cluster", "name"),
)
LINK: Final = _table(
    "link",
    _id(),
    _link("cluster", "cluster.id", needed=True),
    _text("one", needed=True),
    _text("other", needed=True),
    _real("bytes_per_second"),
    _real("latency_seconds"),
    sa.UniqueConstraint("cluster", "one", "other"),
)
TRACE: Final = _table(
    "trace",
    _id(),
    sa.Column("source", NUMBER, sa.ForeignKey("source.id", ondelete="CASCADE"), nullable=False, unique=True),
    _link("run", "run.id"),
    _link("cluster", "cluster.id"),
    _text("digest", needed=True),
    _text("graph"),
    _text("claim"),
    _text("program", needed=True),
    _text("clock", needed=True),
    _count("began_ns"),
    _count("events", needed=True),
    _count("start_ns"),
    _count("end_ns"),
)
EVENT: Final = _table(
    "event",
    _key("trace", "trace.id"),
    _key("number"),
    _text("kind", needed=True),
    _text("name", needed=True),
    _text("device", needed=True),
    _count("stream"),
    _count("operator"),
    _count("step"),
    _count("start_ns", needed=True),
    _count("duration_ns", needed=True),
    _count("bytes"),
    _count("memory_bytes"),
    _text("members"),
    _text("subject"),
    sa.Index("event_start", "trace", "start_ns", "number"),
    sa.Index("event_device", "trace", "device", "start_ns"),
)
AUDIT: Final = _table(
    "audit",
    _id(),
    sa.Column("digest", TEXT, nullable=False, unique=True),
    _link("source", "source.id", needed=True),
    _link("run", "run.id"),
    _text("claim", indexed=True),
    _text("outcome", needed=True),
    _text("sentence", needed=True),
    _text("kind", needed=True),
    _text("mode"),
    _text("nonce"),
    _count("steps"),
    _count("replayed_steps"),
    _real("seconds"),
    _text("made"),
    _text("body", needed=True),
)
AUDITED_SEGMENT: Final = _table(
    "audited_segment",
    _key("audit", "audit.id"),
    _key("first_step"),
    _count("last_step", needed=True),
    _text("outcome", needed=True),
    _real("seconds"),
)
FINDING: Final = _table(
    "finding",
    _key("audit", "audit.id"),
    _key("number"),
    _text("check", needed=True),
    _text("place", needed=True),
    _count("step"),
    _real("distance"),
    _real("allowed"),
    sa.Column("agrees", sa.Boolean, nullable=False),
    sa.Column("advisory", sa.Boolean, nullable=False),
    _text("detail", needed=True),
)
CHALLENGE: Final = _table(
    "challenge",
    _id(),
    sa.Column("digest", TEXT, nullable=False, unique=True),
    _link("run", "run.id"),
    _text("asked", needed=True),
    _text("nonce"),
    _text("party"),
    _count("made_ns", needed=True),
)
RESPONSE: Final = _table(
    "response",
    _key("challenge", "challenge.id"),
    sa.Column("digest", TEXT, primary_key=True),
    _count("bytes", needed=True),
    _count("made_ns", needed=True),
)
STREAM: Final = _table(
    "stream",
    _id(),
    sa.Column("source", NUMBER, sa.ForeignKey("source.id", ondelete="CASCADE"), nullable=False, unique=True),
    _text("key"),
    _count("receipts", needed=True),
    _count("bytes_read", needed=True),
    sa.Column("frontier", sa.LargeBinary, nullable=False),
)
RECEIPT: Final = _table(
    "receipt",
    _key("stream", "stream.id"),
    _key("number"),
    _count("sequence", needed=True),
    _text("key", needed=True),
    _text("request", needed=True, indexed=True),
    _text("digest", needed=True, indexed=True),
    _text("model", needed=True, indexed=True),
    _text("engine", needed=True),
    _text("environment", needed=True),
    _text("sampler", needed=True),
    _count("prompt_tokens", needed=True),
    _count("answer_tokens", needed=True),
    _text("finish", needed=True),
    _count("bytes", needed=True),
)
RECEIPT_VERDICT: Final = _table(
    "receipt_verdict",
    sa.Column("receipt", TEXT, primary_key=True),
    _key("audit", "audit.id"),
    _text("outcome", needed=True),
    _text("sentence", needed=True),
    _text("rung"),
)

DISPUTE: Final = _table(
    "dispute",
    _id(),
    _link("source", "source.id", needed=True),
    sa.Column("name", TEXT, nullable=False, unique=True),
    _count("number", needed=True),
    _text("root", needed=True, indexed=True),
    _text("prover", needed=True),
    _text("challenger", needed=True),
    _text("phase", needed=True),
    _text("level", needed=True),
    _count("low", needed=True),
    _count("high", needed=True),
    _count("size", needed=True),
    _text("mover", needed=True),
    _text("fault"),
    _text("ending", needed=True),
    _count("moves", needed=True),
    sa.UniqueConstraint("source", "number"),
)
MOVE: Final = _table(
    "move",
    _key("dispute", "dispute.id"),
    _key("number"),
    _text("role", needed=True),
    _text("party", needed=True),
    _text("kind", needed=True),
    _text("summary", needed=True),
    _count("made_ns", needed=True),
    _text("phase", needed=True),
    _text("level", needed=True),
    _count("low", needed=True),
    _count("high", needed=True),
    _count("size", needed=True),
    _text("body", needed=True),
)
TOKEN: Final = _table(
    "token",
    sa.Column("name", TEXT, primary_key=True),
    _text("number", needed=True),
    _text("digest", needed=True),
    _text("scopes", needed=True),
    _text("runs"),
    _count("requests_per_minute", needed=True),
    _count("run_bytes_max", needed=True),
    _count("made_ns", needed=True),
    _count("end_ns"),
    sa.UniqueConstraint("number"),
)
UPLOAD: Final = _table("upload", sa.Column("name", TEXT, primary_key=True), _text("token", needed=True))
ONLY_HERE: Final = frozenset({"challenge", "response", "stored_file", "token", "upload"})
"""The tables whose rows no file holds: they cannot be read again, nor compared with anything."""
