"""The paired method: small costs beside large ones, on a machine whose noise is larger than both.

All arms of a round do the same work on the same objects, in an order drawn anew for every round. A ratio is taken
within each round; its median is blind to rare costs, so the ratio of sums stands beside it. Both carry a bootstrap
95 % interval over the rounds. Two controls run inside the same rounds: the bare arm against itself, and the bare arm
with a known cost planted in it. CPU time counts every thread of the process and leaves out what neighbours take; wall
time also sees the waiting for a disk.
"""

from __future__ import annotations

import gc
import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal, TypeAlias

RESAMPLES = 1000
Clock: TypeAlias = Literal["cpu", "wall"]
CLOCKS: tuple[Clock, Clock] = ("cpu", "wall")


@dataclass(frozen=True)
class Spent:
    """Seconds of one unit: of all threads of this process and of the children that ended in it, and on the wall."""

    cpu: float
    wall: float


@dataclass(frozen=True)
class Interval:
    """An estimate with its bootstrap 95 % interval."""

    estimate: float
    low: float
    high: float

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high


Arm: TypeAlias = Callable[[], object]
Round: TypeAlias = Mapping[str, Spent]
Statistic: TypeAlias = Callable[[Sequence[Round]], float]


def stopwatch() -> Callable[[], Spent]:
    """Start both clocks; calling the result reads them."""
    cpu, wall = _cpu_seconds(), time.perf_counter()
    return lambda: Spent(_cpu_seconds() - cpu, time.perf_counter() - wall)


def _cpu_seconds() -> float:
    ended = os.times()
    return time.process_time() + ended.children_user + ended.children_system


def time_arm(arm: Arm) -> Spent:
    """One unit of one arm."""
    elapsed = stopwatch()
    arm()
    return elapsed()


def nothing() -> None:
    """Between two arms there is nothing to tidy up."""


def take_rounds(arms: Mapping[str, Arm], count: int, rng: random.Random, between: Arm = nothing) -> list[Round]:
    """`count` rounds of all arms in random order after one that warms up; `between` is called outside the clocks."""
    gc.collect()
    rounds: list[Round] = []
    for _ in range(count + 1):
        spent = {}
        for name in rng.sample(sorted(arms), len(arms)):
            between()
            spent[name] = time_arm(arms[name])
        rounds.append(spent)
    return rounds[1:]


def interval(rounds: Sequence[Round], statistic: Statistic, rng: random.Random) -> Interval:
    """The statistic over all rounds, and the middle 95 % of it over rounds drawn with replacement."""
    drawn = sorted(statistic(rng.choices(rounds, k=len(rounds))) for _ in range(RESAMPLES))
    return Interval(statistic(rounds), drawn[RESAMPLES // 40], drawn[-RESAMPLES // 40])


def median_ratio(changed: str, bare: str, clock: Clock) -> Statistic:
    """The median over the rounds of changed ÷ bare."""
    return lambda rounds: median(getattr(r[changed], clock) / getattr(r[bare], clock) for r in rounds)


def total_ratio(changed: str, bare: str, clock: Clock) -> Statistic:
    """Σ changed ÷ Σ bare: sees rare costs."""
    return lambda rounds: total(rounds, changed, clock) / total(rounds, bare, clock)


def total(rounds: Sequence[Round], arm: str, clock: Clock) -> float:
    """The seconds of one arm in all rounds together."""
    return float(sum(getattr(r[arm], clock) for r in rounds))


def spin_after(arm: Arm, seconds: float) -> None:
    """One unit of `arm` with `seconds` of CPU time planted behind it."""
    arm()
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass
