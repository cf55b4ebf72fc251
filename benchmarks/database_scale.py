"""The workload database at 10⁶ trace events and 10⁵ records, on SQLite and PostgreSQL, ÷ the same by hand.

`DATABASE_SCALE=10 python -m benchmarks database_scale` takes ten times as many: 10⁷ events and 10⁶ records. By hand is
the driver alone, on tables, indexes and settings of the same kind: `executemany` on SQLite, COPY on PostgreSQL, in one
transaction. Ingest is the whole of `add_trace` or `add_run`: each line is read, parsed strictly, compared with its
canonical bytes and hashed into the tree, which no raw insert does. Writing is our insert of the same rows from memory,
chunk by chunk and alternately with the raw one. PostgreSQL is a throw-away server on this machine, with fsync off for
both. A first page is `Query.page()` of 100 rows ÷ its SQL with all rows fetched, for every view, in random order, with
1,000 rows in every other table; a documented query is what `tally query` reads ÷ its SQL, each on a connection of its
own. Growth is the time of 20 keyed look-ups at the large size ÷ that at the small one.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Final

import sqlalchemy as sa

from benchmarks.database_ingest import Workload, ingest
from benchmarks.database_scene import event_start, fill_tensors, fill_the_rest, kinds, tensor_digest
from benchmarks.figure import Figure, Goal
from benchmarks.measure import Arm, Round, interval, median_ratio, take_rounds, time_arm
from tallystick.database.query import PAGE, PAGE_MAX, DatabaseQueries, Query, RowQuery
from tallystick.database.rows import NOUNS
from tallystick.database.sql import USEFUL_QUERIES, select
from tallystick.database.workload_database import WorkloadDatabase, compiled

SCALE: Final = float(os.environ.get("DATABASE_SCALE", "1"))
QUICK_S: Final = 0.2
"""Seconds: what takes less is done often."""
LOOKUPS: Final = 20
"""Look-ups in one arm of a round."""


def figures(quick: bool) -> Iterator[Figure]:
    large = (20_000, 5_000) if quick else (int(1_000_000 * SCALE), int(100_000 * SCALE))
    small, rng = (5_000, 2_000) if quick else (100_000, 10_000), random.Random(16)
    rounds = Rounds(20, 2) if quick else Rounds(100, 5 if SCALE <= 1 else 2)
    with TemporaryDirectory() as folder, ExitStack() as stack:
        few, many = (Workload.at(Path(folder) / name, *size) for name, size in (("few", small), ("many", large)))
        for kind, places in kinds(Path(folder), stack):
            with ExitStack() as of_kind:
                opened = (of_kind.enter_context(WorkloadDatabase(place, writable=True)) for place in places)
                yield from _figures_of(kind, opened, (few, many), rounds, rng)


@dataclass(frozen=True)
class Rounds:
    """How often quick things are done, and slow ones."""

    quick: int
    slow: int


def _figures_of(
    kind: str,
    fresh: Iterator[WorkloadDatabase],
    sizes: tuple[Workload, Workload],
    rounds: Rounds,
    rng: random.Random,
) -> Iterator[Figure]:
    few, many = sizes
    small, large = next(fresh), next(fresh)
    few.add_to(small)
    yield from ingest(kind, large, (next(fresh), next(fresh)), many, rng)
    for database, size in ((small, few), (large, many)):
        fill_tensors(database, size.records)
        fill_the_rest(database)
        with database.sql.engine.begin() as connection:
            connection.exec_driver_sql("ANALYZE")
    yield from _growth(kind, (small, large), sizes, rounds.quick, rng)
    yield _views(kind, large, rounds.quick, rng)
    yield _documented(kind, large, rounds, rng)


def _views(kind: str, database: WorkloadDatabase, count: int, rng: random.Random) -> Figure:
    questions = {name: RowQuery(noun=name, limit=PAGE) for name in NOUNS}
    with database.sql.engine.connect() as connection:
        driver = connection.connection.driver_connection
        assert driver is not None
        arms: dict[str, Arm] = {}
        for name, question in questions.items():
            arms[f"{name} by hand"] = partial(_fetched, driver, _by_hand(question, connection.dialect))
            arms[name] = Query[Any](database, question).page
        rounds = take_rounds(arms, count, rng)
    rounds_of = dict.fromkeys(questions, rounds)
    return _worst(f"database_scale: {kind} first pages", f"{kind}: first page of a view", rounds_of, rng)


def _documented(kind: str, database: WorkloadDatabase, rounds: Rounds, rng: random.Random) -> Figure:
    rounds_of: dict[str, Sequence[Round]] = {}
    for query in USEFUL_QUERIES:
        by_hand = partial(_connected, database, query.sql)
        arms: dict[str, Arm] = {
            f"{query.name} by hand": by_hand,
            query.name: partial(select, database, query.sql, PAGE_MAX),
        }
        count = rounds.quick if time_arm(by_hand).wall < QUICK_S else rounds.slow
        rounds_of[query.name] = take_rounds(arms, count, rng)
    return _worst(f"database_scale: {kind} documented queries", f"{kind}: a documented query", rounds_of, rng)


def _worst(name: str, what: str, rounds_of: Mapping[str, Sequence[Round]], rng: random.Random) -> Figure:
    """The pair whose ratio is the largest; the others stand beside it."""
    ratios = {pair: median_ratio(pair, f"{pair} by hand", "wall")(rounds) for pair, rounds in rounds_of.items()}
    worst = max(ratios, key=ratios.__getitem__)
    rounds = rounds_of[worst]
    value = interval(rounds, median_ratio(worst, f"{worst} by hand", "wall"), rng)
    ours, raw = (median(spent[arm].wall for spent in rounds) for arm in (worst, f"{worst} by hand"))
    details = {"milliseconds": 1e3 * ours, "by hand": 1e3 * raw, **ratios}
    what = f"{what} ÷ the same SQL by hand: the worst, {worst}"
    return Figure(name, what, value, len(rounds), "wall", "×", Goal(1.2), details=details)


def _by_hand(question: RowQuery, dialect: sa.Dialect) -> str:
    statement = compiled(question, tuple(dict.fromkeys((*question.asked_noun.types, *question.columns_of_order()))))
    return str(statement.compile(dialect=dialect, compile_kwargs={"literal_binds": True}))


def _fetched(driver: Any, sql: str) -> None:
    driver.execute(sql).fetchall()


def _connected(database: WorkloadDatabase, sql: str) -> None:
    """On a connection of its own, as `tally query` takes one."""
    with database.sql.engine.connect() as connection:
        driver = connection.connection.driver_connection
        assert driver is not None
        driver.execute(sql).fetchmany(PAGE_MAX)
        connection.invalidate()


def _growth(
    kind: str,
    databases: tuple[WorkloadDatabase, WorkloadDatabase],
    sizes: tuple[Workload, Workload],
    count: int,
    rng: random.Random,
) -> Iterator[Figure]:
    few, many = sizes
    for what, look_up in LOOK_UPS.items():
        arms: dict[str, Arm] = {
            name: partial(_repeat, look_up, database, size, random.Random(16))
            for name, database, size in zip(("small", "large"), databases, sizes, strict=True)
        }
        rounds = take_rounds(arms, count, rng)
        value = interval(rounds, median_ratio("large", "small", "wall"), rng)
        details = {"milliseconds": 1e3 * median(spent["large"].wall for spent in rounds) / LOOKUPS}
        sized = f"{many.events:,} events and {many.records:,} records ÷ at {few.events:,} and {few.records:,}"
        name, what_is = f"database_scale: {kind} {what}", f"{kind}: {what} at {sized}"
        yield Figure(name, what_is, value, count, "wall", "×", Goal(1.5), details=details)


def _repeat(look_up: LookUp, database: WorkloadDatabase, size: Workload, rng: random.Random) -> None:
    for _ in range(LOOKUPS):
        assert look_up(DatabaseQueries(database), size, rng).page().rows


LookUp = Callable[[DatabaseQueries, Workload, random.Random], Query[Any]]
LOOK_UPS: Final[dict[str, LookUp]] = {
    "one event by trace and number": lambda db, size, rng: db.events.where(
        trace="trace", number=rng.randrange(size.events)
    ),
    "one step by run and number": lambda db, size, rng: db.steps.where(run="run", step=rng.randrange(1, size.records)),
    "a tensor by its digest": lambda db, size, rng: db.tensors.where(digest=tensor_digest(rng.randrange(size.records))),
    "a page of events by time": lambda db, size, rng: (
        db.events.where(trace="trace").by("start_ns").between(event_start(rng.randrange(size.events)), 1 << 62)
    ),
}
