"""Limits for one training from its own run: a verifier replays segments of it on every stack of this machine.

The limits of small models say nothing about a large one. A verifier who holds the run needs nobody else: the stacks
are compared with each other, over steps from the run's own anchors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

from tallystick.audits.limits import Calibration, LimitsEntry
from tallystick.core.canonical_json import Json
from tallystick.core.errors import UnavailableError
from tallystick.tally.calibration.training.honest import Tell, as_limits, distances, largest_of, limits_over, round_up
from tallystick.tally.calibration.training.run_segments import RunBench
from tallystick.tally.calibration.training.stacks import BASE, Drift, Stack, StackJob, run_all, stacks_here
from tallystick.tally.calibration.training.study import machine, rounded

MODULE = "tallystick.tally.calibration.training.run_segments"


@dataclass(frozen=True)
class Measured:
    """The drift of one stack over one segment."""

    stack: str
    start: int
    end: int
    drift: Drift

    @property
    def steps(self) -> int:
        """The length of the segment."""
        return self.end - self.start


@dataclass(frozen=True)
class OwnLimits:
    """The limits, and every distance that they rest on."""

    calibration: Calibration
    figures: list[Json]


def calibrate_on(run: Path, folder: Path, segments_max: int, tell: Tell = lambda _: None) -> OwnLimits:
    """Limits for the training of `run`, from at most `segments_max` of its segments; works in `folder`.

    Each stack replays one segment after the other, in one process at a time, because a state may be large.

    Raises `UnavailableError` where the run cannot be replayed, has no two anchors, or a process fails.
    """
    bench = RunBench(run)
    segments = spread(bench.run.run.anchors.present(bench.run.anchors), segments_max)
    if not segments:
        raise UnavailableError(f"{run}: no two anchors are there, and limits are measured over a segment between two")
    figures: list[dict[str, Any]] = []
    for stack in (BASE, *(each for each in graph_stacks() if each != BASE)):
        tell(f"replaying on the stack {stack.name}")
        job = {"run": str(run), "segments": segments, "claims": str(folder / "claims"), "claiming": stack == BASE}
        figures += run_all(folder, [StackJob(MODULE, stack, stack.name, job)])[0]
    return OwnLimits(_table(bench, figures), list(figures))


def spread(marks: Sequence[int], count: int) -> list[tuple[int, int]]:
    """`count` of the segments between neighbouring anchors: the first, the last, and others evenly between them."""
    every = list(pairwise(marks))
    last, gaps = len(every) - 1, max(1, count - 1)
    return [every[place] for place in sorted({last * each // gaps for each in range(count)})] if every else []


def graph_stacks() -> list[Stack]:
    """The stacks that run the same graph: a graph fixes its attention, its micro-batches and the order of rows."""
    return [
        stack
        for stack in stacks_here()
        if stack.attention == "eager" and stack.micro_batches == 1 and not stack.reverses_rows
    ]


def _table(bench: RunBench, figures: list[dict[str, Any]]) -> Calibration:
    found = [Measured(each["stack"], each["start"], each["end"], Drift.from_json(each["drift"])) for each in figures]
    stacks, starts = graph_stacks(), sorted({each.start for each in found})
    windows = sorted({each.steps for each in found})
    return Calibration(
        machine=machine(),
        torch=version("torch"),
        stacks=tuple(stack.name for stack in stacks if not stack.held_out),
        held_out=tuple(stack.name for stack in stacks if stack.held_out),
        entries=tuple(_entry(bench, found, window, start) for window in windows for start in starts[:2]),
    )


def _entry(bench: RunBench, found: list[Measured], window: int, start: int) -> LimitsEntry:
    """The limits from step `start` on: before Adam's second moment has settled, drift is far larger."""
    fitting = [each for each in found if each.steps <= window and each.start >= start]
    held = {stack.name for stack in graph_stacks() if stack.held_out}
    honest = largest_of(distances(each.drift) for each in fitting if each.stack not in held)
    limits = limits_over(honest, window)
    count = sum(1 for each in fitting if each.stack in held)
    return LimitsEntry(
        family=bench.kind.family,
        optimizer=bench.kind.optimizer,
        dtype=bench.kind.dtype,
        window=window,
        from_step=start,
        weights=as_limits(limits, "weights"),
        memory=as_limits(limits, "memory"),
        projection=round_up(limits["projection"]),
        loss_band=round_up(limits["loss"]),
        honest_segments=len(fitting) - count,
        held_out_segments=count,
        honest_max=rounded(honest),
        held_out_max=rounded(largest_of(distances(each.drift) for each in fitting if each.stack in held)),
        withdrawn=(),
        parameters=bench.parameters,
    )
