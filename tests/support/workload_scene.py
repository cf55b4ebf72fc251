"""A workload database with a run and what audits found of it, for tests of whoever shows or serves it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import sqlalchemy as sa

from tallystick.database import schema as t
from tallystick.database.indexing.add import add_place
from tallystick.database.workload_database import WorkloadDatabase
from tests.support.traces import TWO, kernel, trace_at

HOSTILE = "<script>alert(1)</script>\u202e\x1b[31m"
ACCEPTED, REJECTED = "sha256:" + "a1" * 32, "sha256:" + "b2" * 32


def fill(database: WorkloadDatabase, run: Path) -> None:
    """Add a run, an accepted audit of its first steps, and a rejected one whose text is hostile."""
    add_place(database, run, "digits <1>")
    with database.writing("scene") as connection:
        source = insert(connection, t.SOURCE, kind="audit", name="audits", place="/audits")
        for digest, outcome, sentence in (
            (ACCEPTED, "accepted", "2 of 4 steps were replayed, and all comparisons agree."),
            (REJECTED, "rejected", f"1 of 4 steps was replayed, and 1 comparison disagrees {HOSTILE}"),
        ):
            insert_audit(connection, source, digest, outcome, sentence)
        insert_receipts(connection, insert(connection, t.SOURCE, kind="receipts", name="provider", place="/receipts"))
        insert_dispute(connection, insert(connection, t.SOURCE, kind="coordinator", name="court", place="/court"))


def add_timeline(database: WorkloadDatabase, folder: Path, graph: str) -> None:
    """Add a trace of two devices that belongs to the run: step 1 for 60 ns, step 3 for 40 ns."""
    events = [kernel(10, 20, step=1, operator=1), kernel(40, 40, device=TWO, step=1), kernel(90, 40, step=3)]
    add_place(database, trace_at(folder, events, graph=graph).path)
    with database.writing("scene") as connection:
        connection.execute(sa.update(t.TRACE).values(run=1))


def insert_receipts(connection: sa.Connection, source: int) -> None:
    """Five receipts: two accepted, one rejected, two that nobody has checked."""
    stated = {"source": source, "key": "ab" * 32, "receipts": 5, "bytes_read": 0, "frontier": b""}
    stream, empty = insert(connection, t.STREAM, **stated), "sha256:" + "00" * 32
    for number, outcome in enumerate(("accepted", "accepted", "rejected", None, None)):
        receipt = {"stream": stream, "number": number, "sequence": number + 1, "digest": f"sha256:{number:064x}"}
        receipt |= {"model": empty, "environment": empty, "engine": HOSTILE, "sampler": "{}", "finish": "stop"}
        receipt |= {"key": "ab" * 32, "request": f"{number:024x}", "prompt_tokens": 3, "answer_tokens": 4, "bytes": 9}
        connection.execute(sa.insert(t.RECEIPT).values(**receipt))
        if outcome is not None:
            verdict = {"receipt": receipt["digest"], "audit": 1, "outcome": outcome, "sentence": HOSTILE}
            connection.execute(sa.insert(t.RECEIPT_VERDICT).values(**verdict))


def insert_dispute(connection: sa.Connection, source: int) -> None:
    """A dispute that three moves have narrowed down to one operator."""
    left = {"phase": "reveal", "level": "operators", "low": 5, "high": 6, "size": 9}
    stated = {"source": source, "name": "court/0", "number": 0, "root": "sha256:" + "cc" * 32, **left, "moves": 3}
    parties = {"prover": "aa" * 32, "challenger": "bb" * 32, "mover": "prover", "ending": HOSTILE}
    dispute = insert(connection, t.DISPUTE, **stated, **parties)
    for number, (role, low, high) in enumerate((("challenger", 0, 9), ("prover", 0, 9), ("challenger", 5, 6))):
        move = {"dispute": dispute, "number": number, "role": role, "party": "bb" * 32, "kind": "choose"}
        move |= {"summary": f"moves {number}", "made_ns": 10**18, **left, "low": low, "high": high}
        connection.execute(sa.insert(t.MOVE).values(**move, body='{"kind":"choose"}'))


def insert_audit(connection: sa.Connection, source: int, digest: str, outcome: str, sentence: str) -> None:
    """An audit that replayed steps 1 and 2 and agrees, or step 3 and does not."""
    bad = outcome == "rejected"
    stated = {"digest": digest, "source": source, "run": 1, "kind": "training", "outcome": outcome}
    made = "2026-11-23T07:00:00+00:00"
    audit = insert(connection, t.AUDIT, **stated, sentence=sentence, body="{}", steps=4, made=made)
    first, last = (3, 3) if bad else (1, 2)
    segment = {"audit": audit, "first_step": first, "last_step": last, "outcome": "differs" if bad else "agrees"}
    connection.execute(sa.insert(t.AUDITED_SEGMENT).values(**segment))
    finding = {"audit": audit, "number": 0, "check": "loss", "step": first, "allowed": 1e-4, "agrees": not bad}
    finding |= {"place": f"step {first}", "advisory": False, "detail": HOSTILE}
    connection.execute(sa.insert(t.FINDING).values(**finding, distance=3e-4 if bad else 2e-5))
    operator = {"check": "operator", "place": "n1 (aten.x), element [0]", "number": 1, "step": None, "allowed": 1.0}
    connection.execute(sa.insert(t.FINDING).values({**finding, **operator, "distance": 0.25}))


def insert(connection: sa.Connection, table: sa.Table, **values: Any) -> int:
    """Insert one row; returns its number."""
    return int(connection.execute(sa.insert(table).values(**values)).inserted_primary_key[0])
