"""How far two tensors lie apart: elements, distance, units in the last place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tallystick.audits.differences.operators import compare_states, compare_tensors
from tallystick.core.tensors import Tensor


def tensor(*values: float, dtype: Any = np.float32) -> Tensor:
    return Tensor.of(np.array(values, dtype))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("value", [1.0, 1.5, -3.0, 1e-3])
def test_the_next_float_is_one_ulp_away(dtype: Any, value: float) -> None:
    at = dtype(value)
    found = compare_tensors("x", tensor(at, 7, dtype=dtype), tensor(np.nextafter(at, dtype(100)), 7, dtype=dtype))
    assert found is not None
    assert (found.elements, found.size, found.ulps, found.index) == (1, 2, 1.0, 0)


def test_the_smallest_float_is_one_ulp_from_zero_and_bfloat16_has_eight_digits() -> None:
    found = compare_tensors("x", tensor(0.0), tensor(np.float32(1e-45)))
    assert found is not None
    assert found.ulps == 1.0
    halves = [Tensor("BF16", (1,), np.array([bits], "<u2").tobytes()) for bits in (0x3F80, 0x3F81)]
    found = compare_tensors("x", *halves)
    assert found is not None
    assert (found.ulps, found.distance) == (1.0, 2.0**-7)


def test_equal_bits_are_equal_and_the_zeros_differ() -> None:
    assert compare_tensors("x", tensor(1, np.nan), tensor(1, np.nan)) is None
    found = compare_tensors("x", tensor(0.0), tensor(-0.0))
    assert found is not None
    assert (found.elements, found.distance, found.ulps) == (1, 0.0, 0.0)


def test_a_nan_is_infinitely_far_from_a_number() -> None:
    found = compare_tensors("x", tensor(1, np.nan), tensor(1, 2))
    assert found is not None
    assert (found.elements, found.distance, found.to_json()) == (1, np.inf, {**found.to_json(), "distance": "inf"})  # type: ignore[dict-item]


def test_integers_have_no_ulps() -> None:
    found = compare_tensors("x", tensor(1, 2, dtype=np.int64), tensor(1, 5, dtype=np.int64))
    assert found is not None
    assert (found.ulps, str(found)) == (None, "x: 1 of 2 elements, by at most 3")


def test_states_name_what_only_one_has_and_weights_come_first() -> None:
    first = {"optimizer.step": tensor(1), "weights.a": tensor(1), "weights.b": tensor(1, 2)}
    second = {"optimizer.step": tensor(2), "weights.b": tensor(1)}
    assert [str(each) for each in compare_states(first, second)] == [
        "weights.a: there / not there",
        "weights.b: F32[2] / F32[1]",
        "optimizer.step: 1 of 1 elements, by at most 1, 4.194e+06 ulps",
    ]
    assert compare_states(first, first) == ()
