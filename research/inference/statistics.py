"""How well one number tells cheated answers from honest ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np

from tallystick.verdicts.evidence import clopper_pearson

Scores: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]
RESAMPLES: Final = 400


@dataclass(frozen=True)
class Area:
    """The area under the ROC curve, P(cheat scores higher) + P(equal)/2, with a 95 % interval.

    Answers, not windows of them, are drawn anew, because windows of one answer go together. Where no window is out of
    place the bootstrap says nothing, and the lower end is that of `honest` and `cheated` answers without one mistake
    (Clopper–Pearson on the smaller number).
    """

    value: float
    low: float
    high: float
    honest: int
    cheated: int


def area(honest: Scores, cheated: Scores) -> float:
    """The area under the ROC curve (Mann–Whitney U over the number of pairs); NaN scores count as highest."""
    both = np.nan_to_num(np.concatenate([honest, cheated]), nan=np.inf)
    order = np.argsort(both, kind="stable")
    _, first, counts = np.unique(both[order], return_index=True, return_counts=True)
    ranks = np.empty(len(both))
    ranks[order] = np.repeat(first + (counts + 1) / 2, counts)
    beyond = ranks[len(honest) :].sum() - len(cheated) * (len(cheated) + 1) / 2
    return float(beyond / (len(honest) * len(cheated)))


def area_with_interval(honest: Scores, cheated: Scores, seed: int = 0) -> Area:
    """As `area`, of scores [answers, windows]."""
    value = area(honest.ravel(), cheated.ravel())
    answers = len(honest), len(cheated)
    if value in (0.0, 1.0):
        low, high = clopper_pearson(min(answers) if value else 0, min(answers))
        return Area(value, low, high, *answers)
    generator = np.random.default_rng(seed)
    drawn = [area(_resampled(honest, generator), _resampled(cheated, generator)) for _ in range(RESAMPLES)]
    low, high = (float(each) for each in np.quantile(drawn, (0.025, 0.975)))
    return Area(value, low, high, *answers)


def curve(honest: Scores, cheated: Scores) -> tuple[Scores, Scores]:
    """False and true positive rates of every threshold, from the strictest on."""
    thresholds = np.unique(np.concatenate([honest.ravel(), cheated.ravel()]))[::-1]
    return tuple(  # type: ignore[return-value]
        np.array([0.0, *((scores.ravel() >= threshold).mean() for threshold in thresholds)])
        for scores in (honest, cheated)
    )


def _resampled(scores: Scores, generator: np.random.Generator) -> Scores:
    return scores[generator.integers(0, len(scores), len(scores))].ravel()
