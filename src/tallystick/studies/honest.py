"""Measures honest drift: every stack replays every run of the study, and its distance from the claims is noted."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tallystick.studies.drift import Drift
from tallystick.studies.recipes import STEPS, Case
from tallystick.studies.stacks import BASE, Stack, finish, stack_named, stacks_for, start_on

Tell = Callable[[str], None]
AT_ONCE = 2
LONG = ((0, (1, 8, 32)), (32, (33, 40, 64)))


@dataclass(frozen=True)
class Sample:
    """The drift of one stack over one segment of one run."""

    case: Case
    stack: Stack
    start: int
    end: int
    same_bits: bool
    drift: Drift

    @property
    def steps(self) -> int:
        """The length of the segment."""
        return self.end - self.start


def stretches(stack: Stack) -> list[tuple[int, tuple[int, ...]]]:
    """Stretches of 32 and 8 steps, and single ones: from every state where cheats are held against the stack."""
    keeps_all = stack == BASE or stack.held_out
    eights = [(start, (start + 1, start + 8)) for start in range(8, STEPS, 8 if keeps_all else 16) if start != 32]
    started = {start for start, _ in (*LONG, *eights)}
    singles = [(start, (start + 1,)) for start in range(0, STEPS, 1 if keeps_all else 4) if start not in started]
    return [*LONG, *eights, *singles]


def record(folder: Path, cases: list[Case]) -> None:
    """Record the runs of the study under `folder`."""
    job = _write_job(folder, "record", {"folder": str(folder), "cases": [asdict(case) for case in cases]})
    finish(start_on(BASE, "tallystick.studies.recording", job), "recording the runs")


def measure_honest(
    folder: Path, cases: list[Case], stacks: Iterable[Stack], tell: Tell = lambda _: None
) -> list[Sample]:
    """The drift of every stack from the claims of the base stack; held-out stacks keep their end states."""
    tell(BASE.name)
    _run_all(folder, cases, [BASE])
    samples: list[Sample] = []
    waiting = [stack for stack in stacks if stack != BASE]
    while waiting:
        now, waiting = waiting[:AT_ONCE], waiting[AT_ONCE:]
        tell(", ".join(stack.name for stack in now))
        samples.extend(_run_all(folder, cases, now))
    return samples


def ends_folder(folder: Path, stack: Stack, case: Case) -> Path:
    """Where a stack keeps the end states of one run."""
    return folder / "ends" / stack.name.replace(" ", "_").replace(",", "") / case.name


def _run_all(folder: Path, cases: list[Case], stacks: list[Stack]) -> list[Sample]:
    jobs = [(stack, _job(folder, cases, stack)) for stack in stacks]
    running = [(stack, job, start_on(stack, "tallystick.studies.segments", job)) for stack, job in jobs]
    for stack, _, process in running:
        finish(process, f"replaying on {stack.name}")
    return [sample for _, job, _ in running for sample in _samples(job, cases)]


def _samples(job: Path, cases: list[Case]) -> Iterator[Sample]:
    named = {case.name: case for case in cases}
    for found in json.loads(job.with_suffix(".out.json").read_text()):
        drift = Drift.from_json(found.pop("drift"))
        case, stack = named[found.pop("case")], stack_named(found.pop("stack"))
        yield Sample(case, stack, **found, drift=drift)


def _job(folder: Path, cases: list[Case], stack: Stack) -> Path:
    runs = [
        {
            "path": str(folder / case.name),
            "stretches": stretches(stack),
            "claims": None if stack == BASE else str(ends_folder(folder, BASE, case)),
            "keep": str(ends_folder(folder, stack, case)) if stack == BASE or stack.held_out else None,
        }
        for case in cases
        if stack in stacks_for(case.model)
    ]
    return _write_job(folder, stack.name.replace(" ", "_").replace(",", ""), {"runs": runs})


def _write_job(folder: Path, name: str, job: dict[str, Any]) -> Path:
    path = folder / "jobs" / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(job))
    return path
