"""The calibration study: record runs, replay them on every stack, set limits, and try cheats against the limits."""

from __future__ import annotations

import platform
import re
from dataclasses import dataclass
from importlib.metadata import version
from itertools import product
from pathlib import Path

from tallystick.audits.calibration import Calibration, Family, LimitsEntry
from tallystick.calibration.training.honest import Sample, Tell, measure_honest, record
from tallystick.calibration.training.limits import CLAIM_MARGIN, as_limits, largest, largest_of, limits_over, round_up
from tallystick.calibration.training.power import ClaimTrial, Climb, climb_ladders, furthest_by_cheat, try_claims
from tallystick.calibration.training.recipes import OPTIMIZERS, PRECISIONS, WINDOWS, Case, Optimizer, Precision, cases
from tallystick.calibration.training.stacks import stacks_here

FAMILIES: tuple[Family, ...] = ("language", "image")
FROM_STEPS = (0, 8)
"""First steps of the entries: before step 8 Adam's second moment has not settled, and drift is far larger."""


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


FULL = StudySize(seeds=2, long_seeds=12, stride=1, trials=300)
QUICK = StudySize(seeds=1, long_seeds=4, stride=8, trials=0)


@dataclass(frozen=True)
class Study:
    """All measurements, and the limits that follow from them."""

    calibration: Calibration
    samples: tuple[Sample, ...]
    claims: tuple[ClaimTrial, ...]
    climbs: tuple[Climb, ...]


def calibrate(
    folder: Path, effort: StudySize = FULL, also: Calibration | None = None, tell: Tell = lambda _: None
) -> Study:
    """Run the whole study in `folder`; its limits cover this machine and the machines on which `also` was measured.

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
    climbs: list[Climb] = []
    if effort.trials:
        tell("looking for the smallest cheats that are caught")
        climbs = climb_ladders(folder, usual, calibration, effort.trials)
    return Study(calibration, tuple(samples), tuple(claims), tuple(climbs))


@dataclass(frozen=True)
class Group:
    """The segments that one entry of a calibration covers."""

    family: Family
    optimizer: Optimizer
    dtype: Precision
    window: int
    from_step: int

    def holds(self, case: Case) -> bool:
        """Whether a run is of this family, optimizer and precision."""
        return belongs(case, self.family, self.optimizer, self.dtype)

    def samples(self, samples: list[Sample]) -> list[Sample]:
        """The samples that the limits of this group must accept."""
        return [s for s in samples if self.holds(s.case) and s.steps <= self.window and s.start >= self.from_step]

    def entry_of(self, table: Calibration) -> LimitsEntry:
        """The entry for this group in another table."""
        wanted = (self.family, self.optimizer, self.dtype, self.window, self.from_step)
        return next(e for e in table.entries if (e.family, e.optimizer, e.dtype, e.window, e.from_step) == wanted)


def table(samples: list[Sample], claims: list[ClaimTrial], also: Calibration | None = None) -> Calibration:
    """The calibration from the measurements on this machine, and from those in `also`."""
    groups = [Group(*key) for key in product(FAMILIES, OPTIMIZERS, PRECISIONS, WINDOWS, FROM_STEPS)]
    return Calibration(
        machine=f"{machine()}; {also.machine}" if also else machine(),
        torch=f"{version('torch')}; {also.torch}" if also else version("torch"),
        stacks=tuple(stack.name for stack in stacks_here() if not stack.held_out),
        held_out=tuple(stack.name for stack in stacks_here() if stack.held_out),
        entries=tuple(_entry(group, samples, claims, group.entry_of(also) if also else None) for group in groups),
    )


def _entry(group: Group, samples: list[Sample], claims: list[ClaimTrial], also: LimitsEntry | None) -> LimitsEntry:
    fitting = group.samples(samples)
    kept, held_out = [s for s in fitting if not is_held_out(s)], [s for s in fitting if is_held_out(s)]
    honest = largest_of([largest(kept), *((also.honest_max, also.held_out_max) if also else ())])
    limits = limits_over(honest, group.window)
    tried = [trial for trial in claims if group.holds(trial.case) and trial.steps == group.window]
    furthest = furthest_by_cheat(tried, limits)
    return LimitsEntry(
        family=group.family,
        optimizer=group.optimizer,
        dtype=group.dtype,
        window=group.window,
        from_step=group.from_step,
        weights=as_limits(limits, "weights"),
        memory=as_limits(limits, "memory"),
        projection=round_up(limits["projection"]),
        loss_band=round_up(limits["loss"]),
        honest_segments=len(kept) + (also.honest_segments + also.held_out_segments if also else 0),
        held_out_segments=len(held_out),
        honest_max=rounded(honest),
        held_out_max=rounded(largest(held_out)),
        withdrawn=tuple(name for name, (excess, _) in furthest.items() if excess < CLAIM_MARGIN),
        parameters=max((sample.case.parameters for sample in fitting), default=None),
    )


def belongs(case: Case, family: str, optimizer: str, dtype: str) -> bool:
    """Whether a run is of this family, optimizer and precision."""
    return (case.family, case.optimizer, case.dtype) == (family, optimizer, dtype)


def is_held_out(sample: Sample) -> bool:
    """Whether this sample is used to check limits and not to set them."""
    return sample.stack.held_out or sample.case.held_out


def rounded(named: dict[str, float]) -> dict[str, float]:
    """Distances rounded up to three digits."""
    return {name: round_up(value) for name, value in named.items()}


def machine() -> str:
    """The processor, its architecture and its GPU, without the name of the host."""
    information = Path("/proc/cpuinfo")
    text = information.read_text(errors="replace") if information.is_file() else ""
    match = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    model = match.group(1).strip() if match else platform.processor() or "unknown processor"
    return ", ".join([model, platform.machine(), platform.system(), *_graphics()])


def _graphics() -> list[str]:
    import torch

    return [f"with {torch.cuda.get_device_name()}"] if torch.cuda.is_available() else []
