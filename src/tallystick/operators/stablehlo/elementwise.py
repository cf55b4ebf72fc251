"""Arithmetic of one element at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tallystick.errors import MalformedError
from tallystick.operators.algebra import Algebra, V
from tallystick.operators.definition import Exactness, Family
from tallystick.operators.stablehlo.arguments import FLOATS, alike, is_integer, require, rounded

FAMILY = Family()

UNARY: Final[dict[str, tuple[str, Exactness, Callable[[Any, Any], Any]]]] = {
    "abs": ("|x|", Exactness.EXACT, lambda a, x: a.abs(x)),
    "negate": ("−x", Exactness.EXACT, lambda a, x: a.neg(x)),
    "sign": ("-1, 0 or 1", Exactness.EXACT, lambda a, x: a.sign(x)),
    "floor": ("⌊x⌋", Exactness.EXACT, lambda a, x: a.floor(x)),
    "ceil": ("⌈x⌉", Exactness.EXACT, lambda a, x: a.ceil(x)),
    "round_nearest_even": ("the nearest integer, ties to even", Exactness.EXACT, lambda a, x: a.round(x)),
    "sqrt": ("√x", Exactness.ROUNDS, lambda a, x: a.sqrt(x)),
    "rsqrt": ("1 / √x", Exactness.LIBRARY, lambda a, x: a.rsqrt(x)),
    "exponential": ("eˣ", Exactness.LIBRARY, lambda a, x: a.exp(x)),
    "exponential_minus_one": ("eˣ − 1", Exactness.LIBRARY, lambda a, x: a.expm1(x)),
    "log": ("log x", Exactness.LIBRARY, lambda a, x: a.log(x)),
    "log_plus_one": ("log(1 + x)", Exactness.LIBRARY, lambda a, x: a.log1p(x)),
    "sine": ("sin x", Exactness.LIBRARY, lambda a, x: a.sin(x)),
    "cosine": ("cos x", Exactness.LIBRARY, lambda a, x: a.cos(x)),
    "tanh": ("tanh x", Exactness.LIBRARY, lambda a, x: a.tanh(x)),
    "logistic": ("1 / (1 + e⁻ˣ)", Exactness.LIBRARY, lambda a, x: a.sigmoid(x)),
    "erf": ("erf x; CHLO's, which every compiler of StableHLO knows", Exactness.LIBRARY, lambda a, x: a.erf(x)),
}
INTEGERS_TOO: Final = frozenset({"abs", "negate", "sign"})

BINARY: Final[dict[str, tuple[str, Exactness, Callable[[Any, Any, Any], Any]]]] = {
    "subtract": ("x − y; integers wrap", Exactness.ROUNDS, lambda a, x, y: a.sub(x, y)),
    "power": ("xʸ", Exactness.LIBRARY, lambda a, x, y: a.pow(x, y)),
    "maximum": ("the greater", Exactness.EXACT, lambda a, x, y: a.maximum(x, y)),
    "minimum": ("the smaller", Exactness.EXACT, lambda a, x, y: a.minimum(x, y)),
}


def _unary(name: str, apply: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def define(a: Algebra[V], operand: V) -> V:
        require(
            operand.dtype in FLOATS or (name in INTEGERS_TOO and is_integer(operand.dtype)),
            f"stablehlo.{name} of {operand.dtype}",
        )
        result: V = apply(a, a.wide(operand))
        return rounded(a, result, operand)

    return define


def _binary(name: str, apply: Callable[[Any, Any, Any], Any]) -> Callable[..., Any]:
    def define(a: Algebra[V], lhs: V, rhs: V) -> V:
        alike(lhs, rhs)
        require(lhs.dtype in FLOATS or name != "power", f"stablehlo.{name} of {lhs.dtype}")
        require(lhs.dtype != "BOOL" or name != "subtract", f"stablehlo.{name} of {lhs.dtype}")
        result: V = apply(a, a.wide(lhs), a.wide(rhs))
        return rounded(a, result, lhs)

    return define


for _name, (_meaning, _exactness, _apply) in UNARY.items():
    FAMILY.operator(f"stablehlo.{_name}", "Tensor operand", _meaning, _exactness)(_unary(_name, _apply))
for _name, (_meaning, _exactness, _applied) in BINARY.items():
    FAMILY.operator(f"stablehlo.{_name}", "Tensor lhs, Tensor rhs", _meaning, _exactness)(_binary(_name, _applied))


@FAMILY.operator("stablehlo.add", "Tensor lhs, Tensor rhs", "x + y; integers wrap, BOOL: or", Exactness.ROUNDS)
def add(a: Algebra[V], lhs: V, rhs: V) -> V:
    """§add."""
    alike(lhs, rhs)
    if lhs.dtype == "BOOL":
        return a.logical_or(lhs, rhs)
    return rounded(a, a.add(a.wide(lhs), a.wide(rhs)), lhs)


@FAMILY.operator("stablehlo.multiply", "Tensor lhs, Tensor rhs", "x·y; integers wrap, BOOL: and", Exactness.ROUNDS)
def multiply(a: Algebra[V], lhs: V, rhs: V) -> V:
    """§multiply."""
    alike(lhs, rhs)
    if lhs.dtype == "BOOL":
        return a.logical_and(lhs, rhs)
    return rounded(a, a.mul(a.wide(lhs), a.wide(rhs)), lhs)


@FAMILY.operator("stablehlo.divide", "Tensor lhs, Tensor rhs", "x / y; integers truncate", Exactness.ROUNDS)
def divide(a: Algebra[V], lhs: V, rhs: V) -> V:
    """§divide. An integer divided by 0 is left to the implementation; here -1, as in XLA."""
    alike(lhs, rhs)
    if lhs.dtype in FLOATS:
        return rounded(a, a.div(a.wide(lhs), a.wide(rhs)), lhs)
    quotient, _ = _truncated(a, lhs, rhs)
    return a.where(a.compare(rhs, 0, "eq"), a.logical_not(a.full(lhs.shape, 0, lhs.dtype)), quotient)


@FAMILY.operator("stablehlo.remainder", "Tensor lhs, Tensor rhs", "sign of x; integers only", Exactness.EXACT)
def remainder(a: Algebra[V], lhs: V, rhs: V) -> V:
    """§remainder. An integer modulo 0 is left to the implementation; here itself, as in XLA."""
    alike(lhs, rhs)
    _, left = _truncated(a, lhs, rhs)
    return a.where(a.compare(rhs, 0, "eq"), lhs, left)


@FAMILY.operator("stablehlo.clamp", "Tensor min, Tensor operand, Tensor max", "min(max(x, low), high)", Exactness.EXACT)
def clamp(a: Algebra[V], min: V, operand: V, max: V) -> V:
    """§clamp; the limits are as large as the operand, or 0-dimensional."""
    for limit in (min, max):
        require(limit.dtype == operand.dtype and limit.shape in {(), operand.shape}, "the limits do not fit")
    return a.minimum(a.maximum(operand, min), max)


def _truncated(a: Algebra[V], x: V, y: V) -> tuple[V, V]:
    """Quotient towards zero and remainder of integers, with 1 in place of a divisor 0."""
    if not is_integer(x.dtype):
        raise MalformedError(f"{x.dtype} where integers stand")
    divisor = a.where(a.compare(y, 0, "eq"), 1, y)
    floored = a.floor_divide(x, divisor)
    left = a.sub(x, a.mul(floored, divisor))
    signs_differ = a.logical_xor(a.compare(x, 0, "lt"), a.compare(divisor, 0, "lt"))
    is_one_less = a.logical_and(a.compare(left, 0, "ne"), signs_differ)
    quotient = a.where(is_one_less, a.add(floored, 1), floored)
    return quotient, a.where(is_one_less, a.sub(left, divisor), left)
