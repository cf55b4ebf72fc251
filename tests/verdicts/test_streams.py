"""What a state must not hold, and what it may."""

from __future__ import annotations

import numpy as np
import pytest

from tallystick.core.tensors import Tensor
from tallystick.verdicts.exact import not_finite

BF16_NAN = Tensor.of(np.array([0x3F80, 0x7FC0], "<u2"), "BF16")
INFINITE = Tensor.of(np.array([1.0, np.inf], np.float32))


@pytest.mark.parametrize("tensor", [BF16_NAN, INFINITE])
@pytest.mark.parametrize("name", ["weights.w", "optimizer.w.exp_avg"])
def test_learned_tensors_that_are_not_finite_are_named(name: str, tensor: Tensor) -> None:
    assert not_finite({name: tensor, "weights.a": Tensor.of(np.ones(2, np.float32))}) == [name]


@pytest.mark.parametrize("name", ["buffers.mask", "rng.python"])
def test_what_is_not_learned_may_hold_anything(name: str) -> None:
    assert not_finite({name: INFINITE}) == []
