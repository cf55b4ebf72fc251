"""Limits for one training from its own run: a verifier replays segments of it on every stack of this machine.

The limits of small models say nothing about a large one. A verifier who holds the run needs nobody else: the stacks
are compared with each other, over steps from the run's own anchors.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

from tallystick.audits.limits import Calibration, LimitsEntry
from tallystick.core.canonical_json import Json
from tallystick.core.errors import UnavailableError
from tallystick.tally.calibration.drift import Drift, entry_of
from tallystick.tally.calibration.segments import RunBench
from tallystick.tally.calibration.stacks import BASE, Stack, StackJob, Tell, machine, run_all, stacks_here


def calibrate_on(
    run: Path, folder: Path, segments_max: int, tell: Tell = lambda _: None
) -> tuple[Calibration, list[Json]]:
    """Limits for the training of `run`, from at most `segments_max` of its segments, and the distances behind them.

    Works in `folder`. Each stack replays one segment after the other, in one process at a time, because a state may be
    large.

    Raises `UnavailableError` where the run cannot be replayed, has no two anchors, or a process fails.
    """
    bench = RunBench(run)
    segments = spread(bench.run.run.anchors.present(bench.run.anchors), segments_max)
    if not segments:
        raise UnavailableError(f"{run}: no two anchors are there, and limits are measured over a segment between two")
    stacks = graph_stacks()
    figures: list[dict[str, Any]] = []
    for stack in (BASE, *(other for other in stacks if other != BASE)):
        tell(f"replaying on the stack {stack.name}")
        job = {"run": str(run), "segments": segments, "claims": str(folder / "claims"), "claiming": stack == BASE}
        task = StackJob("tallystick.tally.calibration.segments:replay_run", stack, stack.name, job)
        figures += run_all(folder, [task])[0]
    starts = sorted({row["start"] for row in figures})
    windows = sorted({row["end"] - row["start"] for row in figures})
    held_out = tuple(stack.name for stack in stacks if stack.held_out)
    calibration = Calibration(
        machine=machine(),
        torch=version("torch"),
        stacks=tuple(stack.name for stack in stacks if not stack.held_out),
        held_out=held_out,
        entries=tuple(_entry(bench, figures, held_out, w, start) for w in windows for start in starts[:2]),
    )
    return calibration, list(figures)


def spread(marks: Sequence[int], count: int) -> list[tuple[int, int]]:
    """`count` of the segments between neighbouring anchors: the first, the last, and others evenly between them."""
    every = list(pairwise(marks))
    last, gaps = len(every) - 1, max(1, count - 1)
    return [every[place] for place in sorted({last * step // gaps for step in range(count)})] if every else []


def graph_stacks() -> list[Stack]:
    """The stacks that run the same graph: a graph fixes its attention, its micro-batches and the order of rows."""
    return [
        stack
        for stack in stacks_here()
        if stack.attention == "eager" and stack.micro_batches == 1 and not stack.reverses_rows
    ]


def _entry(
    bench: RunBench, figures: list[dict[str, Any]], held_out: Sequence[str], window: int, start: int
) -> LimitsEntry:
    """The limits from step `start` on: before Adam's second moment has settled, drift is far larger."""
    fitting = [row for row in figures if row["end"] - row["start"] <= window and row["start"] >= start]
    kept, left = (
        [Drift.from_json(row["drift"]) for row in fitting if (row["stack"] in held_out) is is_held_out]
        for is_held_out in (False, True)
    )
    return entry_of(
        kept,
        left,
        window,
        family=bench.kind.family,
        optimizer=bench.kind.optimizer,
        dtype=bench.kind.dtype,
        from_step=start,
        withdrawn=(),
        parameters=bench.parameters,
    )
