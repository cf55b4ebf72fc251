"""Masks that hide everything, scales that are not positive, divisions by 0: honest kernels differ there alone."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from tallystick.core.tensors import Tensor
from tallystick.engines.torch.engine import TorchEngine
from tallystick.engines.torch.tensors import from_tensor, to_tensor
from tallystick.programs.operators.balls.bound import ResultBound
from tests.programs.operators.degenerate_calls import FORWARD, degenerate_calls
from tests.programs.operators.examples import Call, call, tensor_of
from tests.programs.operators.honest import SEARCHED, as_dtype, bounds_of
from tests.programs.operators.searched import Searched, backward_of, measure, operand_of

KERNELS: Final = (SDPBackend.FLASH_ATTENTION, SDPBackend.MATH)
HIDDEN: Final = np.tri(6, 6, -1, dtype=bool).T
"""The keys that a causal mask hides; the last query sees all of them."""


def attention(scale: float | None, dtype: str, scores: float = 1.0, **given: Any) -> Call:
    """6 queries over 6 keys; the scores of the first query alone have the size `scores`."""
    rng = np.random.default_rng(5)
    q, k, v = (rng.standard_normal((1, 2, 6, 8)) for _ in range(3))
    q[:, :, 0] *= scores
    return as_dtype(call(FORWARD, query=q, key=abs(k), value=v, scale=scale, **given), dtype)


def computed(drawn: Call, backend: SDPBackend) -> Tensor:
    """The result of a kernel of PyTorch."""
    names = ("query", "key", "value", "attn_mask")
    q, k, v, mask = (
        None if drawn.arguments[name] is None else from_tensor(tensor_of(drawn.arguments[name])) for name in names
    )
    with sdpa_kernel(backend):
        given = {"is_causal": drawn.arguments["is_causal"], "scale": drawn.arguments["scale"]}
        return to_tensor(torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, **given))


def result_bound(drawn: Call) -> ResultBound:
    """The bound of the first result."""
    found = bounds_of(drawn)[0]
    assert found is not None
    return found


def forged(found: ResultBound, dtype: str, rows: slice) -> Tensor:
    """The exact result with a tenth added in some rows."""
    numbers = np.where(np.isfinite(found.value), found.value, 0.0)
    numbers[:, :, rows] += 0.1
    return tensor_of(as_dtype(Call("", {"x": numbers}), dtype).arguments["x"])


@pytest.mark.parametrize("dtype", SEARCHED)
@pytest.mark.parametrize("scale", [-0.7, 0.0, -0.0, 1e-320])
def test_causal_scores_times_no_positive_number_are_judged_where_nothing_is_hidden(scale: float, dtype: str) -> None:
    drawn = attention(scale, dtype, is_causal=True)
    found = result_bound(drawn)
    for kernel in KERNELS:
        assert found.excess(computed(drawn, kernel)).max() <= 1
    assert np.isinf(found.radius[:, :, :5]).all()
    assert np.isfinite(found.radius[:, :, 5]).all()
    assert (found.excess(forged(found, dtype, slice(5, 6)))[:, :, 5] > 1).all()


@pytest.mark.parametrize("dtype", SEARCHED)
@pytest.mark.parametrize("scale", [None, 0.3, 1e-20])
def test_causal_scores_times_a_positive_number_are_judged_everywhere(scale: float | None, dtype: str) -> None:
    drawn = attention(scale, dtype, is_causal=True)
    found = result_bound(drawn)
    for kernel in KERNELS:
        assert found.excess(computed(drawn, kernel)).max() <= 1
    assert np.isfinite(found.radius).all()
    assert (found.excess(forged(found, dtype, slice(0, 6))) > 1).all()


@pytest.mark.parametrize("dtype", ["F32", "BF16"])
@pytest.mark.parametrize("hidden", ["a row", "causal"])
def test_a_score_that_overflows_beside_a_mask_decides_nothing_and_its_neighbours_are_judged(
    hidden: str, dtype: str
) -> None:
    mask = np.where(HIDDEN, -np.inf, 0.0)
    mask[0] = mask[0] if hidden == "causal" else -np.inf
    drawn = attention(3e38, dtype, 1e3, attn_mask=mask)
    ordinary = attention(None, dtype, attn_mask=mask)
    found, beside = result_bound(drawn), result_bound(ordinary)
    for kernel in KERNELS:
        assert found.excess(computed(drawn, kernel)).max() <= 1
        assert beside.excess(computed(ordinary, kernel)).max() <= 1
    assert np.isinf(found.radius[:, :, 0]).all()
    assert np.isfinite(beside.radius).all()
    assert (beside.excess(forged(beside, dtype, slice(0, 6))) > 1).all()
    if hidden == "a row":
        assert (beside.value[:, :, 0] == 0).all()
        assert (beside.radius[:, :, 0] == 0).all()


@pytest.mark.parametrize("dtype", SEARCHED)
def test_degenerate_calls_stay_within_their_bounds(dtype: str) -> None:
    found = Searched()
    for index, each in enumerate(degenerate_calls()):
        if index % 11 == SEARCHED.index(dtype):
            results = measure(found, as_dtype(each, dtype), dtype, TorchEngine())
            if each.operator == FORWARD and len(results) == 2:
                drawn = as_dtype(each, dtype)
                measure(found, backward_of(drawn, *map(operand_of, results)), dtype, TorchEngine())
    assert found.calls > 100
    assert {name: shown for name, (share, shown) in found.shares.items() if share > 1} == {}


def test_the_least_divisor_of_the_gradient_of_a_cross_entropy_is_kept_in_f32_by_kernels_for_f64() -> None:
    p, t = np.array([0.0, 1.0, 0.5]), np.array([1.0, 0.0, 1.0])
    given = {"grad_output": np.asarray(1.0), "self": p, "target": t, "weight": None, "reduction": 2}
    found = result_bound(call("aten.binary_cross_entropy_backward.default", **given))
    honest = torch.autograd.functional.jacobian(
        lambda x: torch.nn.functional.binary_cross_entropy(x, torch.from_numpy(t), reduction="sum"), torch.from_numpy(p)
    )
    assert found.excess(to_tensor(honest)).max() <= 1
    assert (found.excess(to_tensor(honest * (1 + 1e-6))) > 1).all()
