"""Where a kernel of one's own differs most: a wrong element is found among honest noise of any scale."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tallystick.core.tensors import Tensor
from tallystick.verdicts.leaf.judge import BY_MEASURE, DISCRETE_MAX, deviating_places

UNIT = np.float32(2.0**-24)
SHAPES = [(64, 128), (2, 16, 16, 16), (8192,)]


def found(claimed: Any, own: Any) -> set[int]:
    return set(deviating_places(Tensor.of(claimed), Tensor.of(own), b"nonce").tolist())


def noisy(own: Any, seed: int) -> Any:
    """What another honest kernel gives: a few roundings of the largest numbers of each row away."""
    rng = np.random.default_rng(seed)
    scale = np.abs(own).max(axis=-1, keepdims=True)
    return (own + 4 * UNIT * scale * rng.uniform(-1, 1, own.shape)).astype(np.float32)


@pytest.mark.parametrize("shape", SHAPES, ids=["matrix", "image", "vector"])
def test_one_element_is_found_among_honest_ones(shape: tuple[int, ...]) -> None:
    own = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    claimed = noisy(own, 1)
    assert len(found(claimed, own)) <= 3 * BY_MEASURE
    claimed.flat[4321] += np.float32(1e-3)
    assert 4321 in found(claimed, own)


@pytest.mark.parametrize("axis", [0, 1])
def test_so_is_one_in_a_row_or_column_of_small_numbers(axis: int) -> None:
    """The noise of the others is ten times as large."""
    own = np.random.default_rng(0).normal(size=(64, 128)).astype(np.float32)
    (own if axis == 0 else own.T)[9] *= np.float32(1e-6)
    claimed, place = noisy(own, 1), (9, 9)
    claimed[9] = own[9]
    claimed[:, 9] = own[:, 9]
    claimed[place] += np.float32(0.1) * np.abs(claimed - own).max()
    assert 9 * 128 + 9 in found(claimed, own)


def test_so_is_one_that_is_nearly_zero() -> None:
    own = np.random.default_rng(0).normal(size=(64, 128)).astype(np.float32)
    own[3, 4] = np.float32(1e-9)
    claimed = (own * (1 + np.float32(1e-6))).astype(np.float32)
    claimed[3, 4] = -own[3, 4]
    assert 3 * 128 + 4 in found(claimed, own)


def test_what_is_equal_does_not_deviate() -> None:
    own = np.array([1.0, np.nan, np.inf, 0.0], np.float32)
    assert found(own.copy(), own) == set()
    assert found(np.array([1.0, 1.0, -np.inf, -0.0], np.float32), own) == {1, 2, 3}
    assert found(np.zeros((0, 3), np.float32), np.zeros((0, 3), np.float32)) == set()
    assert found(np.float32(1.0).reshape(()), np.float32(2.0).reshape(())) == {0}


def test_whole_numbers_and_truth_values_that_differ() -> None:
    own = np.arange(5000)
    claimed = own.copy()
    claimed[[7, 4999]] = 0
    assert found(claimed, own) == {7, 4999}
    assert found(own > 7, own > 8) == {8}
    assert 0 < len(found(own + 1, own)) <= DISCRETE_MAX
