"""The filters over many rows keep the tokens that they keep row by row."""

from __future__ import annotations

import numpy as np
import pytest

from tallystick.formats.receipt import Sampler
from tallystick.verdicts.sampling.edges import FilterEdges, surely_kept
from tallystick.verdicts.sampling.filters import Ranks

ROWS, TOKENS = 200, 40


def rows_of(seed: int) -> np.ndarray:
    """Falling logits; rows have between one and all of the tokens, and some have equal ones."""
    rng = np.random.default_rng(seed)
    logits = -np.sort(-np.round(rng.standard_normal((ROWS, TOKENS)) * rng.choice([0.1, 1.0, 4.0], (ROWS, 1)), 1))
    return np.where(np.arange(TOKENS) < rng.integers(1, TOKENS + 1, (ROWS, 1)), logits, -np.inf)


@pytest.mark.parametrize(
    "filters",
    [{"top_p": 0.9}, {"top_p": 0.3}, {"top_k": 7}, {"min_p": 0.1}, {"top_p": 0.8, "top_k": 9, "min_p": 0.02}],
    ids=str,
)
def test_the_same_tokens_are_surely_kept_as_row_by_row(filters: dict[str, float]) -> None:
    samplers = [Sampler(temperature=each, seed=1, **filters) for each in (0.3, 0.9, 2.0)]
    for spread in (0.0, 0.07, 0.61):
        logits = rows_of(round(100 * spread))
        for sampler, kept in zip(samplers, surely_kept(logits, samplers, spread), strict=True):
            counts = [FilterEdges(Ranks(row[np.isfinite(row)] - row[0]), sampler).count_sure(spread) for row in logits]
            several = np.isfinite(logits).sum(axis=1) > 1
            assert (kept.sum(axis=1) == counts)[several].all()
            assert (kept.sum(axis=1)[~several] == 1).all()
            assert 0 < sum(counts) < np.isfinite(logits).sum()


def test_without_filters_all_tokens_are_kept() -> None:
    logits = rows_of(1)
    (kept,) = surely_kept(logits, [Sampler(seed=1)], 0.5)
    assert (kept == np.isfinite(logits)).all()
