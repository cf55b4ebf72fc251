"""Example calls of elementwise arithmetic, activations, comparisons, reductions, softmax, losses and optimizers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from tallystick.programs.operators.aten import (
    activation,
    activation as softmax,
    comparison,
    elementwise,
    elementwise as optimizer,
    loss,
    reduction,
)
from tallystick.programs.operators.definition import operator
from tests.programs.operators.examples import Bf16, Call, call

Array = npt.NDArray[Any]
FAMILIES = (activation, comparison, elementwise, loss, optimizer, reduction, softmax)
NAMES = {name for family in FAMILIES for name in family.FAMILY.operators}
INF = float("inf")
NAN = float("nan")


def floats(*shape: int, seed: int = 0, scale: float = 1.0) -> Array:
    """Normally distributed F32, the same at every call."""
    return np.asarray((scale * np.random.default_rng([seed, *shape]).standard_normal(shape)), np.float32)


def positive(*shape: int, seed: int = 0) -> Array:
    """Between 0.1 and 3."""
    return np.asarray(np.random.default_rng([1, seed, *shape]).uniform(0.1, 3, shape), np.float32)


def shares(*shape: int, seed: int = 0) -> Array:
    """Between 0.01 and 0.99."""
    return np.asarray(np.random.default_rng([2, seed, *shape]).uniform(0.01, 0.99, shape), np.float32)


def narrow(*shape: int, seed: int = 0) -> Bf16:
    """Normally distributed BF16."""
    return Bf16(floats(*shape, seed=seed))


def integers(*shape: int, low: int = -9, high: int = 10, dtype: str = "<i8") -> Array:
    """Uniform in low … high − 1."""
    return np.random.default_rng([3, *shape]).integers(low, high, shape).astype(dtype)


def truths(*shape: int, seed: int = 0) -> Array:
    """BOOL."""
    return floats(*shape, seed=seed) > 0


def number(value: float, dtype: str = "<f4") -> Array:
    """A 0-dimensional tensor."""
    return np.array(value, dtype)


SPECIAL = np.array([0.0, -0.0, 1.0, -1.0, 1e-37, 3e38, INF, -INF, NAN], np.float32)
EMPTY = np.zeros((0, 3), np.float32)


# ---- one operand

ROUNDED = ("floor", "ceil", "trunc", "round")
ANYWHERE = ("exp", "expm1", "sin", "cos", "tan", "tanh", "erf", "sigmoid", "exp2")
ABOVE_ZERO = ("sqrt", "rsqrt", "log", "log1p", "log2", "log10", "reciprocal")
ACTIVATIONS = ("relu", "relu6", "hardtanh", "leaky_relu", "silu", "gelu", "elu", "softplus", "hardsigmoid")
ACTIVATIONS += ("hardswish", "log_sigmoid", "mish")


def unary() -> Iterator[Call]:
    for name in (*ROUNDED, *ANYWHERE, *ABOVE_ZERO, *ACTIVATIONS, "abs", "neg", "sign", "sgn", "square"):
        full = f"aten.{name}.default"
        make = positive if name in ABOVE_ZERO else floats
        for x in (make(4, 5), Bf16(make(7)), make(6).astype(np.float16), make(3).astype(np.float64), make(), EMPTY):
            yield call(full, self=x)
    for name in (*ANYWHERE, *ABOVE_ZERO):
        yield call(f"aten.{name}.default", self=integers(5, low=1))
    for name in (*ROUNDED, "abs", "neg", "sign", "sgn", "square", "relu"):
        yield call(f"aten.{name}.default", self=integers(5))
    for name in ("abs", "neg", "sign", "sgn", "floor", "ceil", "trunc", "round", "relu", "sqrt", "exp", "tanh", "erf"):
        yield call(f"aten.{name}.default", self=SPECIAL)
    for name in ("isnan", "isinf", "isfinite", "logical_not"):
        for x in (SPECIAL, integers(4), truths(3), EMPTY, Bf16(SPECIAL)):
            yield call(f"aten.{name}.default", self=x)
    yield call("aten.bitwise_not.default", self=integers(5, dtype="<i4"))
    yield call("aten.bitwise_not.default", self=truths(5))
    yield call("aten.nan_to_num.default", self=SPECIAL)
    yield call("aten.nan_to_num.default", self=SPECIAL, nan=1.5, posinf=2.0, neginf=-3.0)
    yield call("aten.nan_to_num.default", self=integers(4))
    yield call("aten.round.default", self=np.array([0.5, 1.5, -2.5, 2.5], np.float32))


def activations() -> Iterator[Call]:
    x, g = floats(4, 6, scale=3), floats(4, 6, seed=1)
    for approximate in ("none", "tanh"):
        for operand in (x, narrow(5), SPECIAL[:5]):
            yield call("aten.gelu.default", self=operand, approximate=approximate)
        yield call("aten.gelu_backward.default", grad_output=g, self=x, approximate=approximate)
        yield call("aten.gelu_backward.default", grad_output=narrow(9), self=narrow(9), approximate=approximate)
    yield call("aten.silu_backward.default", grad_output=g, self=x)
    yield call("aten.silu_backward.default", grad_output=narrow(9), self=narrow(9))
    yield call("aten.sigmoid_backward.default", grad_output=g, output=shares(4, 6))
    yield call("aten.tanh_backward.default", grad_output=g, output=shares(4, 6))
    yield call("aten.threshold.default", self=x, threshold=0.5, value=-2)
    yield call("aten.threshold_backward.default", grad_output=g, self=x, threshold=0)
    yield call("aten.threshold_backward.default", grad_output=floats(9), self=SPECIAL, threshold=0)
    yield call("aten.threshold_backward.default", grad_output=narrow(9), self=narrow(9, seed=1), threshold=0.1)
    yield call("aten.hardtanh.default", self=x, min_val=-0.3, max_val=0.7)
    yield call("aten.hardtanh_backward.default", grad_output=g, self=x, min_val=-1, max_val=1)
    yield call("aten.leaky_relu.default", self=x, negative_slope=0.2)
    for is_result in (False, True):
        given = {"grad_output": g, "negative_slope": 0.1, "self_is_result": is_result}
        yield call("aten.leaky_relu_backward.default", self=x, **given)
        scales = {"alpha": 1.5, "scale": 1.1, "input_scale": 1.0, "is_result": is_result}
        yield call("aten.elu_backward.default", grad_output=g, self_or_result=np.maximum(x, -1), **scales)
    yield call("aten.elu.default", self=x, alpha=1.6, scale=1.05, input_scale=0.9)
    yield call("aten.softplus.default", self=x, beta=2, threshold=5)
    yield call("aten.softplus_backward.default", grad_output=g, self=x, beta=2, threshold=5)
    edges = np.array([-3.5, -3, -2.5, 0, 2.5, 3, 3.5], np.float32)
    for name in ("hardsigmoid_backward", "hardswish_backward", "mish_backward"):
        yield call(f"aten.{name}.default", grad_output=floats(7), self=edges)
        yield call(f"aten.{name}.default", grad_output=g, self=x)
        yield call(f"aten.{name}.default", grad_output=narrow(7), self=narrow(7, seed=1))
    for operand in (x, narrow(7)):
        yield call("aten.log_sigmoid_forward.default", self=operand)
    yield call("aten.log_sigmoid_backward.default", grad_output=g, self=x, buffer=np.exp(-np.abs(x)))
    yield call("aten.glu_backward.default", grad_output=floats(4, 3), self=x, dim=1)
    yield call("aten.glu.default", self=x)
    yield call("aten.glu.default", self=x, dim=0)


# ---- two operands and more


def pairs() -> Iterator[tuple[Any, Any]]:
    """Operands of all kinds that meet: by shape, by dtype, with 0-dimensional tensors."""
    yield floats(4, 5), floats(4, 5, seed=1) + 3
    yield floats(4, 1, 5), positive(3, 1)
    yield narrow(4, 5), Bf16(positive(5))
    yield floats(6), number(0.1, "<f8")
    yield number(2.5), floats(3, seed=2) + 3
    yield number(2.5, "<f8"), number(0.3)
    yield narrow(6), number(0.1, "<f8")
    yield integers(5), number(0.7)
    yield integers(5, dtype="<i4"), positive(5)
    yield EMPTY, positive(3)


def arithmetic() -> Iterator[Call]:
    for name in ("add.Tensor", "sub.Tensor", "rsub.Tensor", "mul.Tensor", "div.Tensor"):
        for x, y in pairs():
            yield call(f"aten.{name}", self=x, other=y)
    for name in ("add.Scalar", "sub.Scalar", "rsub.Scalar", "mul.Scalar", "div.Scalar"):
        for x, y in ((floats(4), 0.1), (floats(4), 3), (narrow(4), 0.1), (integers(4), 2), (integers(4), 0.5)):
            yield call(f"aten.{name}", self=x, other=y)
        yield call(f"aten.{name}", self=integers(4, dtype="<u1", low=0), other=7)
    for name in ("add", "sub", "rsub"):
        yield call(f"aten.{name}.Tensor", self=floats(4), other=floats(4, seed=1), alpha=0.3)
        yield call(f"aten.{name}.Tensor", self=narrow(4), other=narrow(4, seed=1), alpha=2)
        yield call(f"aten.{name}.Tensor", self=integers(4), other=integers(4, low=3), alpha=-2)
        yield call(f"aten.{name}.Scalar", self=floats(4), other=3, alpha=0.3)
    yield call("aten.add.Tensor", self=truths(6), other=truths(6, seed=1))
    yield call("aten.mul.Tensor", self=truths(6), other=truths(6, seed=1))
    yield call("aten.add.Tensor", self=integers(6), other=truths(6, seed=1))
    yield call("aten.add.Tensor", self=np.array([2**31 - 1, -(2**31)], "<i4"), other=np.array([1, -1], "<i4"))
    yield call("aten.mul.Tensor", self=np.array([2**62, -5]), other=np.array([4, 2**62]))
    yield call("aten.add.Tensor", self=SPECIAL, other=SPECIAL[::-1].copy())
    yield call("aten.div.Tensor", self=SPECIAL, other=SPECIAL[::-1].copy())
    yield call("aten.div.Tensor", self=SPECIAL, other=number(0.0))
    yield call("aten.div.Tensor", self=integers(5), other=integers(5, low=1))
    yield from whole_quotients()
    yield from powers()


def whole_quotients() -> Iterator[Call]:
    operands = ((floats(9, scale=9), positive(9)), (integers(9), np.array([3, -3, 2, -2, 1, -1, 4, 5, -5])))
    for x, y in operands:
        for mode in ("floor", "trunc", None):
            yield call("aten.div.Tensor_mode", self=x, other=y, rounding_mode=mode)
            yield call("aten.div.Scalar_mode", self=x, other=-2, rounding_mode=mode)
        for name in ("floor_divide.default", "remainder.Tensor", "fmod.Tensor"):
            yield call(f"aten.{name}", self=x, other=y)
        for name in ("floor_divide.Scalar", "remainder.Scalar", "fmod.Scalar"):
            yield call(f"aten.{name}", self=x, other=-4)
        yield call("aten.remainder.Scalar_Tensor", self=7, other=y)


def powers() -> Iterator[Call]:
    for exponent in (2, 3, 0.5, -0.5, -1, -2, 0, 1, 1.7, 2.0, 5):
        yield call("aten.pow.Tensor_Scalar", self=positive(5), exponent=exponent)
        yield call("aten.pow.Tensor_Scalar", self=Bf16(positive(5)), exponent=exponent)
    for exponent in (2, 3, 0, 1, 2.5):
        yield call("aten.pow.Tensor_Scalar", self=integers(5, low=1), exponent=exponent)
    yield call("aten.pow.Tensor_Scalar", self=SPECIAL, exponent=2)
    yield call("aten.pow.Scalar", self=0.9, exponent=floats(5))
    yield call("aten.pow.Scalar", self=0.999, exponent=number(17.0))
    yield call("aten.pow.Scalar", self=1, exponent=SPECIAL)
    yield call("aten.pow.Scalar", self=10000.0, exponent=integers(5))
    yield call("aten.pow.Tensor_Tensor", self=positive(4, 3), exponent=floats(3))
    yield call("aten.pow.Tensor_Tensor", self=number(0.9), exponent=number(3.0))


def logarithms() -> Iterator[Call]:
    x, y = floats(3, 4) * (np.arange(12).reshape(3, 4) % 3 > 0).astype(np.float32), positive(3, 4)
    for name in ("aten.xlogy.Tensor", "aten.special_xlog1py.default"):
        yield call(name, self=x, other=y)
        yield call(name, self=np.arange(4), other=y)
    yield call("aten.xlogy.Scalar_Self", self=0.3, other=y)
    yield call("aten.xlogy.Scalar_Other", self=x, other=1.7)


def optimizers() -> Iterator[Call]:
    x, y, z = floats(3, 4), floats(3, 4, seed=1), positive(3, 4)
    for value in (1, -0.001, 2):
        yield call("aten.addcmul.default", self=x, tensor1=y, tensor2=z, value=value)
        yield call("aten.addcdiv.default", self=x, tensor1=y, tensor2=z, value=value)
    yield call("aten.addcmul.default", self=narrow(4), tensor1=narrow(4, seed=1), tensor2=narrow(4, seed=2), value=0.1)
    yield call("aten.addcmul.default", self=integers(4), tensor1=integers(4), tensor2=integers(4), value=3)
    yield call("aten.addcdiv.default", self=x, tensor1=y, tensor2=positive(4))
    for weight in (0.1, 0.5, 0.9, 1, 0, -0.7, 1.5):
        yield call("aten.lerp.Scalar", self=x, end=y, weight=weight)
    yield call("aten.lerp.Scalar", self=narrow(4), end=narrow(4, seed=1), weight=0.1)
    yield call("aten.lerp.Tensor", self=x, end=y, weight=floats(3, 4, seed=5))
    yield call("aten.lerp.Tensor", self=x, end=y, weight=number(0.3))


# ---- comparisons


def comparisons() -> Iterator[Call]:
    for how in ("eq", "ne", "lt", "le", "gt", "ge"):
        yield call(f"aten.{how}.Tensor", self=SPECIAL, other=np.roll(SPECIAL, 1))
        yield call(f"aten.{how}.Tensor", self=SPECIAL, other=SPECIAL)
        yield call(f"aten.{how}.Tensor", self=integers(4, 5), other=integers(5))
        yield call(f"aten.{how}.Tensor", self=integers(5), other=floats(5))
        yield call(f"aten.{how}.Scalar", self=floats(6), other=0.1)
        yield call(f"aten.{how}.Scalar", self=Bf16(np.array([0.1, 0.10009765625, 2])), other=0.1)
        yield call(f"aten.{how}.Scalar", self=integers(6), other=0)
        yield call(f"aten.{how}.Scalar", self=integers(6), other=0.5)
        yield call(f"aten.{how}.Tensor", self=truths(4), other=truths(4, seed=1))
    for name in ("and", "or", "xor"):
        yield call(f"aten.logical_{name}.default", self=truths(6), other=truths(6, seed=1))
        yield call(f"aten.logical_{name}.default", self=integers(6, low=0, high=2), other=floats(6))
        for full in (f"aten.bitwise_{name}", f"aten.__{name}__"):
            yield call(f"{full}.Tensor", self=integers(4, 5), other=integers(5, dtype="<i4"))
            yield call(f"{full}.Tensor", self=truths(6), other=truths(6, seed=1))
            yield call(f"{full}.Scalar", self=integers(6), other=5)
            yield call(f"{full}.Scalar", self=truths(6), other=True)


def choices() -> Iterator[Call]:
    condition = truths(3, 4)
    yield call("aten.where.self", condition=condition, self=floats(3, 4), other=floats(4))
    yield call("aten.where.self", condition=condition, self=floats(4), other=number(1, "<i8"))
    yield call("aten.where.self", condition=condition, self=narrow(4), other=narrow(3, 1))
    yield call("aten.where.ScalarOther", condition=condition, self=floats(3, 4), other=-INF)
    yield call("aten.where.ScalarSelf", condition=condition, self=0.1, other=integers(4))
    for x, y in ((1.5, 2), (1, 2), (True, False)):
        yield call("aten.where.Scalar", condition=condition, self=x, other=y)
    for x in (floats(3, 4), narrow(3, 4), integers(3, 4)):
        yield call("aten.masked_fill.Scalar", self=x, mask=condition, value=-7)
        yield call("aten.masked_fill.Tensor", self=x, mask=truths(4), value=number(3))
    yield call("aten.masked_fill.Scalar", self=floats(3, 4), mask=condition, value=-INF)
    yield call("aten.masked_fill.Scalar", self=narrow(3, 4), mask=condition, value=-3.3895313892515355e38)
    for name in ("maximum.default", "minimum.default", "max.other", "min.other"):
        for x, y in ((floats(4, 5), floats(5)), (SPECIAL, np.roll(SPECIAL, 1)), (integers(5), integers(5) * -1)):
            yield call(f"aten.{name}", self=x, other=y)
        yield call(f"aten.{name}", self=truths(5), other=truths(5, seed=1))
    yield from clamps()


def clamps() -> Iterator[Call]:
    for low, high in ((-0.5, 0.5), (None, 0.3), (0, None), (1, -1), (NAN, 1.0)):
        yield call("aten.clamp.default", self=floats(4, 5), min=low, max=high)
    yield call("aten.clamp.default", self=narrow(6), min=-0.3, max=0.1)
    yield call("aten.clamp.default", self=integers(6), min=-2, max=3)
    yield call("aten.clamp.default", self=integers(6), min=-1.5)
    yield call("aten.clamp.default", self=SPECIAL, min=-2, max=2)
    yield call("aten.clamp.Tensor", self=floats(4, 5), min=floats(5) - 1, max=number(0.5))
    yield call("aten.clamp.Tensor", self=floats(4, 5), max=floats(4, 1))
    yield call("aten.clamp_min.default", self=floats(4, 5), min=0.1)
    yield call("aten.clamp_min.Tensor", self=floats(4, 5), min=floats(5))
    yield call("aten.clamp_max.default", self=floats(4, 5), max=0.1)
    yield call("aten.clamp_max.Tensor", self=floats(4, 5), max=floats(5))


# ---- reductions


def sums() -> Iterator[Call]:
    operands = (floats(3, 4, 5), narrow(3, 4), number(2.5), integers(3, 4, dtype="<i4"), truths(3, 4))
    for x in operands:
        shape = x.array.shape if isinstance(x, Bf16) else x.shape
        yield call("aten.sum.default", self=x)
        yield call("aten.prod.default", self=x)
        for dim in ((-1,), (), None, (0, -1) if shape else (0,)):
            yield call("aten.sum.dim_IntList", self=x, dim=dim, keepdim=dim == (-1,))
        yield call("aten.cumsum.default", self=x, dim=-1)
        yield call("aten.prod.dim_int", self=x, dim=0)
        if not isinstance(x, Bf16) and x.dtype.kind != "f":
            continue
        yield call("aten.mean.default", self=x)
        yield call("aten.mean.dim", self=x, dim=(-1,), keepdim=True)
        yield call("aten.mean.dim", self=x, dim=(0,))
    yield call("aten.sum.dim_IntList", self=narrow(3, 4), dim=(0,), dtype="F32")
    yield call("aten.sum.default", self=integers(4), dtype="F32")
    yield call("aten.mean.default", self=integers(4), dtype="F32")
    yield call("aten.cumsum.default", self=integers(3, 4), dim=0, dtype="F32")
    for x in (EMPTY, floats(2, 0)):
        yield call("aten.sum.dim_IntList", self=x, dim=(0,))
        yield call("aten.mean.default", self=x)
        yield call("aten.prod.default", self=x)
        yield call("aten.cumsum.default", self=x, dim=0)
    yield call("aten.sum.default", self=SPECIAL)
    for x in (floats(3, 4), integers(3, 4, low=0, high=2), truths(3, 4), SPECIAL):
        yield call("aten.count_nonzero.default", self=x)
        yield call("aten.count_nonzero.default", self=x, dim=-1)
        yield call("aten.count_nonzero.dim_IntList", self=x, dim=(0,))


def extremes() -> Iterator[Call]:
    for x in (floats(3, 4), narrow(3, 4), integers(3, 4), truths(3, 4), SPECIAL, number(3)):
        for name in ("max", "min", "argmax", "argmin", "aminmax", "amax", "amin"):
            if not (name.startswith("arg") and not isinstance(x, Bf16) and x.dtype == bool):
                yield call(f"aten.{name}.default", self=x)
        for name in ("max.dim", "min.dim"):
            yield call(f"aten.{name}", self=x, dim=-1)
            yield call(f"aten.{name}", self=x, dim=0, keepdim=True)
        yield call("aten.amax.default", self=x, dim=(-1,), keepdim=True)
        yield call("aten.amin.default", self=x, dim=(0,))
        yield call("aten.aminmax.default", self=x, dim=0, keepdim=True)
        for name in ("any", "all"):
            yield call(f"aten.{name}.default", self=x)
            yield call(f"aten.{name}.dim", self=x, dim=-1, keepdim=True)
            yield call(f"aten.{name}.dims", self=x, dim=(0,))
            yield call(f"aten.{name}.dims", self=x)
    for name in ("argmax", "argmin"):
        yield call(f"aten.{name}.default", self=floats(3, 4), dim=1)
        yield call(f"aten.{name}.default", self=floats(3, 4), dim=0, keepdim=True)
        yield call(f"aten.{name}.default", self=floats(3, 4), keepdim=True)
        yield call(f"aten.{name}.default", self=np.array([1, 3, 3, 1, 3], np.float32))
        yield call(f"aten.{name}.default", self=integers(9, low=0, dtype="<u1"))
    for name in ("any", "all"):
        yield call(f"aten.{name}.default", self=EMPTY)
        yield call(f"aten.{name}.dim", self=EMPTY, dim=0)
        yield call(f"aten.{name}.default", self=integers(4, low=0, high=2, dtype="<u1"))


def variances() -> Iterator[Call]:
    x = floats(3, 4, 5) + 2
    for name in ("var", "var_mean", "std"):
        for given in ({}, {"dim": (1,)}, {"dim": (-1, 0), "correction": 0, "keepdim": True}, {"correction": 2.5}):
            yield call(f"aten.{name}.correction", self=x, **given)
        yield call(f"aten.{name}.correction", self=narrow(6), correction=0)
        yield call(f"aten.{name}.correction", self=floats(1, 4), dim=(1,), correction=5)
    for unbiased in (True, False):
        yield call("aten.var.default", self=x, unbiased=unbiased)
        yield call("aten.var.dim", self=x, dim=(0, 2), unbiased=unbiased)


def norms() -> Iterator[Call]:
    for order in (2, 1, 0, INF, -INF, 3, 0.5, 2.5):
        yield call("aten.linalg_vector_norm.default", self=floats(3, 4), ord=order)
        yield call("aten.linalg_vector_norm.default", self=floats(3, 4), ord=order, dim=(1,), keepdim=True)
    yield call("aten.linalg_vector_norm.default", self=narrow(9))
    yield call("aten.linalg_vector_norm.default", self=narrow(9), dtype="F32")
    yield call("aten.norm.Scalar", self=floats(3, 4))
    yield call("aten.norm.ScalarOpt_dim", self=floats(3, 4), p=None, dim=(0,))
    yield call("aten.norm.ScalarOpt_dim", self=floats(3, 4), p=1, dim=(0, 1), keepdim=True)
    for x in (floats(3, 4), floats(3, 4, scale=100), narrow(3, 4), integers(3, 4)):
        yield call("aten.logsumexp.default", self=x, dim=(1,))
        yield call("aten.logsumexp.default", self=x, dim=(0, -1), keepdim=True)
    yield call("aten.logsumexp.default", self=np.full((2, 3), -np.inf, np.float32), dim=(1,))
    yield call("aten.logsumexp.default", self=EMPTY, dim=(0,))
    yield call("aten.logsumexp.default", self=number(0.5), dim=(0,))


# ---- softmax and losses


def softmaxes() -> Iterator[Call]:
    operands = (floats(3, 4), floats(2, 3, 4, scale=30), narrow(3, 4), number(0.5), EMPTY, np.zeros((3, 0), "<f4"))
    for name in ("softmax", "log_softmax"):
        for x in operands:
            yield call(f"aten._{name}.default", self=x, dim=-1, half_to_float=False)
            yield call(f"aten.{name}.int", self=x, dim=0)
        yield call(f"aten.{name}.int", self=narrow(3, 4), dim=1, dtype="F32")
        masked = np.where(truths(3, 4), floats(3, 4), -np.inf).astype(np.float32)
        masked[1] = -np.inf
        yield call(f"aten._{name}.default", self=masked, dim=1, half_to_float=False)
    yield call("aten._safe_softmax.default", self=masked, dim=1)
    yield call("aten._safe_softmax.default", self=narrow(3, 4), dim=1, dtype="F32")
    for dim in (0, -1):
        given = {"grad_output": floats(3, 4), "dim": dim, "input_dtype": "F32"}
        yield call("aten._softmax_backward_data.default", output=shares(3, 4), **given)
        yield call("aten._log_softmax_backward_data.default", output=-positive(3, 4), **given)
    given = {"grad_output": narrow(3, 4), "dim": 1, "input_dtype": "BF16"}
    yield call("aten._softmax_backward_data.default", output=Bf16(shares(3, 4)), **given)
    yield call("aten._log_softmax_backward_data.default", output=Bf16(-positive(3, 4)), **given)


def likelihoods() -> Iterator[Call]:
    targets = np.array([1, 4, -100, 0])
    for how in (0, 1, 2):
        for weight in (None, positive(5)):
            shared = {"weight": weight, "reduction": how, "ignore_index": -100}
            yield call("aten.nll_loss_forward.default", self=floats(4, 5), target=targets, **shared)
            yield call("aten.nll_loss_forward.default", self=floats(5), target=number(3, "<i8"), **shared)
            images = {"self": floats(2, 5, 3, 4), "target": integers(2, 3, 4, low=0, high=5)}
            yield call("aten.nll_loss2d_forward.default", **images, **shared)
            total = {"total_weight": number(2.5)}
            g = floats(4) if how == 0 else number(0.7)
            given = {"grad_output": g, "self": floats(4, 5), "target": targets}
            yield call("aten.nll_loss_backward.default", **given, **shared, **total)
            g = floats(2, 3, 4) if how == 0 else number(0.7)
            yield call("aten.nll_loss2d_backward.default", grad_output=g, **images, **shared, **total)
            for smoothing in (0.0, 0.1):
                given = {"weight": weight, "reduction": how, "label_smoothing": smoothing}
                yield call("aten.cross_entropy_loss.default", self=floats(4, 5), target=targets, **given)
                yield call("aten.cross_entropy_loss.default", self=floats(4, 5), target=shares(4, 5), **given)


def distances() -> Iterator[Call]:
    x, y, g = floats(3, 4), floats(3, 4, seed=1), floats(3, 4, seed=2)
    for how in (0, 1, 2):
        given = {"self": x, "target": y, "reduction": how}
        grad = {"grad_output": g if how == 0 else number(0.7)}
        yield call("aten.mse_loss.default", **given)
        yield call("aten.mse_loss_backward.default", **grad, **given)
        yield call("aten.l1_loss.default", **given)
        for beta in (0.5, 1.0):
            yield call("aten.smooth_l1_loss.default", **given, beta=beta)
            yield call("aten.smooth_l1_loss_backward.default", **grad, **given, beta=beta)
            yield call("aten.huber_loss.default", **given, delta=beta)
            yield call("aten.huber_loss_backward.default", **grad, **given, delta=beta)
        yield call("aten.mse_loss.default", self=narrow(3, 4), target=narrow(3, 4, seed=1), reduction=how)
        for weight in (None, positive(4)):
            chances = {"self": shares(3, 4), "target": shares(3, 4, seed=1), "weight": weight, "reduction": how}
            yield call("aten.binary_cross_entropy.default", **chances)
            yield call("aten.binary_cross_entropy_backward.default", **grad, **chances)
            logits = {"self": x, "target": shares(3, 4), "weight": weight, "reduction": how}
            yield call("aten.binary_cross_entropy_with_logits.default", **logits)
            yield call("aten.binary_cross_entropy_with_logits.default", **logits, pos_weight=positive(4))
    yield call(
        "aten.binary_cross_entropy.default", self=np.array([0, 1, 0, 1], "<f4"), target=np.array([0, 1, 1, 0], "<f4")
    )


def malformed() -> Iterator[Call]:
    """Calls that are refused, by their dtypes and shapes alone."""
    f, wide = floats(4), floats(4, 5)
    for name in sorted(NAMES):
        accepted = EXAMPLES[name][0].arguments
        operands = [key for key, value in accepted.items() if isinstance(value, np.ndarray | Bf16)]
        if len(operands) > 1 and "total_weight" not in accepted:
            yield Call(name, {**accepted, operands[0]: floats(7, 11, 13), operands[1]: floats(2, 3)})
        elif "dim" in accepted:
            is_list = any(each.name == "dim" and "[]" in each.kind for each in operator(name).parameters)
            yield Call(name, {**accepted, "dim": (9,) if is_list else 9})
    for name in ("neg", "abs", "max", "relu", "square"):
        yield call(f"aten.{name}.default", self=np.zeros((0,), "<f4") if name == "max" else truths(3))
    yield call("aten.sub.Tensor", self=truths(3), other=truths(3))
    yield call("aten.add.Tensor", self=f, other=wide[:, :3])
    yield call("aten.bitwise_and.Tensor", self=f, other=f)
    yield call("aten.bitwise_not.default", self=f)
    for key in ("Self", "Other"):
        numbers, other = ("self", "other") if key == "Self" else ("other", "self")
        yield call(f"aten.xlogy.Scalar_{key}", **{numbers: 1.0, other: np.zeros(3, np.uint16)})
    yield call("aten.where.self", condition=f, self=f, other=f)
    yield call("aten.masked_fill.Tensor", self=f, mask=truths(4), value=f)
    yield call("aten.masked_fill.Scalar", self=integers(4), mask=truths(4), value=0.5)
    yield call("aten.clamp.default", self=f)
    yield call("aten.gelu.default", self=f, approximate="quick")
    yield call("aten.div.Tensor_mode", self=f, other=f, rounding_mode="up")
    yield call("aten.mean.default", self=integers(4))
    yield call("aten.sum.dim_IntList", self=wide, dim=(0, -2))
    yield call("aten.glu.default", self=floats(3))
    yield call("aten.mse_loss.default", self=f, target=f, reduction=3)
    yield call("aten.leaky_relu_backward.default", grad_output=f, self=f, negative_slope=-1.0, self_is_result=True)
    yield call("aten.pow.Tensor_Scalar", self=integers(4), exponent=-1)


def every_call() -> Iterator[Call]:
    groups = (
        unary,
        activations,
        arithmetic,
        logarithms,
        optimizers,
        comparisons,
        choices,
        sums,
        extremes,
        variances,
        norms,
    )
    for group in (*groups, softmaxes, likelihoods, distances):
        yield from group()


def by_operator(calls: Iterator[Call]) -> dict[str, list[Call]]:
    """The calls of each operator."""
    found: dict[str, list[Call]] = {}
    for each in calls:
        found.setdefault(each.operator, []).append(each)
    return found


EXAMPLES = by_operator(every_call())
MALFORMED = by_operator(malformed())
