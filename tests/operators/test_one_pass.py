"""Variances of one pass, which PyTorch takes for group normalization of channels-last images on CPUs."""

from __future__ import annotations

import numpy as np
import pytest

from tallystick.operators.balls.bound import excess
from tallystick.operators.precision import PLAIN, STEPWISE
from tests.operators.examples import Call
from tests.operators.honest import SEARCHED, as_dtype, bounds_of, leaving
from tests.operators.searched import Layout


def normalized(mean: float, eps: float = 1e-5) -> Call:
    images = (np.random.default_rng(0).standard_normal((2, 6, 8, 8)) + mean).astype(np.float32)
    affine = {"weight": np.ones(6, np.float32), "bias": np.zeros(6, np.float32)}
    given = {"input": images, "num_groups": 3, **affine, "eps": eps, "cudnn_enabled": True}
    return Call("aten.group_norm.default", given)


@pytest.mark.parametrize("dtype", SEARCHED)
@pytest.mark.parametrize("mean", [1, 100, 10_000])
def test_images_far_from_zero_stay_within_the_bound(one_thread: None, mean: float, dtype: str) -> None:
    """Outside by up to 4,000 radii before E[x²] − E[x]² was allowed for."""
    precision = PLAIN if dtype in {"F32", "F64"} else STEPWISE
    assert leaving(as_dtype(normalized(mean), dtype), Layout(), precision=precision) is None


@pytest.mark.parametrize(("mean", "dtype"), [(1, "F32"), (10_000, "F64")])
def test_another_variance_is_outside(mean: float, dtype: str) -> None:
    """The twin: 1 % more of it."""
    honest, other = (bounds_of(as_dtype(normalized(mean, eps), dtype))[0] for eps in (1e-5, 0.01))
    assert honest is not None
    assert other is not None
    assert excess(other.value, honest.value, honest.radius).max() > 100
