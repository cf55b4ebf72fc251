"""Exact two-sided confidence intervals of a proportion (Clopper & Pearson 1934)."""

from __future__ import annotations

import math
from collections.abc import Callable

HALVINGS = 60


def clopper_pearson(successes: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """The interval of the success rate at the given confidence; 0 of 1,000 gives (0, 0.0037).

    The caller ensures `0 ≤ successes ≤ trials` and `trials ≥ 1`.
    """
    assert 0 <= successes <= trials, f"{successes} successes in {trials} trials"
    assert trials >= 1
    tail = (1.0 - confidence) / 2
    low = 0.0 if successes == 0 else _crossing(lambda p: at_least(successes, trials, p) > tail)
    high = 1.0 if successes == trials else _crossing(lambda p: 1.0 - at_least(successes + 1, trials, p) < tail)
    return low, high


def at_least(successes: int, trials: int, rate: float) -> float:
    """P(at least `successes` in `trials`) for independent trials that succeed with probability `rate`."""
    if successes == 0 or rate >= 1.0:
        return 1.0
    if rate <= 0.0:
        return 0.0
    terms = (_probability(count, trials, rate) for count in range(successes, trials + 1))
    return min(1.0, math.fsum(terms))


def _probability(count: int, trials: int, rate: float) -> float:
    """P(exactly `count` in `trials`): the binomial distribution, by logarithms."""
    ways = math.lgamma(trials + 1) - math.lgamma(count + 1) - math.lgamma(trials - count + 1)
    return math.exp(ways + count * math.log(rate) + (trials - count) * math.log1p(-rate))


def _crossing(is_above: Callable[[float], bool]) -> float:
    """The point in [0, 1] where a monotone condition becomes true, by bisection."""
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if is_above(middle) else (middle, high)
    return (low + high) / 2
