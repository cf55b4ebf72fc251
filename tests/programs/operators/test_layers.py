"""The operators of layers: their float64 reference against PyTorch's kernels on float64 tensors, and their refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tallystick.core.errors import MalformedError
from tallystick.core.tensors import Tensor
from tallystick.programs.operators.arrays import NUMPY
from tallystick.programs.operators.balls.bound import bound
from tallystick.programs.operators.definition import REQUIRED, operator
from tallystick.programs.operators.types import Types
from tallystick.programs.operators.values import Values
from tests.programs.operators.examples import Bf16, Call, call, mapped, specs
from tests.programs.operators.examples_grouping import EXAMPLES as GROUPING
from tests.programs.operators.examples_layers import EXAMPLES, MALFORMED, floats, moments
from tests.programs.operators.examples_tables import EXAMPLES as TABLES

torch = pytest.importorskip("torch")

REFERENCE = Values(NUMPY, "F64")
WITHOUT_KERNEL = "aten._fused_rms_norm_backward.default"
CALLS = [each for name, calls in EXAMPLES.items() if name != WITHOUT_KERNEL for each in calls]
NARROW = [each for each in CALLS if any(isinstance(value, Bf16) for value in each.arguments.values())]


def doubled(each: Call) -> Call:
    """The same call on float64 operands."""
    return Call(each.operator, {name: _doubled(value) for name, value in each.arguments.items()})


def _doubled(value: Any) -> Any:
    array = value.array if isinstance(value, Bf16) else value
    return array.astype(np.float64) if isinstance(array, np.ndarray) and array.dtype == np.float32 else array


def referenced(each: Call) -> list[npt.NDArray[Any] | None]:
    """The results in the float64 reference."""
    results = operator(each.operator).read(REFERENCE, mapped(each.arguments, REFERENCE.load))
    return [None if result is None else REFERENCE.unload(result).array() for result in results]


def computed(each: Call) -> list[npt.NDArray[Any] | None]:
    """The results of PyTorch's kernel, as float64."""
    _, name, overload = each.operator.split(".")
    kernel = getattr(getattr(torch.ops.aten, name), overload)
    results = kernel(**mapped(each.arguments, _loaded))
    results = results if isinstance(results, tuple | list) else (results,)
    return [None if result is None else _array(result) for result in results]


def _loaded(tensor: Tensor) -> Any:
    if tensor.dtype == "BF16":
        return torch.frombuffer(bytearray(tensor.data), dtype=torch.bfloat16).reshape(tensor.shape)
    return torch.from_numpy(tensor.array().copy())


def _array(result: Any) -> npt.NDArray[Any]:
    wide = result.double() if result.is_floating_point() else result
    found: npt.NDArray[Any] = wide.numpy()
    return found


@pytest.mark.parametrize("each", CALLS, ids=str)
def test_the_reference_agrees_with_the_float64_kernel(each: Call) -> None:
    wide = doubled(each)
    for ours, theirs in zip(referenced(wide), computed(wide), strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None and theirs is not None:
            assert ours.shape == theirs.shape
            np.testing.assert_allclose(ours, theirs, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("each", NARROW, ids=str)
def test_a_bf16_kernel_rounds_the_reference_to_its_result(each: Call) -> None:
    for ours, theirs in zip(referenced(each), computed(each), strict=True):
        assert ours is not None
        assert theirs is not None
        np.testing.assert_allclose(ours, theirs, rtol=2**-7, atol=2**-9)


@pytest.mark.parametrize("name", EXAMPLES)
def test_types_are_those_of_the_values(name: str) -> None:
    for each in EXAMPLES[name]:
        derived = operator(name).read(Types(), specs(each.arguments))
        values = operator(name).read(REFERENCE, mapped(each.arguments, REFERENCE.load))
        stated = [spec and (spec.dtype, spec.shape) for spec in derived]
        assert stated == [value and (value.dtype, value.shape) for value in values], str(each)


def test_the_gradient_of_rms_norm_is_that_of_autograd() -> None:
    for each in EXAMPLES[WITHOUT_KERNEL]:
        given = doubled(each).arguments
        x, weight = (None if given[name] is None else torch.tensor(given[name]) for name in ("input", "weight"))
        leaves = [leaf.requires_grad_() for leaf in (x, weight) if leaf is not None]
        shape = given["normalized_shape"]
        axes = tuple(range(3 - len(shape), 3))
        rstd = torch.rsqrt((x * x).mean(axes, keepdim=True) + 1e-5)
        result = x * rstd if weight is None else x * rstd * weight
        gradients = torch.autograd.grad(result, leaves, torch.tensor(given["grad_out"]))
        ours = referenced(Call(each.operator, {**given, "rstd": rstd.detach().numpy()}))
        for mine, theirs in zip([one for one in ours if one is not None], gradients, strict=True):
            np.testing.assert_allclose(mine, theirs.numpy(), rtol=1e-11, atol=1e-11)


def test_batch_normalization_leaves_its_running_statistics_alone_and_returns_the_new_ones() -> None:
    x, mean, variance = floats(4, 3, 5, 5).astype(float), np.zeros(3), np.ones(3)
    given = {"input": x, "weight": None, "bias": None, "running_mean": mean, "running_var": variance}
    name = "aten._native_batch_norm_legit_functional.default"
    results = referenced(call(name, **given, training=True, momentum=0.25, eps=1e-5))
    np.testing.assert_array_equal(mean, np.zeros(3))
    np.testing.assert_allclose(results[3], 0.25 * x.mean((0, 2, 3)), rtol=1e-12)
    np.testing.assert_allclose(results[4], 0.75 + 0.25 * x.var((0, 2, 3), ddof=1), rtol=1e-12)


def test_native_batch_normalization_outside_training_uses_the_running_statistics() -> None:
    x = floats(4, 3, 5, 5).astype(float)
    given = {"running_mean": np.full(3, 0.5), "running_var": np.full(3, 4.0), "weight": None, "bias": None}
    each = call("aten.native_batch_norm.default", input=x, **given, training=False, momentum=0.1, eps=0.0)
    result, *statistics = referenced(each)
    np.testing.assert_allclose(result, (x - 0.5) / 2, rtol=1e-12)
    assert [one.shape for one in statistics if one is not None] == [(0,), (0,)]


def test_a_query_that_sees_no_key_gets_zeros_and_no_gradient() -> None:
    q = floats(1, 1, 3, 8).astype(float)
    mask = np.where(np.tri(3, k=-1, dtype=bool), 0.0, -np.inf)
    given = {"query": q, "key": q, "value": q, "attn_mask": mask, "dropout_p": 0.0, "is_causal": False}
    result, logarithm = referenced(call("aten._scaled_dot_product_flash_attention_for_cpu.default", **given))
    assert result is not None
    assert logarithm is not None
    np.testing.assert_array_equal(result[0, 0, 0], np.zeros(8))
    assert np.isfinite(logarithm).all()
    name = "aten._scaled_dot_product_flash_attention_for_cpu_backward.default"
    gradient = referenced(call(name, **given, grad_out=q, out=result, logsumexp=logarithm))[0]
    assert gradient is not None
    np.testing.assert_array_equal(gradient[0, 0, 0], np.zeros(8))
    assert np.any(gradient[0, 0, 2] != 0)


def test_large_scores_do_not_overflow() -> None:
    q = 1e3 * np.eye(3, 8)[None, None]
    result = referenced(call("aten.scaled_dot_product_attention.default", query=q, key=q, value=q))[0]
    np.testing.assert_allclose(result, q, rtol=1e-9)


def test_a_pool_over_infinities_points_inside_the_plane() -> None:
    x = np.full((1, 2, 2), -np.inf)
    pooled = call("aten.max_pool2d_with_indices.default", self=x, kernel_size=(2, 2), stride=(2, 2), padding=(1, 1))
    _, indices = referenced(pooled)
    np.testing.assert_array_equal(np.ravel(indices if indices is not None else ()), [0, 1, 2, 3])


def test_a_kernel_that_begins_its_sum_with_the_bias_stays_within_the_bound() -> None:
    x, weight, bias = np.full((1, 4096), 2.0**-13, np.float32), np.full((1, 4096), 2.0**-12, np.float32), np.ones(1)
    found = np.float32(1)
    for product in (x * weight).ravel():
        found = np.float32(found + product)
    each = call("aten.linear.default", input=x, weight=weight, bias=bias.astype(np.float32))
    (bounded,) = bound(operator(each.operator), mapped(each.arguments, lambda tensor: tensor))
    assert bounded is not None
    assert abs(found - bounded.value) > 1000 * 2.0**-24
    assert bounded.excess(Tensor.of(np.full((1, 1), found, np.float32))).max() <= 1


def test_sizes_whose_sources_depend_on_rounding_are_refused() -> None:
    given = {"scales_h": None, "scales_w": None}
    for old, new in [(49, 41), (41, 49), (61, 183), (2, 82), (3, 123)]:
        x = np.arange(old, dtype=float).reshape(1, 1, 1, old)
        theirs = torch.nn.functional.interpolate(torch.tensor(x), (1, new)).numpy()
        each = call("aten.upsample_nearest2d.default", self=x, output_size=(1, new), **given)
        if np.array_equal(theirs.ravel(), np.arange(new) * old // new):
            np.testing.assert_array_equal(referenced(each)[0], theirs)
        else:
            with pytest.raises(MalformedError, match="depend on rounding"):
                referenced(each)


def test_every_value_of_a_masked_gradient_is_the_unmasked_one() -> None:
    mean, rstd = moments(floats(3, 6), (1,))
    given = {"grad_out": floats(3, 6), "input": floats(3, 6), "normalized_shape": (6,), "mean": mean, "rstd": rstd}
    affine = {"weight": floats(6), "bias": floats(6)}
    name = "aten.native_layer_norm_backward.default"
    full = referenced(call(name, **given, **affine, output_mask=(True, True, True)))
    for i in range(3):
        part = referenced(call(name, **given, **affine, output_mask=tuple(j == i for j in range(3))))
        assert [one is not None for one in part] == [j == i for j in range(3)]
        np.testing.assert_array_equal(part[i], full[i])


def test_examples_hold_every_operator_of_these_families() -> None:
    from tallystick.programs.operators.aten import (
        attention,
        batch_norm,
        contraction,
        convolution,
        embedding,
        normalization,
        pooling,
    )

    families = (attention, batch_norm, contraction, convolution, embedding, normalization, pooling)
    names = {name for family in families for name in family.FAMILY.operators} - GROUPING.keys() - TABLES.keys()
    assert names == EXAMPLES.keys() == MALFORMED.keys()


@pytest.mark.parametrize("name", EXAMPLES)
def test_parameters_are_those_of_the_schema(name: str) -> None:
    _, kernel, overload = name.split(".")
    schema = getattr(getattr(torch.ops.aten, kernel), overload)._schema
    ours = [(each.name, each.default is not REQUIRED and each.default) for each in operator(name).parameters]
    theirs = [(each.name, each.has_default_value() and _frozen(each.default_value)) for each in schema.arguments]
    assert ours == theirs


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
