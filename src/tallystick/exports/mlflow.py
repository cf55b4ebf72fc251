"""Logs runs to an MLflow tracking server: as runs of their own, or beside the curves of a run that is there."""

from __future__ import annotations

import time
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from tallystick.api.database import Database
from tallystick.errors import UnavailableError
from tallystick.exports.curves import PREFIX, Point, RunSummary, points_of, summary_of

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

EXPERIMENT: Final = "tallystick"
BATCH: Final = 500
"""Half of what MLflow takes at once."""
TAG_MAX: Final = 5000


def log_mlflow(database: Database, name: str, tracking: str, run_id: str | None = None) -> str:
    """Log the curves of a run as metrics, its claim and verdicts as tags; returns the id of the run in MLflow.

    `tracking` is the URI of the server or store. With `run_id` they are added to that run, otherwise to one named
    `name` in the experiment `tallystick`; a second call adds what is new.

    Raises `UnavailableError` where there is no such run, here or there, or `mlflow-skinny` is not installed.
    """
    from tallystick.extras import require

    require("mlflow")
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient

    summary, client = summary_of(database, name), MlflowClient(tracking)
    try:
        number = run_id or _run_named(client, name)
        _log_points(client, number, database, name)
        for topic, words in _tags(summary):
            client.set_tag(number, topic, words)
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


def _log_points(client: MlflowClient, run: str, database: Database, name: str) -> None:
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


def _tags(summary: RunSummary) -> list[tuple[str, str]]:
    return [(f"tallystick.{topic}", words[:TAG_MAX]) for topic, words in summary.words().items()]
