"""Arithmetic, comparison, selection, bits and conversion of one element at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tallystick.core.errors import MalformedError
from tallystick.programs.operators.algebra import Algebra, Comparison, V
from tallystick.programs.operators.definition import Exactness, Family
from tallystick.programs.operators.stablehlo.arguments import FLOATS, UNSIGNED, alike, is_integer, require, rounded

# Arithmetic of one element at a time.

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


# Comparison, selection, bits and conversion.

DIRECTIONS: Final[dict[str, Comparison]] = {"EQ": "eq", "NE": "ne", "GE": "ge", "GT": "gt", "LE": "le", "LT": "lt"}
BITWISE: Final[dict[str, Callable[[Any, Any, Any], Any]]] = {
    "and": lambda a, x, y: a.logical_and(x, y),
    "or": lambda a, x, y: a.logical_or(x, y),
    "xor": lambda a, x, y: a.logical_xor(x, y),
}
SHIFTS: Final = ("shift_left", "shift_right_logical", "shift_right_arithmetic")


def _bitwise(name: str, apply: Callable[[Any, Any, Any], Any]) -> Callable[..., Any]:
    def define(a: Algebra[V], lhs: V, rhs: V) -> V:
        alike(lhs, rhs)
        require(lhs.dtype not in FLOATS, f"stablehlo.{name} of {lhs.dtype}")
        result: V = apply(a, lhs, rhs)
        return result

    return define


def _shift(name: str) -> Callable[..., Any]:
    def define(a: Algebra[V], lhs: V, rhs: V) -> V:
        alike(lhs, rhs)
        require(is_integer(lhs.dtype), f"stablehlo.{name} of {lhs.dtype}")
        require(
            name == "shift_left" or (name == "shift_right_logical") == (lhs.dtype in UNSIGNED),
            f"stablehlo.{name} of {lhs.dtype}: unsigned shift logically, signed arithmetically",
        )
        return a.shift_left(lhs, rhs) if name == "shift_left" else a.shift_right(lhs, rhs)

    return define


for _operation, _evaluate in BITWISE.items():
    FAMILY.operator(
        f"stablehlo.{_operation}", "Tensor lhs, Tensor rhs", f"x {_operation} y, of every bit", Exactness.EXACT
    )(_bitwise(_operation, _evaluate))
for _operation in SHIFTS:
    FAMILY.operator(
        f"stablehlo.{_operation}", "Tensor lhs, Tensor rhs", "bits of x moved by y places", Exactness.EXACT
    )(_shift(_operation))


@FAMILY.operator("stablehlo.not", "Tensor operand", "every bit inverted", Exactness.EXACT)
def invert(a: Algebra[V], operand: V) -> V:
    """§not."""
    require(operand.dtype not in FLOATS, f"stablehlo.not of {operand.dtype}")
    return a.logical_not(operand)


@FAMILY.operator(
    "stablehlo.compare", "Tensor lhs, Tensor rhs, str comparison_direction", "BOOL: x = y, x < y, …", Exactness.EXACT
)
def compare(a: Algebra[V], lhs: V, rhs: V, comparison_direction: str) -> V:
    """§compare, as numbers of the operands' type: no total order of floats."""
    alike(lhs, rhs)
    if comparison_direction not in DIRECTIONS:
        raise MalformedError(f"comparison_direction {comparison_direction!r:.40}")
    return a.compare(lhs, rhs, DIRECTIONS[comparison_direction])


@FAMILY.operator(
    "stablehlo.select", "Tensor pred, Tensor on_true, Tensor on_false", "x where pred holds, else y", Exactness.MOVES
)
def select(a: Algebra[V], pred: V, on_true: V, on_false: V) -> V:
    """§select."""
    alike(on_true, on_false)
    require(pred.dtype == "BOOL" and pred.shape in {(), on_true.shape}, "pred does not fit")
    return a.where(pred, on_true, on_false)


@FAMILY.operator("stablehlo.is_finite", "Tensor x", "BOOL: neither infinite nor NaN", Exactness.EXACT)
def is_finite(a: Algebra[V], x: V) -> V:
    """§is_finite."""
    require(x.dtype in FLOATS, f"stablehlo.is_finite of {x.dtype}")
    return a.is_finite(x)


@FAMILY.operator(
    "stablehlo.convert", "Tensor operand, dtype dtype", "the same number in another type", Exactness.ROUNDS
)
def convert(a: Algebra[V], operand: V, dtype: str) -> V:
    """§convert."""
    return a.cast(operand, dtype)
