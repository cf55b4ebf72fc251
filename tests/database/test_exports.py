"""Runs in TensorBoard and MLflow, read back with these programs' own readers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tallystick.core.errors import UnavailableError
from tallystick.database.indexing.add import add_place
from tallystick.database.indexing.audits import add_audit
from tallystick.database.query import DatabaseQueries
from tallystick.database.trackers import NO_FOLDER, log_mlflow, write_tensorboard
from tallystick.database.workload_database import WorkloadDatabase

pytestmark = pytest.mark.filterwarnings("ignore")  # MLflow's own, about the version of SQLAlchemy
FINDING = {"check": "loss", "where": "step 2", "distance": 1e-5, "allowed": 4e-5, "agrees": True}


@pytest.fixture(scope="module")
def database(honest: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DatabaseQueries]:
    """The honest run, with an audit that allowed some drift at step 2."""
    with WorkloadDatabase(tmp_path_factory.mktemp("exports") / "tally.db", writable=True) as found:
        name = add_place(found, honest, "run", tensors=False)
        claim = DatabaseQueries(found).runs.where(name=name).one().claim
        add_audit(
            found, {"verdict": "accepted", "claim": claim, "segments": [], "findings": [FINDING], "sentence": "Good."}
        )
        yield DatabaseQueries(found)


def test_tensorboard_reads_curves_claim_and_verdict(database: DatabaseQueries, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(write_tensorboard(database, "run", tmp_path)), size_guidance={"tensors": 0})
    found.Reload()
    losses = found.Tensors("tallystick/loss")
    assert [each.step for each in losses] == [row.step for row in database.steps]
    assert losses[0].tensor_proto.float_val[0] == pytest.approx(database.steps.first(1).one().loss)
    assert [each.tensor_proto.float_val[0] for each in found.Tensors("tallystick/drift")] == [0.25]
    (claim,) = found.Tensors("tallystick/claim")
    assert claim.tensor_proto.string_val[0].decode() == database.runs.one().claim
    assert found.Tensors("tallystick/verdict")[0].tensor_proto.string_val[0] == b"accepted"


@pytest.mark.parametrize(
    ("name", "folder"), [("../../up", "__.._up"), ("..", "_"), ("a/b", "a_b"), ("run-1.2", "run-1.2")]
)
def test_a_run_stays_in_its_folder(name: str, folder: str) -> None:
    assert NO_FOLDER.sub("_", name) == folder


def test_mlflow_reads_curves_claim_and_verdict(database: DatabaseQueries, tmp_path: Path) -> None:
    from mlflow.tracking import MlflowClient

    tracking = f"sqlite:///{tmp_path}/mlflow.db"
    number = log_mlflow(database, "run", tracking)
    assert log_mlflow(database, "run", tracking) == number
    client = MlflowClient(tracking)
    assert [each.step for each in client.get_metric_history(number, "tallystick/loss")] == [
        row.step for row in database.steps
    ]
    run = client.get_run(number).data
    assert run.metrics["tallystick/drift"] == 0.25
    assert run.tags["tallystick.claim"] == database.runs.one().claim
    assert run.tags["tallystick.verdict"] == "accepted"
    other = client.create_run(client.create_experiment("own"))
    assert log_mlflow(database, "run", tracking, other.info.run_id) == other.info.run_id
    assert "tallystick/loss" in client.get_run(other.info.run_id).data.metrics
    with pytest.raises(UnavailableError, match="MLflow refuses it"):
        log_mlflow(database, "run", tracking, "0" * 32)


def test_a_run_that_is_not_there_is_refused(database: DatabaseQueries, tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="other: the database has no run of that name"):
        write_tensorboard(database, "other", tmp_path)
