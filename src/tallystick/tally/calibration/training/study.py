"""The calibration study: limits against cheats, the smallest that are caught, and the published figures."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any

from tallystick.audits.limits import Calibration, Family, LimitsEntry
from tallystick.core.canonical_json import Json
from tallystick.tally.calibration.training.honest import (
    CLAIM_MARGIN,
    OPTIMIZERS,
    PRECISIONS,
    WINDOWS,
    Case,
    Optimizer,
    Precision,
    Sample,
    Tell,
    as_limits,
    cases,
    ends_folder,
    excess,
    largest,
    largest_of,
    limits_of,
    limits_over,
    measure_honest,
    record,
    round_up,
)
from tallystick.tally.calibration.training.stacks import (
    BASE,
    STACKS,
    Drift,
    StackJob,
    deal,
    run_all,
    stacks_for,
    stacks_here,
    workers,
)
from tallystick.verdicts.evidence import clopper_pearson

# The smallest cheats that are caught: named cheats against the limits, and ladders of sizes with intervals.

LADDERS: dict[str, tuple[float, ...]] = {
    "learning rate": (1e-6, 3e-6, 1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3),
    "gradient noise": (1e-6, 1e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3),
    "tokens in one step": (1, 2, 4, 8, 16, 32, 64, 128),
    "undeclared rows in each step": (1, 2, 4, 8),
}
CLIMBED_WINDOWS = (1, 8)
LONGER_TRIALS = 60
"""The trials of longer segments; if 60 of 60 are caught, the share caught is at least 95 %."""


@dataclass(frozen=True)
class Ladder:
    """Sizes of one family of cheats, ascending, and the number of trials of each at one window."""

    kind: str
    sizes: tuple[float, ...]
    window: int
    trials: int


@dataclass(frozen=True)
class ClaimTrial:
    """One named cheat compared with the replay of one stack, `reference`."""

    case: Case
    cheat: str
    reference: str
    steps: int
    drift: Drift


@dataclass(frozen=True)
class Rate:
    """How often one size was caught, and `by` which check."""

    size: float
    caught: int
    tried: int
    by: Mapping[str, int]

    @property
    def interval(self) -> tuple[float, float]:
        """The two-sided 95 % interval of the share caught (Clopper & Pearson 1934)."""
        return clopper_pearson(self.caught, self.tried)

    def shows(self, share: float) -> bool:
        """Whether at least `share` is caught, with 95 % confidence on one side."""
        return clopper_pearson(self.caught, self.tried, 0.9)[0] >= share

    def to_json(self) -> Json:
        """The rate as JSON values."""
        low, high = self.interval
        return {
            "size": self.size,
            "caught": self.caught,
            "tried": self.tried,
            "interval": [round(low, 4), round(high, 4)],
            "by": dict(self.by),
        }


@dataclass(frozen=True)
class Climb:
    """The sizes of one family of cheats that were tried on one group of runs, ascending."""

    optimizer: str
    dtype: str
    kind: str
    window: int
    rates: tuple[Rate, ...]

    def smallest(self, share: float) -> Rate | None:
        """The smallest size that is shown to be caught in at least `share` of all cases."""
        return next((rate for rate in self.rates if rate.shows(share)), None)


def try_claims(folder: Path, cases: list[Case]) -> list[ClaimTrial]:
    """Try every named cheat on every run, against the stacks that saved their end states."""
    shares = deal([_with_references(folder, case) for case in cases], workers())
    tasks = [
        StackJob("tallystick.tally.calibration.training.trials", BASE, f"claims {number}", {"runs": share})
        for number, share in enumerate(shares)
    ]
    named = {case.name: case for case in cases}
    return [_claim_trial(entry, named) for entries in run_all(folder, tasks) for entry in entries]


def _claim_trial(entry: dict[str, Any], named: Mapping[str, Case]) -> ClaimTrial:
    cheat = f"{entry['kind']} {entry['size']:g}"
    drift = Drift.from_json(entry["drift"])
    return ClaimTrial(named[entry["case"]], cheat, entry["reference"], entry["steps"], drift)


def furthest_by_cheat(trials: list[ClaimTrial], limits: Mapping[str, float]) -> dict[str, tuple[float, str]]:
    """For every cheat: the largest distance ÷ limit and its path, in the trial where that ratio is smallest."""
    weakest: dict[str, tuple[float, str]] = {}
    for trial in trials:
        shown = excess(trial.drift, limits)
        weakest[trial.cheat] = min(weakest.get(trial.cheat, shown), shown)
    return weakest


def climb_ladders(folder: Path, cases: list[Case], calibration: Calibration, trials: int) -> list[Climb]:
    """Try ladders of sizes on the language models of every optimizer and precision."""
    language = [case for case in cases if case.family == "language"]
    keys = sorted({(case.optimizer, case.dtype) for case in language})
    ladders = [
        Ladder(kind, sizes, window, trials if window == 1 else LONGER_TRIALS)
        for window in CLIMBED_WINDOWS
        for kind, sizes in LADDERS.items()
    ]
    tasks = [
        _climb_task(folder, [case for case in language if (case.optimizer, case.dtype) == key], calibration, ladder)
        for ladder in ladders
        for key in keys
    ]
    return [_climb(task.job, rungs) for task, rungs in zip(tasks, run_all(folder, tasks), strict=True)]


def _climb_task(folder: Path, cases: list[Case], calibration: Calibration, ladder: Ladder) -> StackJob:
    key = (cases[0].optimizer, cases[0].dtype)
    job = {
        "group": list(key),
        "ladder": asdict(ladder),
        "limits": {str(entry.from_step): limits_of(entry) for entry in _entries(calibration, key, ladder.window)},
        "runs": [_with_references(folder, case) for case in cases],
    }
    return StackJob(
        "tallystick.tally.calibration.training.trials",
        BASE,
        f"climb {'-'.join(key)} {ladder.kind} {ladder.window}",
        job,
    )


def _entries(calibration: Calibration, key: tuple[str, str], window: int) -> Iterator[LimitsEntry]:
    for entry in calibration.entries:
        if entry.family == "language" and (entry.optimizer, entry.dtype) == key and entry.window == window:
            yield entry


def _climb(job: dict[str, Any], rungs: list[dict[str, Any]]) -> Climb:
    optimizer, dtype = job["group"]
    rates = tuple(Rate(rung["size"], rung["caught"], rung["tried"], rung["by"]) for rung in rungs)
    return Climb(optimizer, dtype, job["ladder"]["kind"], job["ladder"]["window"], rates)


def _with_references(folder: Path, case: Case) -> dict[str, Any]:
    held_out = [stack for stack in stacks_for(case.model) if stack.held_out and stack in stacks_here()]
    return {"path": str(folder / case.name), "references": [str(ends_folder(folder, s, case)) for s in held_out]}


# The calibration study: record runs, replay them on every stack, set limits, and try cheats against the limits.

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


# The published figures of a study: the content of `docs/data/power.json`.

SHARES = (0.95, 0.99)


def figures_of(study: Study) -> dict[str, Any]:
    """Every figure behind the limits, as JSON values."""
    return {
        "machine": study.calibration.machine,
        "torch": study.calibration.torch,
        "python": platform.python_version(),
        "ladders_machine": machine(),
        "calibration": str(study.calibration.digest_as("calibration")),
        "honest": _honest(study),
        "cheats": _cheats(study),
        "ladders": [_ladder(climb) for climb in study.climbs],
    }


def _honest(study: Study) -> list[dict[str, Any]]:
    """For every stack, first steps and later ones apart: the largest distances, and how often bits were equal."""
    found = []
    for family, optimizer, dtype, window, late, stack in product(
        FAMILIES, OPTIMIZERS, PRECISIONS, WINDOWS, (False, True), STACKS
    ):
        group = [
            sample
            for sample in study.samples
            if belongs(sample.case, family, optimizer, dtype)
            and (sample.stack, sample.steps) == (stack, window)
            and (sample.start >= FROM_STEPS[-1]) == late
        ]
        if group:
            found.append(
                {
                    "family": family,
                    "optimizer": optimizer,
                    "dtype": dtype,
                    "window": window,
                    "late": late,
                    "stack": stack.name,
                    "segments": len(group),
                    "held_out": sum(is_held_out(sample) for sample in group),
                    "same_bits": sum(sample.same_bits for sample in group),
                    "largest": rounded(largest(group)),
                    "undetermined": max(sample.drift.undetermined for sample in group),
                }
            )
    return found


def _cheats(study: Study) -> list[dict[str, Any]]:
    """For every entry and named cheat: distance ÷ limit of the clearest check, in the trial where it is smallest."""
    found = []
    for entry in study.calibration.entries:
        key = (entry.family, entry.optimizer, entry.dtype)
        trials = [t for t in study.claims if belongs(t.case, *key) and t.steps == entry.window]
        for cheat, (times, check) in furthest_by_cheat(trials, limits_of(entry)).items():
            found.append(
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
    return found


def _ladder(climb: Climb) -> dict[str, Any]:
    shown = {f"{share:g}": climb.smallest(share) for share in SHARES}
    return {
        "optimizer": climb.optimizer,
        "dtype": climb.dtype,
        "kind": climb.kind,
        "window": climb.window,
        "rates": [rate.to_json() for rate in climb.rates],
        "smallest": {share: None if rate is None else rate.size for share, rate in shown.items()},
    }
