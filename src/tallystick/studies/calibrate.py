"""The calibration study: record, replay on every stack, set limits, try the cheats, write down what came out."""

from __future__ import annotations

import platform
import re
from dataclasses import dataclass
from importlib.metadata import version
from itertools import product
from pathlib import Path

from tallystick.audits import Calibration, Entry
from tallystick.audits.calibration import Family
from tallystick.studies.honest import Sample, Tell, measure_honest, record
from tallystick.studies.limits import CLAIM_MARGIN, as_limits, largest, limits_over, round_up
from tallystick.studies.power import ClaimTrial, Climb, climb_ladders, furthest_by_cheat, try_claims
from tallystick.studies.recipes import OPTIMIZERS, PRECISIONS, WINDOWS, Case, Optimizer, Precision, cases
from tallystick.studies.stacks import stacks_here

FAMILIES: tuple[Family, ...] = ("language", "image")
FROM_STEPS = (0, 8)
"""Adam's first steps, before its second moment has settled, drift far more than all later ones."""


@dataclass(frozen=True)
class Effort:
    """How much of the study is done: seeds to calibrate on, every how many states a step is replayed, trials a size."""

    seeds: int
    stride: int
    trials: int


FULL = Effort(seeds=2, stride=1, trials=300)
QUICK = Effort(seeds=1, stride=4, trials=0)


@dataclass(frozen=True)
class Study:
    """All that was measured, and the limits that follow."""

    calibration: Calibration
    samples: tuple[Sample, ...]
    claims: tuple[ClaimTrial, ...]
    climbs: tuple[Climb, ...]


def calibrate(folder: Path, effort: Effort = FULL, tell: Tell = lambda _: None) -> Study:
    """Run the whole study in `folder`; about fifteen minutes on two cores, less with `QUICK`.

    Raises:
        UnavailableError: a process of the study failed.
    """
    runs = cases(effort.seeds)
    tell("recording the runs")
    record(folder, runs)
    samples = measure_honest(folder, runs, effort.stride, tell)
    tell("trying the cheats")
    claims = try_claims(folder, [case for case in runs if not case.held_out])
    calibration = table(samples, claims)
    climbs: list[Climb] = []
    if effort.trials:
        tell("looking for the smallest cheats that are caught")
        climbs = climb_ladders(folder, runs, calibration, effort.trials)
    return Study(calibration, tuple(samples), tuple(claims), tuple(climbs))


def table(samples: list[Sample], claims: list[ClaimTrial]) -> Calibration:
    """The calibration that follows from what was measured."""
    keys = product(FAMILIES, OPTIMIZERS, PRECISIONS, WINDOWS, FROM_STEPS)
    return Calibration(
        machine=machine(),
        torch=version("torch"),
        stacks=tuple(stack.name for stack in stacks_here() if not stack.held_out),
        held_out=tuple(stack.name for stack in stacks_here() if stack.held_out),
        entries=tuple(_entry(samples, claims, *key) for key in keys),
    )


def _entry(
    samples: list[Sample],
    claims: list[ClaimTrial],
    family: Family,
    optimizer: Optimizer,
    dtype: Precision,
    window: int,
    from_step: int,
) -> Entry:
    fitting = [
        s for s in samples if belongs(s.case, family, optimizer, dtype) and s.steps <= window and s.start >= from_step
    ]
    kept, held_out = [s for s in fitting if not is_held_out(s)], [s for s in fitting if is_held_out(s)]
    honest = largest(kept)
    limits = limits_over(honest, window)
    tried = [c for c in claims if belongs(c.case, family, optimizer, dtype) and c.steps == window]
    furthest = furthest_by_cheat(tried, limits)
    return Entry(
        family=family,
        optimizer=optimizer,
        dtype=dtype,
        window=window,
        from_step=from_step,
        weights=as_limits(limits, "weights"),
        memory=as_limits(limits, "memory"),
        projection=round_up(limits["projection"]),
        loss_band=round_up(limits["loss"]),
        honest_segments=len(kept),
        held_out_segments=len(held_out),
        honest_max=rounded(honest),
        held_out_max=rounded(largest(held_out)),
        withdrawn=tuple(name for name, (excess, _) in furthest.items() if excess < CLAIM_MARGIN),
    )


def belongs(case: Case, family: str, optimizer: str, dtype: str) -> bool:
    """Whether a run is of this family, optimizer and precision."""
    return (case.family, case.optimizer, case.dtype) == (family, optimizer, dtype)


def is_held_out(sample: Sample) -> bool:
    """Whether limits are checked on this sample instead of made from it."""
    return sample.stack.held_out or sample.case.held_out


def rounded(named: dict[str, float]) -> dict[str, float]:
    """Distances with three digits, none made smaller."""
    return {name: round_up(value) for name, value in named.items()}


def machine() -> str:
    """The processor, its architecture and its GPU; nothing that names a host."""
    information = Path("/proc/cpuinfo")
    text = information.read_text(errors="replace") if information.is_file() else ""
    match = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    model = match.group(1).strip() if match else platform.processor() or "unknown processor"
    return ", ".join([model, platform.machine(), platform.system(), *_graphics()])


def _graphics() -> list[str]:
    import torch

    return [f"with {torch.cuda.get_device_name()}"] if torch.cuda.is_available() else []
