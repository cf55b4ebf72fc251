"""The smallest cheats that are caught: named cheats against the limits, and ladders of sizes with intervals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tallystick.audits.calibration import Calibration, LimitsEntry
from tallystick.calibration.training.drift import Drift
from tallystick.calibration.training.honest import ends_folder
from tallystick.calibration.training.limits import excess, limits_of
from tallystick.calibration.training.processes import StackJob, deal, run_all, workers
from tallystick.calibration.training.recipes import Case
from tallystick.calibration.training.stacks import BASE, stacks_for, stacks_here
from tallystick.commitments.encoding import Json
from tallystick.tolerances.confidence import clopper_pearson

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
        StackJob("tallystick.calibration.training.trials", BASE, f"claims {number}", {"runs": share})
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
        "tallystick.calibration.training.trials", BASE, f"climb {'-'.join(key)} {ladder.kind} {ladder.window}", job
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
