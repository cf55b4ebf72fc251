"""`tallystick.diff`: where two runs, or two openings of one step, begin to differ."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tallystick.api.verdict_text import printable
from tallystick.differences.difference import Difference, StateDifference
from tallystick.differences.fields import FieldDifference
from tallystick.differences.operators import OpeningsDifference, diff_openings
from tallystick.differences.runs import DiffRequest, diff_runs
from tallystick.errors import UsageError
from tallystick.store.run import RunDirectory
from tallystick.store.statement import OpeningDirectory, StatementFolder, read_statement

FIELDS_SHOWN = 12
TENSORS_SHOWN = 3


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
        UnavailableError: a file is missing.
        UsageError: the two are not of one kind, or `out` is not empty, or the device is unknown.
    """
    if device not in ("cpu", "cuda"):
        raise UsageError(f"--device {device}: cpu or cuda")
    found = read_statement(Path(first)), read_statement(Path(second))
    if isinstance(found[0], OpeningDirectory) and isinstance(found[1], OpeningDirectory):
        return Difference((str(first), str(second)), operators=diff_openings(found[0].path, found[1].path))
    if not (isinstance(found[0], RunDirectory) and isinstance(found[1], RunDirectory)):
        raise UsageError(f"{first} holds {_kind(found[0])}, {second} {_kind(found[1])}: two runs, or two openings")
    if out is None:
        with tempfile.TemporaryDirectory() as folder:
            return diff_runs(found[0], found[1], DiffRequest(Path(folder), replay, operator, device))
    work = Path(out)
    if work.exists() and any(work.iterdir()):
        raise UsageError(f"{work}: not empty; choose another directory")
    work.mkdir(parents=True, exist_ok=True)
    return diff_runs(found[0], found[1], DiffRequest(work, replay, operator, device))


def difference_lines(found: Difference) -> list[str]:
    """A difference as lines for people, causes before what follows from them."""
    lines = [f"{found.found.upper()}  {found.names[0]} / {found.names[1]}"]
    lines += [f"begins       {found.begins}"] * bool(found.begins)
    lines += _fields("spec", found.spec)
    lines += _fields("environment", found.environment)
    if found.operators is None or found.opened_step is not None:
        lines += _records(found)
    if found.state is not None:
        lines += _state(found.state)
    if found.operators is not None:
        lines += _operators(found.operators, found.opened_step)
    lines += [f"not compared: {each}" for each in found.open]
    lines += [f"note: {each}" for each in found.notes]
    return [printable(line) for line in lines]


def _kind(folder: StatementFolder) -> str:
    if isinstance(folder, OpeningDirectory):
        return "opened operators"
    return "a training run" if isinstance(folder, RunDirectory) else "recorded calls"


def _fields(title: str, fields: tuple[FieldDifference, ...]) -> list[str]:
    lines = [f"{title:<12} {each}" for each in fields[:FIELDS_SHOWN]]
    if len(fields) > FIELDS_SHOWN:
        lines.append(f"{title:<12} and {len(fields) - FIELDS_SHOWN} more; --json lists all of them")
    return lines


def _records(found: Difference) -> list[str]:
    steps = str(found.steps[0]) if found.steps[0] == found.steps[1] else f"{found.steps[0]} / {found.steps[1]}"
    if found.records is None:
        return [f"records      no difference in {steps} steps"]
    agreeing = f"; equal there: {', '.join(found.records.agreeing)}" if found.records.agreeing else ""
    lines = [f"records      the first that differs is step {found.records.step} of {steps}{agreeing}"]
    return [*lines, *(f"             {each}" for each in found.records.fields)]


def _state(state: StateDifference) -> list[str]:
    when = f"after step {state.step}" if state.step else "before step 1"
    known = "" if state.equal_until is None else f", equal after step {state.equal_until}" * (state.equal_until > 0)
    known = known or (", equal before step 1" if state.equal_until == 0 else "")
    how = "by replaying here" if state.source == "replays" else "in the anchors"
    count = f"{len(state.tensors)} tensor{' differs' if len(state.tensors) == 1 else 's differ'}"
    lines = [f"states       {when} {count} ({how}){known}"]
    lines += [f"             {each}" for each in state.tensors[:TENSORS_SHOWN]]
    if len(state.tensors) > TENSORS_SHOWN:
        lines.append(f"             and {len(state.tensors) - TENSORS_SHOWN} more; --json lists all of them")
    return lines


def _operators(found: OpeningsDifference, step: int | None) -> list[str]:
    where = "" if step is None else f" of step {step}"
    lines = [f"graphs       {each}" for each in found.graphs]
    if found.sources:
        shown = ", ".join(found.sources[:FIELDS_SHOWN]) + (", …" if len(found.sources) > FIELDS_SHOWN else "")
        count = "1 input" if len(found.sources) == 1 else f"{len(found.sources)} inputs"
        lines.append(f"inputs       {count}{where} differing: {shown}")
    if found.operator is None:
        return lines if found.graphs else [*lines, f"operator     none{where} gives another result"]
    named = found.operator
    does = "reads equal values and gives others" if named.departs else "is the first with another result"
    lines.append(f"operator     {named.title} {does}")
    lines += [f"             {each}" for each in named.results]
    if named.shares is not None:
        mine, theirs = (f"{each:.3g}" for each in named.shares)
        lines.append(f"             {mine} / {theirs} of its error bound away from the exact result")
    return [*lines, f"             {named.others} operators after it differ too"]
