"""`tallystick.open`: the workload database in Python, here or behind a URL."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Self

from tallystick.errors import UsageError
from tallystick.store.database.query import Query
from tallystick.store.database.row_query import RowQuery
from tallystick.store.database.rows import (
    AnchorRow,
    AuditRow,
    BindingRow,
    ChallengeRow,
    ClaimRow,
    DeviceRow,
    DisputeRow,
    EnvironmentRow,
    EventRow,
    FindingRow,
    GraphRow,
    LinkRow,
    OperatorRow,
    ReceiptRow,
    RecordRow,
    RunRow,
    StepRow,
    TensorRow,
    TraceRow,
)

if TYPE_CHECKING:
    from tallystick.api.run_slice import RunSlice
    from tallystick.indexing.replayable import Discovery
    from tallystick.remote.service_answers import ServiceAnswers
    from tallystick.store.database.workload_database import WorkloadDatabase


class Database:
    """What a database holds, one query for each noun; a context manager that closes it.

    The other nouns of `tallystick.store.database.nouns` are reached with `about`.
    """

    def __init__(self, source: WorkloadDatabase | ServiceAnswers) -> None:
        self._source, self._fetched = source, ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections to it, and delete what was fetched."""
        self._fetched.close()
        self._source.close()

    def about(self, noun: str) -> Query[Any]:
        """All rows of a noun; raises `UsageError` where there is none of that name."""
        question = RowQuery(noun=noun)
        question.check()
        return Query(self._source, question)

    def discover(self, run: str) -> Discovery:
        """What of a run can be replayed exactly, what only from outside, what is missing and where it could come from.

        A service is asked, and not believed: what it says is there shows itself when it is replayed.

        Raises `UnavailableError` where there is no such run, or its files are not where the database is.
        """
        from tallystick.store.database.workload_database import WorkloadDatabase

        if not isinstance(self._source, WorkloadDatabase):
            return self._source.discover(run)
        from tallystick.indexing.discovery import discover

        return discover(self._source, run)

    def segment(self, run: str, steps: int | range, batch_element: int | None = None) -> RunSlice:
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
        from tallystick.api.run_slice import fetched_segment, segment_of
        from tallystick.store.database.workload_database import WorkloadDatabase

        if isinstance(self._source, WorkloadDatabase):
            return segment_of(self._source, run, steps, batch_element)
        folder = Path(self._fetched.enter_context(TemporaryDirectory(prefix="tally-segment-")))
        return fetched_segment(self._source, run, steps, batch_element, folder / "segment")

    @property
    def runs(self) -> Query[RunRow]:
        """The runs."""
        return self.about("runs")

    @property
    def records(self) -> Query[RecordRow]:
        """The records of runs, in the order of their transcripts."""
        return self.about("records")

    @property
    def steps(self) -> Query[StepRow]:
        """The steps of training runs."""
        return self.about("steps")

    @property
    def anchors(self) -> Query[AnchorRow]:
        """The full states that runs recorded."""
        return self.about("anchors")

    @property
    def graphs(self) -> Query[GraphRow]:
        """The graphs."""
        return self.about("graphs")

    @property
    def operators(self) -> Query[OperatorRow]:
        """The nodes of graphs."""
        return self.about("operators")

    @property
    def tensors(self) -> Query[TensorRow]:
        """The tensors whose digests are known."""
        return self.about("tensors")

    @property
    def bindings(self) -> Query[BindingRow]:
        """Which tensor stood at which edge."""
        return self.about("bindings")

    @property
    def claims(self) -> Query[ClaimRow]:
        """The claims."""
        return self.about("claims")

    @property
    def environments(self) -> Query[EnvironmentRow]:
        """The stacks that provers state."""
        return self.about("environments")

    @property
    def traces(self) -> Query[TraceRow]:
        """The timelines."""
        return self.about("traces")

    @property
    def events(self) -> Query[EventRow]:
        """The events of timelines."""
        return self.about("events")

    @property
    def devices(self) -> Query[DeviceRow]:
        """The devices of clusters."""
        return self.about("devices")

    @property
    def links(self) -> Query[LinkRow]:
        """The connections of devices."""
        return self.about("links")

    @property
    def audits(self) -> Query[AuditRow]:
        """The reports of audits."""
        return self.about("audits")

    @property
    def findings(self) -> Query[FindingRow]:
        """The single comparisons of audits."""
        return self.about("findings")

    @property
    def challenges(self) -> Query[ChallengeRow]:
        """What verifiers asked for."""
        return self.about("challenges")

    @property
    def receipts(self) -> Query[ReceiptRow]:
        """The receipts of answers."""
        return self.about("receipts")

    @property
    def disputes(self) -> Query[DisputeRow]:
        """The disputes."""
        return self.about("disputes")


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
    from tallystick.extras import require

    if isinstance(place, str) and place.startswith(("http://", "https://")):
        require("httpx", "fastapi")
        from tallystick.remote.service_answers import ServiceAnswers

        return Database(ServiceAnswers(place, token))
    if token is not None:
        raise UsageError(f"{place}: a token is for a service")
    from tallystick.store.database.workload_database import WorkloadDatabase

    require("sqlalchemy", "alembic")
    return Database(WorkloadDatabase(place))
