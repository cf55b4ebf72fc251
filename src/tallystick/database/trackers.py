"""Shows runs and their verdicts where people already look: TensorBoard and MLflow."""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tallystick.core.errors import UnavailableError
from tallystick.core.lazy import require
from tallystick.database.query import DatabaseQueries, at_least
from tallystick.database.rows import AuditRow, RunRow

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient


# What other tools show of a run: its curves, how far replays drifted, its claim and its verdicts.

PREFIX: Final = "tallystick/"
CURVES: Final = ("loss", "gradient_norm", "learning_rate", "seconds")
DRIFT: Final = "drift"


@dataclass(frozen=True)
class Point:
    """One value of a curve at a step."""

    curve: str
    step: int
    value: float


@dataclass(frozen=True)
class RunSummary:
    """What is said of a run in words, by the names under which other tools show it."""

    run: RunRow
    audits: tuple[AuditRow, ...]

    @property
    def verdict(self) -> str:
        """The outcome of the newest audit; `none` without one."""
        return self.audits[-1].outcome if self.audits else "none"

    def words(self) -> Mapping[str, str]:
        """Texts by name; what was not stated is left out."""
        told = {
            "claim": self.run.claim,
            "weights": self.run.weights,
            "transcript": self.run.transcript,
            "environment": self.run.environment,
            "verdict": self.verdict,
            "audits": "\n".join(f"{each.made or ''} {each.outcome}: {each.sentence}".strip() for each in self.audits),
        }
        return {name: text for name, text in told.items() if text}


def summary_of(database: DatabaseQueries, name: str) -> RunSummary:
    """The run of this name, and its audits, oldest first; raises `UnavailableError` where there is none."""
    runs = tuple(database.runs.where(name=name).first(1))
    if not runs:
        raise UnavailableError(f"{name}: the database has no run of that name")
    return RunSummary(runs[0], tuple(database.audits.where(run=name)))


def points_of(database: DatabaseQueries, name: str) -> Iterator[Point]:
    """The recorded curves of a run step by step, and then the drift of each replayed step."""
    for row in database.steps.where(run=name):
        for curve in CURVES:
            value = getattr(row, curve)
            if value is not None:
                yield Point(curve, row.step, value)
    yield from _drift(database, name)


def _drift(database: DatabaseQueries, name: str) -> Iterator[Point]:
    """The largest distance of a step over the distance allowed, where an audit allowed any."""
    largest: defaultdict[int, float] = defaultdict(float)
    for finding in database.audits.where(run=name).findings.where(step=at_least(0)):
        if finding.allowed and finding.distance is not None and finding.step is not None:
            largest[finding.step] = max(largest[finding.step], finding.distance / finding.allowed)
    for step in sorted(largest):
        yield Point(DRIFT, step, largest[step])


# Writes runs as event files, which TensorBoard shows beside others in the same folder.

NO_FOLDER: Final = re.compile(r"[^\w.-]|^\.+")
"""What the name of a run may have that the name of a folder in another one may not."""


def write_tensorboard(database: DatabaseQueries, name: str, folder: Path) -> Path:
    """Write the curves of a run as scalars, its claim and verdicts as texts; returns the folder of the run.

    Raises `UnavailableError` where there is no such run, or `tensorboard` is not installed.
    """
    require("tensorboard")
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.plugins.scalar.summary_v2 import scalar_pb
    from tensorboard.plugins.text.summary_v2 import text_pb
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    summary, place, now = summary_of(database, name), folder / NO_FOLDER.sub("_", name), time.time()
    writer = EventFileWriter(str(place))
    try:
        for point in points_of(database, name):
            scalar = scalar_pb(f"{PREFIX}{point.curve}", point.value)
            writer.add_event(Event(step=point.step, wall_time=now, summary=scalar))
        for topic, words in summary.words().items():
            text = text_pb(f"{PREFIX}{topic}", words)
            writer.add_event(Event(step=summary.run.steps, wall_time=now, summary=text))
    finally:
        writer.close()
    return place


# Logs runs to an MLflow tracking server: as runs of their own, or beside the curves of a run that is there.

EXPERIMENT: Final = "tallystick"
BATCH: Final = 500
"""Half of what MLflow takes at once."""
TAG_MAX: Final = 5000


def log_mlflow(database: DatabaseQueries, name: str, tracking: str, run_id: str | None = None) -> str:
    """Log the curves of a run as metrics, its claim and verdicts as tags; returns the id of the run in MLflow.

    `tracking` is the URI of the server or store. With `run_id` they are added to that run, otherwise to one named
    `name` in the experiment `tallystick`; a second call adds what is new.

    Raises `UnavailableError` where there is no such run, here or there, or `mlflow-skinny` is not installed.
    """
    require("mlflow")
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient

    summary, client = summary_of(database, name), MlflowClient(tracking)
    try:
        number = run_id or _run_named(client, name)
        _log_points(client, number, database, name)
        for topic, words in summary.words().items():
            client.set_tag(number, f"tallystick.{topic}", words[:TAG_MAX])
        if run_id is None:
            client.set_terminated(number)
    except MlflowException as error:
        raise UnavailableError(f"{tracking}: MLflow refuses it: {' '.join(str(error).split())[:300]}") from None
    return number


def _run_named(client: MlflowClient, name: str) -> str:
    found = client.get_experiment_by_name(EXPERIMENT)
    experiment = client.create_experiment(EXPERIMENT) if found is None else found.experiment_id
    quoted = name.replace("'", "\\'")
    known = client.search_runs([experiment], f"tags.mlflow.runName = '{quoted}'", max_results=1)
    run: Any = known[0] if known else client.create_run(experiment, run_name=name)
    return str(run.info.run_id)


def _log_points(client: MlflowClient, run: str, database: DatabaseQueries, name: str) -> None:
    from mlflow.entities import Metric

    now, done = int(time.time() * 1000), dict[str, int]()
    for point in client.get_run(run).data.metrics:
        if point.startswith(PREFIX):
            done[point] = max(each.step for each in client.get_metric_history(run, point))
    points = (each for each in points_of(database, name) if each.step > done.get(_key(each), -1))
    while batch := list(islice(points, BATCH)):
        client.log_batch(run, metrics=[Metric(_key(each), each.value, now, each.step) for each in batch])


def _key(point: Point) -> str:
    return f"{PREFIX}{point.curve}"
