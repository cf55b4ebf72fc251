"""A mask of the smallest number leaves a bound on every element: what is masked has to stay masked."""

from __future__ import annotations

import numpy as np
import pytest

from tallystick.core.tensors import Tensor
from tallystick.programs.operators.balls.bound import ResultBound
from tests.programs.operators.examples import call
from tests.programs.operators.honest import bounds_of

SMALLEST = np.finfo(np.float32).min
SCORES = np.random.default_rng(0).standard_normal((2, 4, 5)).astype(np.float32) * 4
MASK = np.where(np.tri(4, 5, dtype=bool), np.float32(0), SMALLEST).astype(np.float32)
MASKED = (SCORES + MASK).astype(np.float32)


def bound_of(name: str, *operands: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> ResultBound:
    given = {"dim": -1, "dtype": None} if "softmax" in name else {"alpha": 1}
    names = ("self",) if "softmax" in name else ("self", "other")
    (found,) = bounds_of(call(name, **dict(zip(names, operands, strict=True)), **given))
    assert found is not None
    return found


def test_scores_under_a_mask_are_bounded() -> None:
    found = bound_of("aten.add.Tensor", SCORES, MASK)
    assert np.isfinite(found.radius).all()
    assert found.excess(Tensor.of(MASKED)).max() <= 1
    unmasked = np.where(MASKED < -1e38, np.float32(0), MASKED)
    assert found.excess(Tensor.of(unmasked)).max() > 1


def test_softmax_of_masked_scores_is_bounded() -> None:
    found = bound_of("aten.softmax.int", MASKED)
    assert np.isfinite(found.radius).all()
    torch = pytest.importorskip("torch")
    assert found.excess(Tensor.of(torch.from_numpy(MASKED).softmax(-1).numpy())).max() <= 1
    uncovered = torch.from_numpy(SCORES).softmax(-1).numpy()
    assert found.excess(Tensor.of(uncovered)).max() > 1


@pytest.mark.parametrize("factor", [2.0, 1.0 + 2.0**-22])
def test_a_sum_that_may_overflow_promises_nothing(factor: float) -> None:
    most = np.full(3, -SMALLEST, np.float32)
    found = bound_of("aten.add.Tensor", most, (most * (factor - 1)).astype(np.float32))
    assert np.isinf(found.radius).all()


def test_a_sum_that_rounds_down_to_the_largest_number_is_bounded() -> None:
    most, little = np.full(3, -SMALLEST, np.float32), np.full(3, 1e30, np.float32)
    found = bound_of("aten.add.Tensor", most, little)
    assert np.isfinite(found.radius).all()
    assert found.excess(Tensor.of(most + little)).max() <= 1
    assert found.excess(Tensor.of(np.full(3, np.inf, np.float32))).max() > 1
