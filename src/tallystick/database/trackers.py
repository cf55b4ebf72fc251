"""Shows runs and their verdicts where people already look: TensorBoard and MLflow."""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tallystick.core.errors import UnavailableError
from tallystick.core.lazy import require
from tallystick.database.query import DatabaseQueries, at_least
from tallystick.database.rows import RunRow

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient


# What other tools show of a run: its curves, how far replays drifted, its claim and its verdicts.

PREFIX: Final = "tallystick/"
CURVES: Final = ("loss", "gradient_norm", "learning_rate", "seconds")
DRIFT: Final = "drift"


Point = tuple[str, int, float]
"""One value of a curve: its name, the step, and the value."""


def summary_of(database: DatabaseQueries, name: str) -> tuple[RunRow, dict[str, str]]:
    """The run of this name, and what is said of it in words; what was not stated is left out.

    `verdict` is the outcome of the newest audit, or `none`. Raises `UnavailableError` where there is no such run.
    """
    runs, audits = list(database.runs.where(name=name).first(1)), list(database.audits.where(run=name))
    if not runs:
        raise UnavailableError(f"{name}: the database has no run of that name")
    [run] = runs
    texts = {
        "claim": run.claim,
        "weights": run.weights,
        "transcript": run.transcript,
        "environment": run.environment,
        "verdict": audits[-1].outcome if audits else "none",
        "audits": "\n".join(f"{audit.made or ''} {audit.outcome}: {audit.sentence}".strip() for audit in audits),
    }
    return run, {topic: text for topic, text in texts.items() if text}


def points_of(database: DatabaseQueries, name: str) -> Iterator[Point]:
    """The recorded curves of a run step by step, and then the drift of each replayed step.

    Drift is the largest distance of a step over the distance allowed, where an audit allowed any.
    """
    for row in database.steps.where(run=name):
        for curve in CURVES:
            value = getattr(row, curve)
            if value is not None:
                yield curve, row.step, value
    largest: defaultdict[int, float] = defaultdict(float)
    for finding in database.audits.where(run=name).findings.where(step=at_least(0)):
        if finding.allowed and finding.distance is not None and finding.step is not None:
            largest[finding.step] = max(largest[finding.step], finding.distance / finding.allowed)
    for step in sorted(largest):
        yield DRIFT, step, largest[step]


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

    run, texts = summary_of(database, name)
    place, now = folder / NO_FOLDER.sub("_", name), time.time()
    writer = EventFileWriter(str(place))
    try:
        for curve, step, value in points_of(database, name):
            writer.add_event(Event(step=step, wall_time=now, summary=scalar_pb(f"{PREFIX}{curve}", value)))
        for topic, text in texts.items():
            writer.add_event(Event(step=run.steps, wall_time=now, summary=text_pb(f"{PREFIX}{topic}", text)))
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

    (_, texts), client = summary_of(database, name), MlflowClient(tracking)
    try:
        number = run_id or _run_named(client, name)
        _log_points(client, number, database, name)
        for topic, text in texts.items():
            client.set_tag(number, f"tallystick.{topic}", text[:TAG_MAX])
        if run_id is None:
            client.set_terminated(number)
    except MlflowException as error:
        raise UnavailableError(f"{tracking}: MLflow refuses it: {' '.join(str(error).split())[:300]}") from None
    return number


def _run_named(client: MlflowClient, name: str) -> str:
    there = client.get_experiment_by_name(EXPERIMENT)
    experiment = client.create_experiment(EXPERIMENT) if there is None else there.experiment_id
    quoted = name.replace("'", "\\'")
    known = client.search_runs([experiment], f"tags.mlflow.runName = '{quoted}'", max_results=1)
    run: Any = known[0] if known else client.create_run(experiment, run_name=name)
    return str(run.info.run_id)


def _log_points(client: MlflowClient, run: str, database: DatabaseQueries, name: str) -> None:
    from mlflow.entities import Metric

    now, done = int(time.time() * 1000), dict[str, int]()
    for key in client.get_run(run).data.metrics:
        if key.startswith(PREFIX):
            done[key] = max(value.step for value in client.get_metric_history(run, key))
    points = ((f"{PREFIX}{curve}", step, value) for curve, step, value in points_of(database, name))
    new = ((key, step, value) for key, step, value in points if step > done.get(key, -1))
    while batch := list(islice(new, BATCH)):
        client.log_batch(run, metrics=[Metric(key, value, now, step) for key, step, value in batch])
