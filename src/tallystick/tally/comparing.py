"""`tallystick.diff`: where two runs, or two openings of one step, begin to differ."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tallystick.audits.differences.difference import Difference
from tallystick.audits.differences.operators import diff_openings
from tallystick.audits.differences.runs import DiffRequest, diff_runs
from tallystick.core.errors import UsageError
from tallystick.engines.torch import tensors as torch_tensors
from tallystick.formats.store.directories import OpeningDirectory, StatementFolder, read_statement
from tallystick.formats.store.run import RunDirectory


def diff(
    first: Path | str,
    second: Path | str,
    *,
    operator: bool = False,
    replay: bool = True,
    out: Path | str | None = None,
    device: str = "cpu",
) -> Difference:
    """Where two runs part: the settings, the first record, the first tensor, and on request the first operator.

    Neither run is trusted: files are read strictly, and replays use each run's graph and this machine's kernels.
    Whether a run is what it claims to be is the question of an audit, not of a difference.

    Args:
        first: the directory of a training run, or of opened operators (`tally open --operators`).
        second: another one of the same kind.
        operator: also open the first step that differs on both sides, and name the first operator that differs.
        replay: where only anchors far apart show a difference, find the step by replaying from the last equal one.
        out: keep the openings and states of the replays in this directory, which must be empty or not there.
        device: replay on `cpu` or `cuda`.

    Raises:
        MalformedError: a file is not what it should be.
        ProofError: the records of an opening contradict each other.
        UnavailableError: a file is missing, or the device is not here.
        UsageError: the two are not of one kind, or `out` is not empty, or the device is unknown.
    """
    if device != "cpu":
        torch_tensors.require_device(device)
    sides = read_statement(Path(first)), read_statement(Path(second))
    if isinstance(sides[0], OpeningDirectory) and isinstance(sides[1], OpeningDirectory):
        return Difference((str(first), str(second)), operators=diff_openings(sides[0].path, sides[1].path))
    if not (isinstance(sides[0], RunDirectory) and isinstance(sides[1], RunDirectory)):
        raise UsageError(f"{first} holds {_kind(sides[0])}, {second} {_kind(sides[1])}: two runs, or two openings")
    if out is None:
        with tempfile.TemporaryDirectory() as folder:
            return diff_runs(sides[0], sides[1], DiffRequest(Path(folder), replay, operator, device))
    work = Path(out)
    if work.exists() and any(work.iterdir()):
        raise UsageError(f"{work}: not empty; choose another directory")
    work.mkdir(parents=True, exist_ok=True)
    return diff_runs(sides[0], sides[1], DiffRequest(work, replay, operator, device))


def _kind(folder: StatementFolder) -> str:
    if isinstance(folder, OpeningDirectory):
        return "opened operators"
    return "a training run" if isinstance(folder, RunDirectory) else "recorded calls"
