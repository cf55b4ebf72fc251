"""`tallystick.open`: the workload database in Python, here or behind a URL."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

from tallystick.core.errors import UsageError
from tallystick.core.lazy import require
from tallystick.database import remote, run_slice, workload_database
from tallystick.database.indexing import discovery
from tallystick.database.query import DatabaseQueries
from tallystick.database.replayable import ANCHOR_MEND, Discovery


class Database(DatabaseQueries):
    """What a database holds, one query for each noun, and steps of its runs; a context manager that closes it."""

    def __init__(self, source: workload_database.WorkloadDatabase | remote.ServiceAnswers) -> None:
        super().__init__(source)
        self._source: workload_database.WorkloadDatabase | remote.ServiceAnswers = source
        self._fetched = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections to it, and delete what was fetched."""
        self._fetched.close()
        self._source.close()

    def discover(self, run: str) -> Discovery:
        """What of a run can be replayed exactly, what only from outside, what is missing and where it could come from.

        A service is asked, and not believed: what it says is there shows itself when it is replayed.

        Raises `UnavailableError` where there is no such run, or its files are not where the database is.
        """
        if isinstance(self._source, workload_database.WorkloadDatabase):
            return discovery.discover(self._source, run)
        return self._source.discover(run)

    def segment(self, run: str, steps: int | range, batch_element: int | None = None) -> run_slice.RunSlice:
        """Steps of a run as they can be replayed, from the nearest state before them.

        From a service, the files between two anchors are fetched into a temporary folder, which is deleted when the
        database is closed.

        Args:
            run: the name of the run in the database.
            steps: a step, or a range of them as Python counts: `range(10, 13)` for the steps 10, 11 and 12.
            batch_element: cut one step down to this example of its batch, counted from 0: the part of its graph for
                which it is proved that examples do not mix.

        Raises:
            UnavailableError: there is no such run or step, or its files are not where the database is.
            UsageError: several steps and one example, or no steps.
        """
        wanted = range(steps, steps + 1) if isinstance(steps, int) else steps
        if not wanted or wanted.step != 1 or wanted[0] < 1:
            raise UsageError("steps: a step from 1 on, or a range of them without gaps")
        if batch_element is not None and len(wanted) > 1:
            raise UsageError("batch_element: of one step at a time")
        discovered = self.discover(run)
        if isinstance(self._source, workload_database.WorkloadDatabase):
            directory = discovery.run_directory(self._source, run)
            return run_slice.plan_slice(discovered, wanted, batch_element, directory.path)
        folder = Path(self._fetched.enter_context(TemporaryDirectory(prefix="tally-segment-"))) / "segment"
        planned = run_slice.plan_slice(discovered, wanted, batch_element, folder)
        end = min((mark for mark in discovered.anchors if mark >= wanted[-1]), default=None)
        if planned.missing or planned.anchor is None:
            return planned
        if end is None:
            return replace(planned, missing=(f"a state behind step {wanted[-1]}; {ANCHOR_MEND}",))
        # Nothing that comes is believed: `RunSlice` compares records, graphs, batches and states with the claim.
        self._source.fetch_segment(run, planned.anchor, end, folder)
        return planned


def open(place: str | Path, *, token: str | None = None) -> Database:
    """Open a workload database to ask it: a file, `sqlite:///…`, `postgresql://…`, or a service at `https://…`.

    Args:
        place: where it is.
        token: the token that the operator of a service gave.

    Raises:
        UsageError: `place` is no path or URL of a database, or a token is given for one that is no service.
        UnavailableError: there is none, or it cannot be reached.
        MalformedError: it holds the tables of another program.
    """
    if isinstance(place, str) and place.startswith(("http://", "https://")):
        require("httpx", "fastapi")
        return Database(remote.ServiceAnswers(place, token))
    if token is not None:
        raise UsageError(f"{place}: a token is for a service")
    require("sqlalchemy", "alembic")
    return Database(workload_database.WorkloadDatabase(place))
