"""Tries cheats against the replays of other stacks, in a process on the base stack.

`python -m tallystick.calibration.training.trials STACK JOB.json`. The job asks for the named cheats on every run, or
for a ladder of sizes of one family.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tallystick.calibration.training.cheats import CLAIMED, Cheat, train_falsely
from tallystick.calibration.training.drift import Drift, measure
from tallystick.calibration.training.limits import excess
from tallystick.calibration.training.power import Ladder
from tallystick.calibration.training.segments import Bench, Stretch, kept
from tallystick.calibration.training.stacks import enter, stack_named
from tallystick.frameworks.torch.training.trainer import Trainer
from tallystick.tolerances.confidence import at_least

Benches = list[tuple[Bench, list[Path]]]
LimitsFrom = dict[int, dict[str, float]]
"""The limits by the first start to which they apply."""
CLAIM_STRETCH = Stretch(32, (33, 40, 64))
SHARES = (0.95, 0.99)


@dataclass
class Rung:
    """How often one size was caught, and by which distances."""

    size: float
    caught: int = 0
    tried: int = 0
    by: dict[str, int] = field(default_factory=dict)

    def note(self, furthest: tuple[float, str]) -> None:
        """Count one trial."""
        self.tried += 1
        if furthest[0] > 1.0:
            self.caught += 1
            self.by[furthest[1]] = self.by.get(furthest[1], 0) + 1

    @property
    def missed(self) -> int:
        """The number of trials that no limit caught."""
        return self.tried - self.caught


def try_claims(bench: Bench, references: list[Path]) -> Iterator[dict[str, Any]]:
    """The drift of every named cheat from every reference, over one stretch."""
    for cheat in (cheat for cheat in CLAIMED if cheat.fits(bench.recipe.training.dtype)):
        stretch = CLAIM_STRETCH
        for end, claimed in train_falsely(bench, cheat.trainer(bench), cheat, stretch, stretch.start + 1, seed=1):
            for folder in references:
                replayed = kept(folder, stretch.start, end)
                drift = measure(
                    bench.anchor(stretch.start),
                    claimed,
                    replayed,
                    bench.peak_rate(stretch.start, end),
                    bench.projection,
                    bench.recipe.training.dtype,
                )
                yield {
                    "case": bench.run.path.name,
                    "kind": cheat.kind,
                    "size": cheat.size,
                    "reference": folder.parent.name,
                    "steps": end - stretch.start,
                    "drift": drift.to_json(),
                }


def climb(benches: Benches, ladder: Ladder, limits: LimitsFrom) -> list[Rung]:
    """Try ascending sizes until one is caught in every trial, or the ladder ends."""
    rungs: list[Rung] = []
    for size in ladder.sizes:
        rungs.append(try_size(benches, Cheat(ladder.kind, size), ladder, limits))
        if rungs[-1].missed == 0 and rungs[-1].tried >= ladder.trials:
            break
    return rungs


def try_size(benches: Benches, cheat: Cheat, ladder: Ladder, limits: LimitsFrom) -> Rung:
    """Try one size; stop early when the smaller share can no longer be shown."""
    rung = Rung(cheat.size)
    trainers = [cheat.trainer(bench) for bench, _ in benches]
    for (bench, folders), trainer, start, seed in _draw(benches, trainers, ladder):
        drift = _try_once(bench, trainer, cheat, Stretch(start, (start + ladder.window,)), folders, seed)
        rung.note(excess(drift, limits[max(step for step in limits if step <= start)]))
        if rung.missed and not could_show(rung.caught + ladder.trials - rung.tried, ladder.trials, SHARES[0]):
            break
    return rung


def could_show(caught: int, trials: int, share: float) -> bool:
    """Whether `caught` of `trials` shows, with one-sided 95 % confidence, that at least `share` is caught."""
    return at_least(caught, trials, share) <= 0.05


def _draw(
    benches: Benches, trainers: list[Trainer], ladder: Ladder
) -> Iterator[tuple[tuple[Bench, list[Path]], Trainer, int, int]]:
    """Draw every (run, start) in a random order, and repeat until there are enough; the last item is a seed."""
    random = np.random.default_rng(ladder.window)
    stride = 1 if ladder.window == 1 else 8
    places = [
        (place, start)
        for place, (bench, _) in enumerate(benches)
        for start in range(0, bench.recipe.training.steps - ladder.window + 1, stride)
    ]
    order = np.concatenate([random.permutation(len(places)) for _ in range(-(-ladder.trials // len(places)))])
    for seed, chosen in enumerate(order[: ladder.trials]):
        place, start = places[chosen]
        yield benches[place], trainers[place], start, seed


def _try_once(bench: Bench, trainer: Trainer, cheat: Cheat, stretch: Stretch, folders: list[Path], seed: int) -> Drift:
    random = np.random.default_rng([seed, 7])
    end = stretch.ends[0]
    touched = int(random.integers(stretch.start + 1, end + 1))
    [(_, claimed)] = train_falsely(bench, trainer, cheat, stretch, touched, seed)
    replayed = kept(folders[seed % len(folders)], stretch.start, end)
    rate = bench.peak_rate(stretch.start, end)
    return measure(bench.anchor(stretch.start), claimed, replayed, rate, bench.projection, bench.recipe.training.dtype)


def find(job: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The results of a job: rungs of its ladder, or trials of the named cheats."""
    benches = [(Bench(Path(run["path"])), [Path(folder) for folder in run["references"]]) for run in job["runs"]]
    if "ladder" not in job:
        for bench, folders in benches:
            yield from try_claims(bench, folders)
        return
    limits = {int(step): named for step, named in job["limits"].items()}
    for rung in climb(benches, Ladder(**job["ladder"]), limits):
        yield asdict(rung)


if __name__ == "__main__":
    enter(stack_named(sys.argv[1]))
    path = Path(sys.argv[2])
    path.with_suffix(".out.json").write_text(json.dumps(list(find(json.loads(path.read_text())))))
