"""What of a run can be replayed exactly, what can only be looked at from outside, and what is missing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path
from shlex import quote
from typing import Final

import sqlalchemy as sa

from tallystick.core.digests import Digest
from tallystick.core.errors import UnavailableError
from tallystick.database.indexing.sources import of_run
from tallystick.database.replayable import (
    ANCHOR_MEND,
    BATCH_MEND,
    GRAPH_MEND,
    RECIPE_MEND,
    STATE_AFTER,
    Discovery,
    ReplayKind,
    StepRange,
)
from tallystick.database.schema import ANCHOR, RUN, SOURCE, STEP
from tallystick.database.workload_database import WorkloadDatabase
from tallystick.formats.records import batch_file, graph_file
from tallystick.formats.store.directories import claims_inference
from tallystick.formats.store.run import RunDirectory

PAGE: Final = 10_000
SHA: Final = "sha256:"


@dataclass(frozen=True)
class _StepNeeds:
    """What one step reads beside the state: the lack of a graph or a batch in words, empty where nothing lacks."""

    step: int
    graph: str
    batch: str
    has_recipe: bool

    @property
    def is_blocked(self) -> bool:
        """Whether nothing here computes the step from the state before it."""
        return bool(self.batch or (self.graph and not self.has_recipe))


def run_directory(database: WorkloadDatabase, run: str) -> RunDirectory:
    """The files of a run by its name in the database.

    Raises `UnavailableError` where the database has no such run of training, or its files are not on this machine.
    """
    with database.sql.reading() as connection:
        place = connection.execute(of_run(run, SOURCE.c.place)).scalar()
    if place is None:
        raise UnavailableError(f"{run}: no run in the database has that name")
    if not Path(place).is_dir():
        raise UnavailableError(f"{run}: {place} is not there; `tally db list` shows the places")
    if claims_inference(Path(place)):
        raise UnavailableError(
            f"{run}: calls of a model, which have no steps; `tally audit {quote(place)}` replays them"
        )
    return RunDirectory(Path(place))


def discover(database: WorkloadDatabase, run: str) -> Discovery:
    """Look at the rows and the files of a run; no state is opened.

    Raises `UnavailableError` where the database has no such run, or its files are not on this machine.
    """
    directory = run_directory(database, run)
    with database.sql.reading() as connection:
        number = connection.execute(of_run(run, RUN.c.id)).scalar_one()
        marks = connection.execute(sa.select(ANCHOR.c.step).where(ANCHOR.c.run == number)).scalars().all()
        there = directory.anchors.present(marks)
        needs = list(_needs(connection, number, directory))
    return Discovery(run, there, tuple(_merged(_judged(needs, there, frozenset(marks)))))


def _needs(connection: sa.Connection, run: int, directory: RunDirectory) -> Iterator[_StepNeeds]:
    has_recipe = directory.has_recipe
    spec_graph, no_graph = connection.execute(sa.select(RUN.c.graph, RUN.c.no_graph).where(RUN.c.id == run)).one()
    files = _Files(directory)
    columns = sa.select(STEP.c.step, STEP.c.batch, STEP.c.graph, STEP.c.no_graph).where(STEP.c.run == run)
    rows = connection.execute(columns.order_by(STEP.c.step).execution_options(yield_per=PAGE))
    for step, batch, graph, why in rows:
        reason = why or no_graph
        lacks = f"no step graph: {reason}" if reason else files.graph(graph or spec_graph, is_own=graph is not None)
        yield _StepNeeds(step, lacks, files.batch(batch), has_recipe)


class _Files:
    """Which graphs and batches of a run are there; each file is looked for once."""

    def __init__(self, directory: RunDirectory) -> None:
        self._directory = directory
        self._graphs: dict[str | None, str] = {}
        batches = directory.path / "batches"
        self._batches = {each.name for each in batches.iterdir()} if batches.is_dir() else set[str]()
        self._data = "" if directory.data_path.is_dir() else "the data of the recipe"

    def graph(self, root: str | None, is_own: bool) -> str:
        if root not in self._graphs:
            path = self._directory.path / graph_file(Digest(root)) if is_own and root else self._directory.graph_path
            lacks = "no step graph" if root is None else f"graph {root}"
            self._graphs[root] = "" if root is not None and path.is_file() else lacks
        return self._graphs[root]

    def batch(self, batch: str | None) -> str:
        if batch is None or not batch.startswith(SHA):
            return self._data
        return "" if Path(batch_file(Digest(batch))).name in self._batches else "batches"


def _judged(needs: Iterable[_StepNeeds], there: tuple[int, ...], marks: frozenset[int]) -> Iterator[StepRange]:
    """One range a step: each is judged by the states around it that are there."""
    steps = {step_needs.step: step_needs for step_needs in needs}
    last = max(steps, default=0)
    ends = [*there, last] if not there or there[-1] < last else list(there)
    if not there or there[0] > 0:
        ends = [0, *ends]
    for start, end in pairwise(ends):
        yield from _segment(steps, start, end, start in there, end in there)


def _segment(steps: dict[int, _StepNeeds], start: int, end: int, has_start: bool, has_end: bool) -> Iterator[StepRange]:
    """The steps between two neighbouring states that are there."""
    blocked = "" if has_start else f"the state after step {start}"
    inner = [steps[step] for step in range(start + 1, end + 1) if step in steps]
    is_exact = has_end and not blocked and not any(needs.is_blocked for needs in inner)
    for needs in inner:
        yield _range_of(needs, blocked, is_exact)
        if needs.is_blocked:
            blocked = blocked or "the state before it, which no replay reaches"


def _range_of(needs: _StepNeeds, blocked: str, is_exact: bool) -> StepRange:
    def found(replay: ReplayKind, missing: str = "", mend: str = "") -> StepRange:
        return StepRange(needs.step, needs.step, replay, missing, mend)

    if needs.batch:
        return found(ReplayKind.MISSING, needs.batch, BATCH_MEND)
    if needs.is_blocked:
        return found(ReplayKind.BLACK_BOX, needs.graph, GRAPH_MEND)
    if blocked:
        return found(ReplayKind.BLACK_BOX, blocked, ANCHOR_MEND)
    if needs.graph:
        return found(ReplayKind.EXACT if is_exact else ReplayKind.TRAJECTORY, needs.graph, RECIPE_MEND)
    return found(ReplayKind.EXACT) if is_exact else found(ReplayKind.TRAJECTORY, STATE_AFTER, ANCHOR_MEND)


def _merged(ranges: Iterable[StepRange]) -> Iterator[StepRange]:
    """Neighbours that say the same, as one range."""
    for _, group in groupby(ranges, key=lambda each: (each.replay, each.missing, each.mend)):
        members = list(group)
        first, last = members[0], members[-1]
        yield StepRange(first.first, last.last, first.replay, first.missing, first.mend)
