"""Where the runs of the database lie, and which of their files are sent."""

from __future__ import annotations

from pathlib import Path

from tallystick.errors import MalformedError, UnavailableError
from tallystick.http.problems import Problem
from tallystick.indexing.sources import place_of
from tallystick.store.database.workload_database import WorkloadDatabase
from tallystick.store.inference import InferenceDirectory
from tallystick.store.layout import OPEN_TO_READERS, check_file_name
from tallystick.store.run import RunDirectory
from tallystick.store.statement import claims_inference

Recorded = RunDirectory | InferenceDirectory


def find_run(database: WorkloadDatabase, name: str) -> Recorded:
    """The training run or the recorded calls of that name; raises `Problem` 404 where there are none."""
    try:
        with database.sql.reading() as connection:
            path = Path(place_of(connection, "run", name if "\0" not in name else ""))
        return InferenceDirectory(path) if claims_inference(path) else RunDirectory(path)
    except UnavailableError:
        raise Problem(404, "absent", "there is no run of that name") from None


def find_training(database: WorkloadDatabase, name: str) -> RunDirectory:
    """The training run of that name; raises `Problem` 404 where there is none."""
    run = find_run(database, name)
    if not isinstance(run, RunDirectory):
        raise Problem(
            404, "absent", "these are calls of a model, which have no steps; an audit of the whole replays them"
        )
    return run


def find_file(folder: Path, name: str) -> Path:
    """A file of a run or segment; raises `Problem` 404 for all that is none, whatever stands there."""
    try:
        found = (folder / check_file_name(name)).resolve()
        if found.is_relative_to(folder.resolve()) and found.is_file():
            return found
    except (MalformedError, OSError):
        pass
    raise Problem(404, "absent", "there is no such file")


def scope_of(file: str) -> str:
    """What a caller must be allowed for this file of a run."""
    return "claims" if file == "claim.json" else "read" if file in OPEN_TO_READERS else "open"
