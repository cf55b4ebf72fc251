"""Many rows at once: after them PostgreSQL knows what a table holds, and a page of one parent is read in its order."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from tallystick.database.bulk import insert_many, inserted
from tallystick.database.query import FieldCondition, FieldTest, RowQuery
from tallystick.database.schema import CLUSTER, EVENT, SOURCE, TRACE
from tallystick.database.workload_database import WorkloadDatabase, compiled

NAMES = ("trace", "number", "kind", "name", "device", "start_ns", "duration_ns")
EVENTS = 10_000
QUESTION = RowQuery(
    noun="events",
    conditions=(
        FieldCondition(field="trace", asked=FieldTest(equal="one")),
        FieldCondition(field="start_ns", asked=FieldTest(at_least=EVENTS // 2)),
    ),
    order="start_ns",
    limit=100,
)


def test_a_page_of_one_trace_is_read_in_its_order(empty: WorkloadDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tallystick.database.bulk.MANY", EVENTS)
    with empty.writing("") as connection:
        trace = _trace(connection)
        rows = ((trace, number, "kernel", "gemm", "gpu0", number, 1) for number in range(EVENTS))
        assert insert_many(connection, EVENT, rows, NAMES) == EVENTS
    statement = compiled(QUESTION, tuple(QUESTION.asked_noun.types)).compile(
        dialect=empty.sql.engine.dialect, compile_kwargs={"literal_binds": True}
    )
    explain = "EXPLAIN QUERY PLAN" if empty.sql.engine.dialect.name == "sqlite" else "EXPLAIN"
    with empty.sql.reading() as connection:
        plan = connection.exec_driver_sql(f"{explain} {statement}".replace("%", "%%")).all()
    text = " ".join(map(str, plan))
    assert "event_start" in text
    assert "Sort" not in text
    assert "ORDER BY" not in text


def _trace(connection: sa.Connection) -> int:
    source = inserted(connection, SOURCE, kind="trace", name="one", place="/one")
    cluster = inserted(connection, CLUSTER, digest="sha256:" + "0" * 64)
    return inserted(
        connection, TRACE, source=source, cluster=cluster, digest="d", program="p", clock="c", events=EVENTS
    )
