"""Distances of rows, and the limits that follow from them."""

from __future__ import annotations

import numpy as np
import pytest

from tallystick.audits.answers.limits import MeasuredModels
from tallystick.tally.calibration.answer_limits import (
    Class,
    SeenRuns,
    add_up,
    at_depths,
    compare_answer,
    depths_of,
    distances_of_runs,
    row_limits,
)
from tallystick.tally.calibration.drift import round_up

FINAL = 2
MODELS = MeasuredModels(dtype="BF16", layers=2, width=24, models=("m",), answers=3)


def rows(tokens: int, noise: float = 0.0) -> dict[int, np.ndarray]:
    exact = np.random.default_rng(0).normal(size=(4, tokens, 24)).astype(np.float32)
    drift = np.random.default_rng(1).normal(size=exact.shape).astype(np.float32)
    return {layer: exact[layer] * (1 + noise * (layer + 1) * drift[layer]) for layer in range(4)}


def test_a_distance_is_that_of_the_rows_together_and_of_long_runs_that_of_their_blocks() -> None:
    claimed, own = rows(130, 1e-2)[0], rows(130)[0]
    found = distances_of_runs(claimed, own, 32)
    assert found.shape == (4,)
    assert found[1] == pytest.approx(np.linalg.norm((claimed - own)[32:64]) / np.linalg.norm(own[32:64]), rel=1e-4)
    assert distances_of_runs(claimed, own, 128) == pytest.approx([np.sqrt(np.square(found).mean())])
    assert distances_of_runs(claimed[:20], own[:20], 32).size == 0


def test_every_place_has_its_limits_and_later_blocks_those_of_earlier_ones() -> None:
    seen = add_up(compare_answer(rows(40, noise), rows(40), FINAL) for noise in (1e-3, 2e-3, 1e-3))
    assert seen[Class("block", 1, 32)].runs == 3
    assert seen[Class("block", 1, 8)].runs == 15
    limits = {(each.place, each.layer_max, each.tokens): each for each in row_limits(seen, MODELS)}
    assert {key[:2] for key in limits} == {("block", 0), ("block", 1), ("final", None), ("logits", None)}
    early, later = (limits["block", layer, 32] for layer in (0, 1))
    assert (early.honest, later.honest) == (3, 6)
    assert early.honest_largest < later.honest_largest < limits["final", None, 32].honest_largest
    assert later.largest == pytest.approx(1.5 * later.honest_largest, rel=0.01)
    assert limits["logits", None, 1].honest_largest > limits["logits", None, 32].honest_largest


def test_no_limit_is_below_the_last_bits_of_a_precision() -> None:
    [limit] = row_limits({Class("final", 0, 1): SeenRuns(5, 0.0)}, MODELS.model_copy(update={"dtype": "F32"}))
    assert (limit.largest, limit.honest_largest) == (1e-5, 0.0)


@pytest.mark.parametrize(
    ("value", "rounded"), [(0.0, 0.0), (0.0012341, 0.00124), (1.0, 1.0), (1e-5, 1e-5), (9.991e-3, 1e-2), (1.001, 1.01)]
)
def test_limits_are_rounded_up(value: float, rounded: float) -> None:
    assert round_up(value) == rounded


def test_every_block_counts_for_the_next_depth_that_has_limits() -> None:
    seen = {Class("block", layer, 1): SeenRuns(2, layer / 100) for layer in range(30)} | {
        Class("final", 0, 1): SeenRuns(1, 0.5)
    }
    found = at_depths(seen, 30)
    assert {each.layer_max for each in found if each.place == "block"} == set(depths_of(30)) >= {10, 29}
    assert found[Class("block", 10, 1)] == SeenRuns(10, 0.1)
    assert found[Class("final", 0, 1)] == SeenRuns(1, 0.5)
    assert depths_of(2) == (0, 1)
    assert depths_of(1) == (0,)
