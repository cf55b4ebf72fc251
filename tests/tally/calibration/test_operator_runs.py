"""Sums in order: what a plain loop gives, to the bit, and further from exact than a library's sums."""

from __future__ import annotations

import numpy as np

from tallystick.programs.operators.values import Value
from tallystick.tally.calibration.operator_runs import BY_LIBRARY, IN_ORDER


def values(*shape: int) -> Value:
    return Value(np.random.default_rng(6).standard_normal(shape).astype(np.float32), "F32")


def test_a_sum_is_that_of_a_loop() -> None:
    x = values(3, 1000)
    total = np.zeros(3, np.float32)
    for column in x.array.T:
        total += column
    assert IN_ORDER.sum(x, (1,)).array.tobytes() == total.tobytes()
    assert IN_ORDER.sum(x, (1,), keep=True).shape == (3, 1)
    assert IN_ORDER.sum(values(2, 3, 4), (0, 2)).shape == (3,)
    assert IN_ORDER.sum(x, ()).array.tobytes() == x.array.tobytes()


def test_a_product_is_that_of_a_loop() -> None:
    x, y = values(4, 300), values(300, 5)
    total = np.zeros((4, 5), np.float32)
    for k in range(300):
        total += x.array[:, k, None] * y.array[None, k]
    product = IN_ORDER.dot(x, y, ((1,), (0,)))
    assert product.array.tobytes() == total.tobytes()
    assert np.allclose(product.array, BY_LIBRARY.dot(x, y, ((1,), (0,))).array, atol=1e-4)


def test_a_loop_is_further_from_exact() -> None:
    x = values(200, 4000)
    exact = x.array.astype(np.float64).sum(axis=1)
    loop, library = (np.abs(way.sum(x, (1,)).array - exact).max() for way in (IN_ORDER, BY_LIBRARY))
    assert loop > 2 * library
