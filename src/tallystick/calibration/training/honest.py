"""Measures honest drift: every stack replays the runs of the study, and its distance from the claims is measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tallystick.calibration.training.drift import Drift
from tallystick.calibration.training.processes import StackJob, deal, run_all, workers
from tallystick.calibration.training.recipes import CORPUS_FILE, STEPS, Case, corpus
from tallystick.calibration.training.stacks import BASE, Stack, stack_named, stacks_for, stacks_here
from tallystick.documents.files import write_atomically

Tell = Callable[[str], None]
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


def stretches(stride: int) -> list[tuple[int, tuple[int, ...]]]:
    """Stretches of 32 and 8 steps, and single steps from every state whose number is a multiple of `stride`."""
    eights = [(start, (start + 1, start + 8)) for start in range(8, STEPS, 8) if start != 32]
    started = {start for start, _ in (*LONG, *eights)}
    singles = [(start, (start + 1,)) for start in range(0, STEPS, stride) if start not in started]
    return [*LONG, *eights, *singles]


def record(folder: Path, cases: list[Case]) -> None:
    """Record the runs of the study under `folder`."""
    write_atomically(folder / CORPUS_FILE, corpus().encode())
    shares = deal([asdict(case) for case in cases], workers())
    run_all(
        folder,
        (
            StackJob(
                "tallystick.calibration.training.recording",
                BASE,
                f"record {number}",
                {"folder": str(folder), "cases": share},
            )
            for number, share in enumerate(shares)
        ),
    )


def measure_honest(folder: Path, cases: list[Case], stride: int, tell: Tell) -> list[Sample]:
    """The drift of every stack from the claims of the base stack; held-out stacks save their end states."""
    tell("replaying on the stack that recorded")
    shares = deal(cases, workers())
    run_all(folder, [_task(folder, share, BASE, f"base {number}", 1) for number, share in enumerate(shares)])
    tell("replaying on all other stacks")
    tasks = [
        _task(folder, share, stack, f"{stack.name} {number}", 1 if stack.held_out else stride)
        for stack in reversed(stacks_here())
        for number, share in enumerate(deal(cases, max(1, workers() // 4)))
        if stack != BASE
    ]
    return [sample for entries in run_all(folder, tasks) for sample in _samples(entries, cases)]


def ends_folder(folder: Path, stack: Stack, case: Case) -> Path:
    """The folder in which a stack saves the end states of one run."""
    return folder / "ends" / stack.name.replace(" ", "_").replace(",", "") / case.name


def _samples(entries: list[dict[str, Any]], cases: list[Case]) -> Iterator[Sample]:
    named = {case.name: case for case in cases}
    for entry in entries:
        yield Sample(
            named[entry["case"]],
            stack_named(entry["stack"]),
            entry["start"],
            entry["end"],
            entry["same_bits"],
            Drift.from_json(entry["drift"]),
        )


def _task(folder: Path, cases: list[Case], stack: Stack, name: str, stride: int) -> StackJob:
    runs = [
        {
            "path": str(folder / case.name),
            "stretches": LONG if case.only_long else stretches(stride),
            "claims": None if stack == BASE else str(ends_folder(folder, BASE, case)),
            "keep": str(ends_folder(folder, stack, case)) if stack == BASE or stack.held_out else None,
        }
        for case in cases
        if _takes(stack, case)
    ]
    return StackJob("tallystick.calibration.training.segments", stack, name, {"runs": runs})


def _takes(stack: Stack, case: Case) -> bool:
    """Whether a stack replays a run: held-out runs only on held-out stacks, runs for long segments only on some."""
    if stack not in stacks_for(case.model):
        return False
    if stack == BASE:
        return True
    return stack.takes_long if case.only_long else stack.held_out or not case.held_out
