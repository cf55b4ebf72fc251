"""The calibration study: limits from honest drift, checked against cheats, and the published figures."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any, Final

from tallystick.audits.limits import Calibration, Family, LimitsEntry
from tallystick.tally.calibration.cheats import ClaimTrial, climb_ladders, furthest_by_cheat, try_claims
from tallystick.tally.calibration.drift import entry_of, honest_over, largest_of, limits_of, limits_over, rounded
from tallystick.tally.calibration.runs import (
    OPTIMIZERS,
    PRECISIONS,
    WINDOWS,
    Sample,
    cases,
    measure_honest,
    record,
)
from tallystick.tally.calibration.stacks import STACKS, Tell, machine, stacks_here

FAMILIES: Final[tuple[Family, ...]] = ("language", "image")
FROM_STEPS: Final = (0, 8)
"""First steps of the entries: before step 8 Adam's second moment has not settled, and drift is far larger."""
CLAIM_MARGIN: Final = 2.0
"""A cheat counts as caught if it lies at least this many times beyond a limit in every trial."""


@dataclass(frozen=True)
class StudySize:
    """The size of a study.

    `seeds` are calibrated on; `long_seeds` more serve long segments only. A single step is replayed from every
    `stride`-th state. Each size of a cheat is tried `trials` times.
    """

    seeds: int
    long_seeds: int
    stride: int
    trials: int


FULL: Final = StudySize(seeds=2, long_seeds=12, stride=1, trials=300)
QUICK: Final = StudySize(seeds=1, long_seeds=4, stride=8, trials=0)


def calibrate(
    folder: Path, effort: StudySize = FULL, also: Calibration | None = None, tell: Tell = lambda _: None
) -> tuple[Calibration, dict[str, Any]]:
    """Run the whole study in `folder`: the limits, and every figure behind them as JSON values (docs/data/power.json).

    The limits cover this machine, and the machines on which `also` was measured.

    Raises:
        UnavailableError: a process of the study failed.
    """
    runs = cases(effort.seeds, effort.long_seeds)
    usual = [case for case in runs if not case.only_long]
    tell("recording the runs")
    record(folder, runs)
    samples = measure_honest(folder, runs, effort.stride, tell)
    tell("trying the cheats")
    claims = try_claims(folder, [case for case in usual if not case.held_out])
    calibration = table(samples, claims, also)
    ladders: list[dict[str, Any]] = []
    if effort.trials:
        tell("looking for the smallest cheats that are caught")
        ladders = climb_ladders(folder, usual, calibration, effort.trials)
    return calibration, {
        "machine": calibration.machine,
        "torch": calibration.torch,
        "python": platform.python_version(),
        "ladders_machine": machine(),
        "calibration": str(calibration.digest_as("calibration")),
        "honest": _honest(samples),
        "cheats": _cheats(calibration, claims),
        "ladders": ladders,
    }


def table(samples: list[Sample], claims: list[ClaimTrial], also: Calibration | None = None) -> Calibration:
    """The calibration from the measurements on this machine, and from those in `also`."""
    kinds = product(FAMILIES, OPTIMIZERS, PRECISIONS, WINDOWS, FROM_STEPS)
    others = {} if also is None else {(*_kind(entry), entry.window, entry.from_step): entry for entry in also.entries}
    return Calibration(
        machine=f"{machine()}; {also.machine}" if also else machine(),
        torch=f"{version('torch')}; {also.torch}" if also else version("torch"),
        stacks=tuple(stack.name for stack in stacks_here() if not stack.held_out),
        held_out=tuple(stack.name for stack in stacks_here() if stack.held_out),
        entries=tuple(
            _entry(kind, window, start, samples, claims, others[(*kind, window, start)] if also else None)
            for *kind, window, start in kinds
        ),
    )


def _entry(
    kind: Any, window: int, start: int, samples: list[Sample], claims: list[ClaimTrial], also: LimitsEntry | None
) -> LimitsEntry:
    """The limits of one kind of training over segments of up to `window` steps from step `start` on."""
    kind = tuple(kind)
    fitting = [s for s in samples if s.case.key == kind and s.steps <= window and s.start >= start]
    kept = [sample.drift for sample in fitting if not sample.is_held_out]
    tried = [trial for trial in claims if trial.case.key == kind and trial.steps == window]
    furthest = furthest_by_cheat(tried, limits_over(honest_over(kept, also), window))
    return entry_of(
        kept,
        [sample.drift for sample in fitting if sample.is_held_out],
        window,
        also,
        family=kind[0],
        optimizer=kind[1],
        dtype=kind[2],
        from_step=start,
        withdrawn=tuple(name for name, (excess, _) in furthest.items() if excess < CLAIM_MARGIN),
        parameters=max((sample.case.parameters for sample in fitting), default=None),
    )


def _kind(entry: LimitsEntry) -> tuple[str, str, str]:
    return entry.family, entry.optimizer, entry.dtype


# The published figures of a study.


def _honest(samples: list[Sample]) -> list[dict[str, Any]]:
    """For every stack, first steps and later ones apart: the largest distances, and how often bits were equal."""
    rows = []
    for *kind, window, late, stack in product(FAMILIES, OPTIMIZERS, PRECISIONS, WINDOWS, (False, True), STACKS):
        group = [
            sample
            for sample in samples
            if sample.case.key == tuple(kind)
            and (sample.stack, sample.steps) == (stack, window)
            and (sample.start >= FROM_STEPS[-1]) == late
        ]
        if group:
            rows.append(
                dict(zip(("family", "optimizer", "dtype"), kind, strict=True))
                | {
                    "window": window,
                    "late": late,
                    "stack": stack.name,
                    "segments": len(group),
                    "held_out": sum(sample.is_held_out for sample in group),
                    "same_bits": sum(sample.same_bits for sample in group),
                    "largest": rounded(largest_of(sample.drift.distances for sample in group)),
                    "undetermined": max(sample.drift.undetermined for sample in group),
                }
            )
    return rows


def _cheats(calibration: Calibration, claims: list[ClaimTrial]) -> list[dict[str, Any]]:
    """For every entry and named cheat: distance ÷ limit of the clearest check, in the trial where it is smallest."""
    rows = []
    for entry in calibration.entries:
        trials = [t for t in claims if t.case.key == _kind(entry) and t.steps == entry.window]
        for cheat, (times, check) in furthest_by_cheat(trials, limits_of(entry)).items():
            rows.append(
                {
                    "family": entry.family,
                    "optimizer": entry.optimizer,
                    "dtype": entry.dtype,
                    "window": entry.window,
                    "from_step": entry.from_step,
                    "cheat": cheat,
                    "times_limit": float(f"{times:.3g}"),
                    "check": check,
                    "trials": sum(trial.cheat == cheat for trial in trials),
                }
            )
    return rows
