"""The first tables."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
TEXT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    """Make the change."""
    op.create_table(
        "cluster",
        sa.Column("id", NUMBER, nullable=False),
        sa.Column("digest", TEXT, nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("digest"),
    )
    op.create_table(
        "document",
        sa.Column("digest", TEXT, nullable=False),
        sa.Column("noun", TEXT, nullable=False),
        sa.Column("body", TEXT, nullable=False),
        sa.PrimaryKeyConstraint("digest"),
    )
    op.create_table(
        "graph",
        sa.Column("id", NUMBER, nullable=False),
        sa.Column("root", TEXT, nullable=False),
        sa.Column("form", TEXT, nullable=False),
        sa.Column("dialect", TEXT, nullable=False),
        sa.Column("nodes", NUMBER, nullable=False),
        sa.Column("inputs", NUMBER, nullable=False),
        sa.Column("outputs", NUMBER, nullable=False),
        sa.Column("operations", NUMBER, nullable=True),
        sa.Column("place", TEXT, nullable=True),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("root"),
    )
    op.create_table(
        "source",
        sa.Column("id", NUMBER, nullable=False),
        sa.Column("kind", TEXT, nullable=False),
        sa.Column("name", TEXT, nullable=False),
        sa.Column("place", TEXT, nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("kind", "name"),
        sa.UniqueConstraint("kind", "place"),
    )
    with op.batch_alter_table("source", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_source_name"), ["name"], unique=False)

    op.create_table(
        "tensor",
        sa.Column("id", NUMBER, nullable=False),
        sa.Column("digest", TEXT, nullable=False),
        sa.Column("dtype", TEXT, nullable=False),
        sa.Column("shape", TEXT, nullable=False),
        sa.Column("layout", TEXT, nullable=False),
        sa.Column("bytes", NUMBER, nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("digest"),
    )
    op.create_table(
        "token",
        sa.Column("name", TEXT, nullable=False),
        sa.Column("number", TEXT, nullable=False),
        sa.Column("digest", TEXT, nullable=False),
        sa.Column("scopes", TEXT, nullable=False),
        sa.Column("runs", TEXT, nullable=True),
        sa.Column("requests_per_minute", NUMBER, nullable=False),
        sa.Column("run_bytes_max", NUMBER, nullable=False),
        sa.Column("made_ns", NUMBER, nullable=False),
        sa.Column("end_ns", NUMBER, nullable=True),
        sa.PrimaryKeyConstraint("name"),
        sa.UniqueConstraint("number"),
    )
    op.create_table(
        "upload",
        sa.Column("name", TEXT, nullable=False),
        sa.Column("token", TEXT, nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "device",
        sa.Column("id", NUMBER, nullable=False),
        sa.Column("cluster", NUMBER, nullable=False),
        sa.Column("name", TEXT, nullable=False),
        sa.Column("kind", TEXT, nullable=False),
        sa.Column("model", TEXT, nullable=True),
        sa.Column("host", TEXT, nullable=True),
        sa.Column("memory_bytes", NUMBER, nullable=True),
        sa.Column("bytes_per_second", sa.Double(), nullable=True),
        sa.Column("operations_per_second", sa.Double(), nullable=True),
        sa.Column("peaks", TEXT, nullable=False),
        sa.ForeignKeyConstraint(["cluster"], ["cluster.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("cluster", "name"),
    )
    with op.batch_alter_table("device", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_device_cluster"), ["cluster"], unique=False)

    op.create_table(
        "dispute",
        sa.Column("id", NUMBER, nullable=False),
        sa.Column("source", NUMBER, nullable=False),
        sa.Column("name", TEXT, nullable=False),
        sa.Column("number", NUMBER, nullable=False),
        sa.Column("root", TEXT, nullable=False),
        sa.Column("prover", TEXT, nullable=False),
        sa.Column("challenger", TEXT, nullable=False),
        sa.Column("phase", TEXT, nullable=False),
        sa.Column("level", TEXT, nullable=False),
        sa.Column("low", NUMBER, nullable=False),
        sa.Column("high", NUMBER, nullable=False),
        sa.Column("size", NUMBER, nullable=False),
        sa.Column("mover", TEXT, nullable=False),
        sa.Column("fault", TEXT, nullable=True),
        sa.Column("ending", TEXT, nullable=False),
        sa.Column("moves", NUMBER, nullable=False),
        sa.ForeignKeyConstraint(["source"], ["source.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("name"),
        sa.UniqueConstraint("source", "number"),
    )
    with op.batch_alter_table("dispute", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_dispute_root"), ["root"], unique=False)
        batch_op.create_index(batch_op.f("ix_dispute_source"), ["source"], unique=False)

    op.create_table(
        "graph_link",
        sa.Column("graph", NUMBER, autoincrement=False, nullable=False),
        sa.Column("relation", TEXT, nullable=False),
        sa.Column("other", TEXT, nullable=False),
        sa.ForeignKeyConstraint(["graph"], ["graph.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("graph", "relation", "other"),
    )
    op.create_table(
        "link",
        sa.Column("id", NUMBER, nullable=False),
        sa.Column("cluster", NUMBER, nullable=False),
        sa.Column("one", TEXT, nullable=False),
        sa.Column("other", TEXT, nullable=False),
        sa.Column("bytes_per_second", sa.Double(), nullable=True),
        sa.Column("latency_seconds", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["cluster"], ["cluster.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("cluster", "one", "other"),
    )
    with op.batch_alter_table("link", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_link_cluster"), ["cluster"], unique=False)

    op.create_table(
        "operator",
        sa.Column("graph", NUMBER, autoincrement=False, nullable=False),
        sa.Column("number", NUMBER, autoincrement=False, nullable=False),
        sa.Column("operator", TEXT, nullable=False),
        sa.Column("module", TEXT, nullable=True),
        sa.Column("results", TEXT, nullable=False),
        sa.Column("operations", NUMBER, nullable=True),
        sa.ForeignKeyConstraint(["graph"], ["graph.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("graph", "number"),
    )
    op.create_table(
        "run",
        sa.Column("id", NUMBER, nullable=False),
        sa.Column("source", NUMBER, nullable=False),
        sa.Column("kind", TEXT, nullable=False),
        sa.Column("status", TEXT, nullable=False),
        sa.Column("title", TEXT, nullable=True),
        sa.Column("spec", TEXT, nullable=True),
        sa.Column("environment", TEXT, nullable=True),
        sa.Column("data", TEXT, nullable=True),
        sa.Column("claim", TEXT, nullable=True),
        sa.Column("transcript", TEXT, nullable=True),
        sa.Column("final_state", TEXT, nullable=True),
        sa.Column("weights", TEXT, nullable=True),
        sa.Column("graph", TEXT, nullable=True),
        sa.Column("no_graph", TEXT, nullable=True),
        sa.Column("records", NUMBER, nullable=False),
        sa.Column("steps", NUMBER, nullable=False),
        sa.Column("bytes_read", NUMBER, nullable=False),
        sa.Column("seconds", sa.Double(), nullable=True),
        sa.Column("tensors", sa.Boolean(), nullable=False),
        sa.Column("frontier", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["source"], ["source.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("source"),
    )
    with op.batch_alter_table("run", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_run_claim"), ["claim"], unique=False)

    op.create_table(
        "stored_file",
        sa.Column("source", NUMBER, autoincrement=False, nullable=False),
        sa.Column("file", TEXT, nullable=False),
        sa.Column("blob", TEXT, nullable=False),
        sa.Column("bytes", NUMBER, nullable=False),
        sa.ForeignKeyConstraint(["source"], ["source.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("source", "file"),
    )
    with op.batch_alter_table("stored_file", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_stored_file_blob"), ["blob"], unique=False)

    op.create_table(
        "stream",
        sa.Column("id", NUMBER, nullable=False),
        sa.Column("source", NUMBER, nullable=False),
        sa.Column("key", TEXT, nullable=True),
        sa.Column("receipts", NUMBER, nullable=False),
        sa.Column("bytes_read", NUMBER, nullable=False),
        sa.Column("frontier", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["source"], ["source.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("source"),
    )
    op.create_table(
        "anchor",
        sa.Column("run", NUMBER, autoincrement=False, nullable=False),
        sa.Column("step", NUMBER, autoincrement=False, nullable=False),
        sa.Column("record", NUMBER, nullable=False),
        sa.Column("digest", TEXT, nullable=False),
        sa.Column("file", TEXT, nullable=False),
        sa.Column("present", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["run.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run", "step"),
    )
    with op.batch_alter_table("anchor", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_anchor_digest"), ["digest"], unique=False)

    op.create_table(
        "audit",
        sa.Column("id", NUMBER, nullable=False),
        sa.Column("digest", TEXT, nullable=False),
        sa.Column("source", NUMBER, nullable=False),
        sa.Column("run", NUMBER, nullable=True),
        sa.Column("claim", TEXT, nullable=True),
        sa.Column("outcome", TEXT, nullable=False),
        sa.Column("sentence", TEXT, nullable=False),
        sa.Column("kind", TEXT, nullable=False),
        sa.Column("mode", TEXT, nullable=True),
        sa.Column("nonce", TEXT, nullable=True),
        sa.Column("steps", NUMBER, nullable=True),
        sa.Column("replayed_steps", NUMBER, nullable=True),
        sa.Column("seconds", sa.Double(), nullable=True),
        sa.Column("made", TEXT, nullable=True),
        sa.Column("body", TEXT, nullable=False),
        sa.ForeignKeyConstraint(["run"], ["run.id"], ondelete="SET NULL"),
        sa.ForeignKeyConstraint(["source"], ["source.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("digest"),
    )
    with op.batch_alter_table("audit", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_audit_claim"), ["claim"], unique=False)
        batch_op.create_index(batch_op.f("ix_audit_run"), ["run"], unique=False)
        batch_op.create_index(batch_op.f("ix_audit_source"), ["source"], unique=False)

    op.create_table(
        "binding",
        sa.Column("run", NUMBER, autoincrement=False, nullable=False),
        sa.Column("step", NUMBER, autoincrement=False, nullable=False),
        sa.Column("edge", TEXT, nullable=False),
        sa.Column("moment", TEXT, nullable=False),
        sa.Column("tensor", NUMBER, nullable=False),
        sa.Column("graph", NUMBER, nullable=True),
        sa.Column("intended", TEXT, nullable=False),
        sa.Column("realised", TEXT, nullable=False),
        sa.Column("file", TEXT, nullable=False),
        sa.ForeignKeyConstraint(["graph"], ["graph.id"], ondelete="SET NULL"),
        sa.ForeignKeyConstraint(["run"], ["run.id"], ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["tensor"], ["tensor.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run", "step", "edge", "moment"),
    )
    with op.batch_alter_table("binding", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_binding_graph"), ["graph"], unique=False)
        batch_op.create_index(batch_op.f("ix_binding_tensor"), ["tensor"], unique=False)

    op.create_table(
        "challenge",
        sa.Column("id", NUMBER, nullable=False),
        sa.Column("digest", TEXT, nullable=False),
        sa.Column("run", NUMBER, nullable=True),
        sa.Column("asked", TEXT, nullable=False),
        sa.Column("nonce", TEXT, nullable=True),
        sa.Column("party", TEXT, nullable=True),
        sa.Column("made_ns", NUMBER, nullable=False),
        sa.ForeignKeyConstraint(["run"], ["run.id"], ondelete="SET NULL"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("digest"),
    )
    with op.batch_alter_table("challenge", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_challenge_run"), ["run"], unique=False)

    op.create_table(
        "graph_use",
        sa.Column("run", NUMBER, autoincrement=False, nullable=False),
        sa.Column("graph", NUMBER, autoincrement=False, nullable=False),
        sa.Column("role", TEXT, nullable=False),
        sa.Column("file", TEXT, nullable=False),
        sa.ForeignKeyConstraint(["graph"], ["graph.id"], ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["run"], ["run.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run", "graph", "role"),
    )
    op.create_table(
        "move",
        sa.Column("dispute", NUMBER, autoincrement=False, nullable=False),
        sa.Column("number", NUMBER, autoincrement=False, nullable=False),
        sa.Column("role", TEXT, nullable=False),
        sa.Column("party", TEXT, nullable=False),
        sa.Column("kind", TEXT, nullable=False),
        sa.Column("summary", TEXT, nullable=False),
        sa.Column("made_ns", NUMBER, nullable=False),
        sa.Column("phase", TEXT, nullable=False),
        sa.Column("level", TEXT, nullable=False),
        sa.Column("low", NUMBER, nullable=False),
        sa.Column("high", NUMBER, nullable=False),
        sa.Column("size", NUMBER, nullable=False),
        sa.Column("body", TEXT, nullable=False),
        sa.ForeignKeyConstraint(["dispute"], ["dispute.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("dispute", "number"),
    )
    op.create_table(
        "receipt",
        sa.Column("stream", NUMBER, autoincrement=False, nullable=False),
        sa.Column("number", NUMBER, autoincrement=False, nullable=False),
        sa.Column("sequence", NUMBER, nullable=False),
        sa.Column("key", TEXT, nullable=False),
        sa.Column("request", TEXT, nullable=False),
        sa.Column("digest", TEXT, nullable=False),
        sa.Column("model", TEXT, nullable=False),
        sa.Column("engine", TEXT, nullable=False),
        sa.Column("environment", TEXT, nullable=False),
        sa.Column("sampler", TEXT, nullable=False),
        sa.Column("prompt_tokens", NUMBER, nullable=False),
        sa.Column("answer_tokens", NUMBER, nullable=False),
        sa.Column("finish", TEXT, nullable=False),
        sa.Column("bytes", NUMBER, nullable=False),
        sa.ForeignKeyConstraint(["stream"], ["stream.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("stream", "number"),
    )
    with op.batch_alter_table("receipt", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_receipt_digest"), ["digest"], unique=False)
        batch_op.create_index(batch_op.f("ix_receipt_model"), ["model"], unique=False)
        batch_op.create_index(batch_op.f("ix_receipt_request"), ["request"], unique=False)

    op.create_table(
        "record",
        sa.Column("run", NUMBER, autoincrement=False, nullable=False),
        sa.Column("number", NUMBER, autoincrement=False, nullable=False),
        sa.Column("kind", TEXT, nullable=False),
        sa.Column("leaf", sa.LargeBinary(length=32), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["run.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run", "number"),
    )
    op.create_table(
        "step",
        sa.Column("run", NUMBER, autoincrement=False, nullable=False),
        sa.Column("step", NUMBER, autoincrement=False, nullable=False),
        sa.Column("record", NUMBER, nullable=False),
        sa.Column("loss", sa.Double(), nullable=True),
        sa.Column("gradient_norm", sa.Double(), nullable=True),
        sa.Column("learning_rate", sa.Double(), nullable=True),
        sa.Column("batch", TEXT, nullable=True),
        sa.Column("graph", TEXT, nullable=True),
        sa.Column("no_graph", TEXT, nullable=True),
        sa.Column("tags", TEXT, nullable=True),
        sa.Column("seconds", sa.Double(), nullable=True),
        sa.Column("recording_seconds", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["run"], ["run.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run", "step"),
    )
    op.create_table(
        "trace",
        sa.Column("id", NUMBER, nullable=False),
        sa.Column("source", NUMBER, nullable=False),
        sa.Column("run", NUMBER, nullable=True),
        sa.Column("cluster", NUMBER, nullable=True),
        sa.Column("digest", TEXT, nullable=False),
        sa.Column("graph", TEXT, nullable=True),
        sa.Column("claim", TEXT, nullable=True),
        sa.Column("program", TEXT, nullable=False),
        sa.Column("clock", TEXT, nullable=False),
        sa.Column("began_ns", NUMBER, nullable=True),
        sa.Column("events", NUMBER, nullable=False),
        sa.Column("start_ns", NUMBER, nullable=True),
        sa.Column("end_ns", NUMBER, nullable=True),
        sa.ForeignKeyConstraint(["cluster"], ["cluster.id"], ondelete="SET NULL"),
        sa.ForeignKeyConstraint(["run"], ["run.id"], ondelete="SET NULL"),
        sa.ForeignKeyConstraint(["source"], ["source.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("source"),
    )
    with op.batch_alter_table("trace", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_trace_cluster"), ["cluster"], unique=False)
        batch_op.create_index(batch_op.f("ix_trace_run"), ["run"], unique=False)

    op.create_table(
        "audited_segment",
        sa.Column("audit", NUMBER, autoincrement=False, nullable=False),
        sa.Column("first_step", NUMBER, autoincrement=False, nullable=False),
        sa.Column("last_step", NUMBER, nullable=False),
        sa.Column("outcome", TEXT, nullable=False),
        sa.Column("seconds", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["audit"], ["audit.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("audit", "first_step"),
    )
    op.create_table(
        "event",
        sa.Column("trace", NUMBER, autoincrement=False, nullable=False),
        sa.Column("number", NUMBER, autoincrement=False, nullable=False),
        sa.Column("kind", TEXT, nullable=False),
        sa.Column("name", TEXT, nullable=False),
        sa.Column("device", TEXT, nullable=False),
        sa.Column("stream", NUMBER, nullable=True),
        sa.Column("operator", NUMBER, nullable=True),
        sa.Column("step", NUMBER, nullable=True),
        sa.Column("start_ns", NUMBER, nullable=False),
        sa.Column("duration_ns", NUMBER, nullable=False),
        sa.Column("bytes", NUMBER, nullable=True),
        sa.Column("memory_bytes", NUMBER, nullable=True),
        sa.Column("members", TEXT, nullable=True),
        sa.Column("subject", TEXT, nullable=True),
        sa.ForeignKeyConstraint(["trace"], ["trace.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("trace", "number"),
    )
    with op.batch_alter_table("event", schema=None) as batch_op:
        batch_op.create_index("event_device", ["trace", "device", "start_ns"], unique=False)
        batch_op.create_index("event_start", ["trace", "start_ns", "number"], unique=False)

    op.create_table(
        "finding",
        sa.Column("audit", NUMBER, autoincrement=False, nullable=False),
        sa.Column("number", NUMBER, autoincrement=False, nullable=False),
        sa.Column("check", TEXT, nullable=False),
        sa.Column("place", TEXT, nullable=False),
        sa.Column("step", NUMBER, nullable=True),
        sa.Column("distance", sa.Double(), nullable=True),
        sa.Column("allowed", sa.Double(), nullable=True),
        sa.Column("agrees", sa.Boolean(), nullable=False),
        sa.Column("advisory", sa.Boolean(), nullable=False),
        sa.Column("detail", TEXT, nullable=False),
        sa.ForeignKeyConstraint(["audit"], ["audit.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("audit", "number"),
    )
    op.create_table(
        "receipt_verdict",
        sa.Column("receipt", TEXT, nullable=False),
        sa.Column("audit", NUMBER, autoincrement=False, nullable=False),
        sa.Column("outcome", TEXT, nullable=False),
        sa.Column("sentence", TEXT, nullable=False),
        sa.Column("rung", TEXT, nullable=True),
        sa.ForeignKeyConstraint(["audit"], ["audit.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("receipt", "audit"),
    )
    op.create_table(
        "response",
        sa.Column("challenge", NUMBER, autoincrement=False, nullable=False),
        sa.Column("digest", TEXT, nullable=False),
        sa.Column("bytes", NUMBER, nullable=False),
        sa.Column("made_ns", NUMBER, nullable=False),
        sa.ForeignKeyConstraint(["challenge"], ["challenge.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("challenge", "digest"),
    )


def downgrade() -> None:
    """Take the change back."""
    op.drop_table("response")
    op.drop_table("receipt_verdict")
    op.drop_table("finding")
    with op.batch_alter_table("event", schema=None) as batch_op:
        batch_op.drop_index("event_start")
        batch_op.drop_index("event_device")

    op.drop_table("event")
    op.drop_table("audited_segment")
    with op.batch_alter_table("trace", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_trace_run"))
        batch_op.drop_index(batch_op.f("ix_trace_cluster"))

    op.drop_table("trace")
    op.drop_table("step")
    op.drop_table("record")
    with op.batch_alter_table("receipt", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_receipt_request"))
        batch_op.drop_index(batch_op.f("ix_receipt_model"))
        batch_op.drop_index(batch_op.f("ix_receipt_digest"))

    op.drop_table("receipt")
    op.drop_table("move")
    op.drop_table("graph_use")
    with op.batch_alter_table("challenge", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_challenge_run"))

    op.drop_table("challenge")
    with op.batch_alter_table("binding", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_binding_tensor"))
        batch_op.drop_index(batch_op.f("ix_binding_graph"))

    op.drop_table("binding")
    with op.batch_alter_table("audit", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_audit_source"))
        batch_op.drop_index(batch_op.f("ix_audit_run"))
        batch_op.drop_index(batch_op.f("ix_audit_claim"))

    op.drop_table("audit")
    with op.batch_alter_table("anchor", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_anchor_digest"))

    op.drop_table("anchor")
    op.drop_table("stream")
    with op.batch_alter_table("stored_file", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_stored_file_blob"))

    op.drop_table("stored_file")
    with op.batch_alter_table("run", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_run_claim"))

    op.drop_table("run")
    op.drop_table("operator")
    with op.batch_alter_table("link", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_link_cluster"))

    op.drop_table("link")
    op.drop_table("graph_link")
    with op.batch_alter_table("dispute", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_dispute_source"))
        batch_op.drop_index(batch_op.f("ix_dispute_root"))

    op.drop_table("dispute")
    with op.batch_alter_table("device", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_device_cluster"))

    op.drop_table("device")
    op.drop_table("upload")
    op.drop_table("token")
    op.drop_table("tensor")
    with op.batch_alter_table("source", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_source_name"))

    op.drop_table("source")
    op.drop_table("graph")
    op.drop_table("document")
    op.drop_table("cluster")
