"""Questions: what they find, in which order, and what they refuse."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import sqlalchemy as sa

from tallystick.core.errors import MalformedError, UnavailableError, UsageError
from tallystick.database.bulk import insert_many, inserted
from tallystick.database.nouns import Noun
from tallystick.database.query import (
    DatabaseQueries,
    FieldCondition,
    FieldTest,
    Page,
    Query,
    RowQuery,
    at_least,
    below,
    between,
    starts_with,
    stated,
)
from tallystick.database.rows import NOUNS
from tallystick.database.schema import DOCUMENT, RUN, SOURCE, STEP
from tallystick.database.sql import select
from tallystick.database.workload_database import WorkloadDatabase, compiled
from tests.support.postgresql import database

LOSSES = {1: 5.0, 2: 4.5, 3: None, 4: 3.5, 5: 3.0}


@pytest.fixture
def filled(empty: WorkloadDatabase) -> DatabaseQueries:
    """Two runs of five steps each."""
    with empty.writing("") as connection:
        for name, status in (("one", "claimed"), ("two", "recording")):
            source = inserted(connection, SOURCE, kind="run", name=name, place=f"/runs/{name}")
            counts = {"records": 6, "steps": 5, "bytes_read": 0, "frontier": b""}
            run = inserted(connection, RUN, source=source, kind="training", status=status, **counts)
            rows = [{"run": run, "step": step, "record": step, "loss": loss} for step, loss in LOSSES.items()]
            connection.execute(sa.insert(STEP), rows)
    return DatabaseQueries(empty)


def steps(query: Query[Any]) -> list[tuple[str, int]]:
    return [(row.run, row.step) for row in query]


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ({"step": 2}, [2]),
        ({"step": range(2, 4)}, [2, 3]),
        ({"step": {1, 5}}, [1, 5]),
        ({"loss": None}, [3]),
        ({"loss": stated()}, [1, 2, 4, 5]),
        ({"loss": at_least(4.5)}, [1, 2]),
        ({"loss": below(3.5)}, [5]),
        ({"loss": between(3.5, 5)}, [2, 4]),
        ({"run": starts_with("on"), "step": at_least(4)}, [4, 5]),
        ({"step": []}, []),
    ],
)
def test_conditions(filled: DatabaseQueries, asked: dict[str, Any], found: list[int]) -> None:
    assert steps(filled.steps.where(run="one").where(**asked)) == [("one", step) for step in found]
    assert filled.steps.where(run="one").where(**asked).count() == len(found)


def test_totals_are_added_up_where_the_rows_are(filled: DatabaseQueries) -> None:
    assert filled.steps.where(run="one").total("loss") == 16.0
    assert filled.steps.where(run="none").total("loss") == 0
    assert filled.runs.total("steps") == 10
    with pytest.raises(UsageError, match="status is no number"):
        filled.runs.total("status")


def test_pages_follow_each_other_without_a_gap(filled: DatabaseQueries) -> None:
    seen, after = [], None
    while True:
        page: Page[Any] = filled.steps.page(after, size=3)
        seen += [(row.run, row.step) for row in page.rows]
        after = page.after
        if after is None:
            break
    assert seen == [(run, step) for run in ("one", "two") for step in LOSSES]


def test_descending_and_first(filled: DatabaseQueries) -> None:
    assert steps(filled.steps.newest_first().first(2)) == [("two", 5), ("two", 4)]
    assert [run.name for run in filled.runs.by("name", descending=True)] == ["two", "one"]


def test_related_rows(filled: DatabaseQueries) -> None:
    assert steps(filled.runs.where(status="claimed").steps.where(step=1)) == [("one", 1)]
    assert [run.name for run in filled.steps.where(loss=None, run="two").runs] == ["two"]


def test_one(filled: DatabaseQueries) -> None:
    assert filled.runs.where(name="one").one().place == "/runs/one"
    with pytest.raises(UnavailableError, match="none is as asked"):
        filled.runs.where(name="three").one()
    with pytest.raises(UsageError, match="several"):
        filled.runs.one()


@pytest.mark.parametrize(
    ("ask", "why"),
    [
        (lambda db: db.steps.where(los=1), "no such field los: did you mean loss"),
        (lambda db: db.steps.where(step="first"), "step is a whole number, and 'first' is not"),
        (lambda db: db.steps.where(step=True), "step is a whole number"),
        (lambda db: db.runs.where(name=3), "name is text"),
        (lambda db: db.steps.by("loss"), "no order by loss"),
        (lambda db: db.about("stepps"), "did you mean steps"),
        (lambda db: db.runs.about("devices"), "runs are not related to devices"),
        (lambda db: db.steps.where(step=range(0, 9, 2)), "a range without steps"),
        (lambda db: db.steps.page(after=(1,)), "a place has 2 values"),
    ],
)
def test_refused(filled: DatabaseQueries, ask: Any, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        ask(filled)


def test_a_question_travels_as_json(filled: DatabaseQueries) -> None:
    question = filled.runs.where(status="claimed").steps.where(step=range(1, 3)).question
    again = RowQuery.from_bytes(question.to_bytes(), "question")
    assert again == question
    assert steps(Query(filled._source, again)) == [("one", 1), ("one", 2)]


def test_a_question_that_takes_too_long_is_ended(empty: WorkloadDatabase) -> None:
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i FROM n) SELECT count(*) FROM n"
    with pytest.raises(UsageError, match=r"longer than 0.2 seconds"), empty.sql.answering(0.2) as connection:
        connection.exec_driver_sql(endless)
    finite = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 300000) SELECT count(*) FROM n"
    with empty.sql.answering(60) as connection:
        assert connection.exec_driver_sql(finite).scalar_one() == 300_000
    with empty.sql.reading() as connection:  # no limit stays behind
        assert connection.exec_driver_sql(finite).scalar_one() == 300_000


def test_the_size_of_a_question_is_limited(filled: DatabaseQueries) -> None:
    one = {"field": "step", "their_field": "step", "question": {"noun": "steps"}}
    wide: Any = {"noun": "steps", "related": [one] * 63, "limit": 1}
    assert len(filled._source.page(RowQuery.model_validate_json(json.dumps(wide))).rows) == 1
    wide["related"][0] = {**one, "question": {"noun": "steps", "related": [one]}}
    with pytest.raises(UsageError, match="65 questions"):
        RowQuery.model_validate_json(json.dumps(wide)).check()
    conditions = (FieldCondition(field="step", asked=FieldTest(one_of=tuple(range(1000)))),) * 10
    RowQuery(noun="steps", conditions=conditions[:9]).check()
    with pytest.raises(UsageError, match="10010 values"):
        RowQuery(noun="steps", conditions=conditions).check()


def test_rows_that_are_there_are_no_mistake_of_ours(filled: DatabaseQueries, empty: WorkloadDatabase) -> None:
    row = (1, 9, 9, "sha")
    with empty.writing("") as connection:
        insert_many(connection, STEP, [row], ("run", "step", "record", "batch"))
    with pytest.raises(MalformedError, match="states one thing twice"), empty.writing("") as connection:
        insert_many(connection, STEP, [row], ("run", "step", "record", "batch"))
    assert filled.steps.where(run="one").count() == 6


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def plans(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[sa.Connection]:
    """A connection to an empty database, which says how it would answer; it sorts only where no index can serve."""
    with ExitStack() as stack:
        is_file = request.param == "sqlite"
        place = f"{tmp_path_factory.mktemp('plans')}/tally.db" if is_file else stack.enter_context(database())
        connection = stack.enter_context(stack.enter_context(WorkloadDatabase(place, writable=True)).sql.reading())
        if not is_file:
            connection.exec_driver_sql("SET LOCAL enable_sort = off")
        yield connection


@pytest.mark.parametrize("noun", NOUNS.values(), ids=lambda noun: noun.name)
def test_an_index_gives_the_rows_in_order(plans: sa.Connection, noun: Noun) -> None:
    explain = "EXPLAIN QUERY PLAN" if plans.dialect.name == "sqlite" else "EXPLAIN"
    for order in (None, *noun.orders):
        for descending in (False, True):
            question = RowQuery(noun=noun.name, order=order, descending=descending, limit=100)
            asked = compiled(question, (*noun.types, *question.columns_of_order()))
            text = asked.compile(dialect=plans.dialect, compile_kwargs={"literal_binds": True})
            plan = [row[-1] for row in plans.exec_driver_sql(f"{explain} {text}")]
            # an incremental sort orders only the rows of one value, as an index gives them
            sorts = ("USE TEMP B-TREE FOR ORDER BY", "Sort  (")  # not "Sort Key:"
            assert not any(line.lstrip(" ->").startswith(sorts) for line in plan), plan


def test_claims_of_one_digest_are_on_no_page_twice_and_none_is_lost(
    filled: DatabaseQueries, empty: WorkloadDatabase
) -> None:
    with empty.writing("") as connection:
        connection.execute(sa.insert(DOCUMENT).values(digest="sha256:1", noun="claim", body="{}"))
        connection.execute(sa.update(RUN).values(claim="sha256:1"))
    first = filled.claims.page(size=1)
    assert [row.run for row in (*first.rows, *filled.claims.page(first.after, size=1).rows)] == ["one", "two"]


def test_reading_sql_leaves_the_connection_able_to_write(filled: DatabaseQueries, empty: WorkloadDatabase) -> None:
    assert select(empty, "SELECT name FROM runs ORDER BY name", 10).rows == [("one",), ("two",)]
    with empty.writing("") as connection:
        connection.execute(sa.update(RUN).values(title="written"))
    assert {run.title for run in filled.runs} == {"written"}
