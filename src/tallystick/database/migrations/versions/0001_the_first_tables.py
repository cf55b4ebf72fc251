"""The first tables, as they were: this file does not follow later changes of the row classes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

NUMBER: Final = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
TEXT: Final = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
KINDS: Final[dict[str, Any]] = {
    "int": NUMBER,
    "link": NUMBER,
    "text": TEXT,
    "real": sa.Double(),
    "bool": sa.Boolean(),
    "bytes": sa.LargeBinary(),
    "hash": sa.LargeBinary(length=32),
}
TABLES: Final = """
cluster: id int, digest text; key id; unique digest
document: digest text, noun text, body text; key digest
graph: id int, root text, form text, dialect text, nodes int, inputs int, outputs int, operations int?, place text?;
    key id; unique root
source: id int, kind text, name text, place text; key id; unique kind name; unique kind place; index ix_source_name
    name
tensor: id int, digest text, dtype text, shape text, layout text, bytes int; key id; unique digest
token: name text, number text, digest text, scopes text, runs text?, requests_per_minute int, run_bytes_max int,
    made_ns int, end_ns int?; key name; unique number
upload: name text, token text; key name
device: id int, cluster link, name text, kind text, model text?, host text?, memory_bytes int?, bytes_per_second
    real?, operations_per_second real?, peaks text; key id; unique cluster name; index ix_device_cluster cluster
dispute: id int, source link, name text, number int, root text, prover text, challenger text, phase text, level text,
    low int, high int, size int, mover text, fault text?, ending text, moves int; key id; unique name; unique source
    number; index ix_dispute_root root; index ix_dispute_source source
graph_link: graph link, relation text, other text; key graph relation other
link: id int, cluster link, one text, other text, bytes_per_second real?, latency_seconds real?; key id; unique
    cluster one other; index ix_link_cluster cluster
operator: graph link, number int, operator text, module text?, results text, operations int?; key graph number
run: id int, source link, kind text, status text, title text?, spec text?, environment text?, data text?, claim text?,
    transcript text?, final_state text?, weights text?, graph text?, no_graph text?, records int, steps int,
    bytes_read int, seconds real?, tensors bool, frontier bytes; key id; unique source; index ix_run_claim claim
stored_file: source link, file text, blob text, bytes int; key source file; index ix_stored_file_blob blob
stream: id int, source link, key text?, receipts int, bytes_read int, frontier bytes; key id; unique source
anchor: run link, step int, record int, digest text, file text, present bool; key run step; index ix_anchor_digest
    digest
audit: id int, digest text, source link, run link?, claim text?, outcome text, sentence text, kind text, mode text?,
    nonce text?, steps int?, replayed_steps int?, seconds real?, made text?, body text; key id; unique digest; index
    ix_audit_claim claim; index ix_audit_run run; index ix_audit_source source
binding: run link, step int, edge text, moment text, tensor link, graph link?, intended text, realised text, file
    text; key run step edge moment; index ix_binding_graph graph; index ix_binding_tensor tensor
challenge: id int, digest text, run link?, asked text, nonce text?, party text?, made_ns int; key id; unique digest;
    index ix_challenge_run run
graph_use: run link, graph link, role text, file text; key run graph role
move: dispute link, number int, role text, party text, kind text, summary text, made_ns int, phase text, level text,
    low int, high int, size int, body text; key dispute number
receipt: stream link, number int, sequence int, key text, request text, digest text, model text, engine text,
    environment text, sampler text, prompt_tokens int, answer_tokens int, finish text, bytes int; key stream number;
    index ix_receipt_digest digest; index ix_receipt_model model; index ix_receipt_request request
record: run link, number int, kind text, leaf hash; key run number
step: run link, step int, record int, loss real?, gradient_norm real?, learning_rate real?, batch text?, graph text?,
    no_graph text?, tags text?, seconds real?, recording_seconds real?; key run step
trace: id int, source link, run link?, cluster link?, digest text, graph text?, claim text?, program text, clock text,
    began_ns int?, events int, start_ns int?, end_ns int?; key id; unique source; index ix_trace_cluster cluster;
    index ix_trace_run run
audited_segment: audit link, first_step int, last_step int, outcome text, seconds real?; key audit first_step
event: trace link, number int, kind text, name text, device text, stream int?, operator int?, step int?, start_ns int,
    duration_ns int, bytes int?, memory_bytes int?, members text?, subject text?; key trace number; index event_device
    trace device start_ns; index event_start trace start_ns number
finding: audit link, number int, check text, place text, step int?, distance real?, allowed real?, agrees bool,
    advisory bool, detail text; key audit number
receipt_verdict: receipt text, audit link, outcome text, sentence text, rung text?; key receipt audit
response: challenge link, digest text, bytes int, made_ns int; key challenge digest
"""
"""A table a paragraph: columns, then constraints and indexes.

A question mark stands behind the kind of a column that may be empty. A link is the number of a row in the table of its
own name; the row goes with that one, or forgets it where the link may be empty.
"""


def upgrade() -> None:
    """Make the tables."""
    for table in _paragraphs():
        name, _, text = table.partition(": ")
        columns, *rules = text.split("; ")
        described = [column.split() for column in columns.split(", ")]
        named = [rule.split() for rule in rules]
        op.create_table(
            name,
            *(sa.Column(column, KINDS[kind.rstrip("?")], nullable="?" in kind) for column, kind in described),
            *(
                sa.ForeignKeyConstraint([link], [f"{link}.id"], ondelete="SET NULL" if "?" in kind else "CASCADE")
                for link, kind in sorted(described)
                if kind.startswith("link")
            ),
            *(sa.PrimaryKeyConstraint(*key) for rule, *key in named if rule == "key"),
            *(sa.UniqueConstraint(*unique) for rule, *unique in named if rule == "unique"),
        )
        for rule, *index in named:
            if rule == "index":
                op.create_index(index[0], name, index[1:])


def downgrade() -> None:
    """Drop the tables."""
    for table in reversed(list(_paragraphs())):
        op.drop_table(table.partition(":")[0])


def _paragraphs() -> Iterator[str]:
    """Each table on one line."""
    yield from TABLES.strip().replace("\n    ", " ").split("\n")
