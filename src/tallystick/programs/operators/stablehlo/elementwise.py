"""Arithmetic, comparison, selection, bits and conversion of one element at a time."""
# ruff: noqa: D103  (the sections of the specification have the names of the operators)

from __future__ import annotations

from typing import Final

from tallystick.core.errors import MalformedError
from tallystick.core.tensors import FLOATS
from tallystick.programs.operators.algebra import Algebra, Comparison, V
from tallystick.programs.operators.definition import Dtype, Exactness, Family
from tallystick.programs.operators.stablehlo.arguments import UNSIGNED, alike, is_integer, require, rounded

FAMILY = Family("stablehlo")


_INTEGERS_TOO = frozenset({"abs", "neg", "sign"})
_OF_BOOL = {"add": "logical_or", "multiply": "logical_and"}


def _add_unary(exactness: Exactness, name: str, primitive: str, meaning: str) -> None:
    @FAMILY.operator(exactness, name, meaning)
    def computed(a: Algebra[V], operand: V) -> V:
        """§ of the same name; integers for `abs`, `negate` and `sign` alone."""
        allowed = operand.dtype in FLOATS or (primitive in _INTEGERS_TOO and is_integer(operand.dtype))
        require(allowed, f"stablehlo.{name} of {operand.dtype}")
        result: V = getattr(a, primitive)(a.wide(operand))
        return rounded(a, result, operand)


def _add_binary(exactness: Exactness, name: str, primitive: str, meaning: str) -> None:
    @FAMILY.operator(exactness, name, meaning)
    def computed(a: Algebra[V], lhs: V, rhs: V) -> V:
        """§ of the same name; no powers of integers, no differences of BOOL."""
        alike(lhs, rhs)
        require(lhs.dtype in FLOATS or name != "power", f"stablehlo.{name} of {lhs.dtype}")
        require(lhs.dtype != "BOOL" or name != "subtract", f"stablehlo.{name} of {lhs.dtype}")
        computation = _OF_BOOL.get(name, primitive) if lhs.dtype == "BOOL" else primitive
        result: V = getattr(a, computation)(a.wide(lhs), a.wide(rhs))
        return rounded(a, result, lhs)


for _row in (
    (Exactness.EXACT, "abs", "abs", "|x|"),
    (Exactness.EXACT, "negate", "neg", "−x"),
    (Exactness.EXACT, "sign", "sign", "-1, 0 or 1"),
    (Exactness.EXACT, "floor", "floor", "⌊x⌋"),
    (Exactness.EXACT, "ceil", "ceil", "⌈x⌉"),
    (Exactness.EXACT, "round_nearest_even", "round", "the nearest integer, ties to even"),
    (Exactness.ROUNDS, "sqrt", "sqrt", "√x"),
    (Exactness.LIBRARY, "rsqrt", "rsqrt", "1 / √x"),
    (Exactness.LIBRARY, "exponential", "exp", "eˣ"),
    (Exactness.LIBRARY, "exponential_minus_one", "expm1", "eˣ − 1"),
    (Exactness.LIBRARY, "log", "log", "log x"),
    (Exactness.LIBRARY, "log_plus_one", "log1p", "log(1 + x)"),
    (Exactness.LIBRARY, "sine", "sin", "sin x"),
    (Exactness.LIBRARY, "cosine", "cos", "cos x"),
    (Exactness.LIBRARY, "tanh", "tanh", "tanh x"),
    (Exactness.LIBRARY, "logistic", "sigmoid", "1 / (1 + e⁻ˣ)"),
    (Exactness.LIBRARY, "erf", "erf", "erf x; CHLO's, which every compiler of StableHLO knows"),
):
    _add_unary(*_row)
for _row in (
    (Exactness.ROUNDS, "add", "add", "x + y; integers wrap, BOOL: or"),
    (Exactness.ROUNDS, "subtract", "sub", "x − y; integers wrap"),
    (Exactness.ROUNDS, "multiply", "mul", "x·y; integers wrap, BOOL: and"),
    (Exactness.LIBRARY, "power", "pow", "xʸ"),
    (Exactness.EXACT, "maximum", "maximum", "the greater"),
    (Exactness.EXACT, "minimum", "minimum", "the smaller"),
):
    _add_binary(*_row)


@FAMILY.rounds("divide", "x / y; integers truncate")
def divide(a: Algebra[V], lhs: V, rhs: V) -> V:
    """§divide. An integer divided by 0 is left to the implementation; here -1, as in XLA."""
    alike(lhs, rhs)
    if lhs.dtype in FLOATS:
        return rounded(a, a.div(a.wide(lhs), a.wide(rhs)), lhs)
    quotient, _ = _truncated(a, lhs, rhs)
    return a.where(a.compare(rhs, 0, "eq"), a.logical_not(a.full(lhs.shape, 0, lhs.dtype)), quotient)


@FAMILY.exact("remainder", "sign of x; integers only")
def remainder(a: Algebra[V], lhs: V, rhs: V) -> V:
    """§remainder. An integer modulo 0 is left to the implementation; here itself, as in XLA."""
    alike(lhs, rhs)
    _, left = _truncated(a, lhs, rhs)
    return a.where(a.compare(rhs, 0, "eq"), lhs, left)


@FAMILY.exact("clamp", "min(max(x, low), high)")
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


def _add_bitwise(name: str) -> None:
    @FAMILY.exact(f"{name}", f"x {name} y, of every bit")
    def bitwise(a: Algebra[V], lhs: V, rhs: V) -> V:
        alike(lhs, rhs)
        require(lhs.dtype not in FLOATS, f"stablehlo.{name} of {lhs.dtype}")
        result: V = getattr(a, f"logical_{name}")(lhs, rhs)
        return result


for _name in ("and", "or", "xor"):
    _add_bitwise(_name)


def _add_shift(name: str) -> None:
    @FAMILY.exact(f"{name}", "bits of x moved by y places")
    def shifted(a: Algebra[V], lhs: V, rhs: V) -> V:
        alike(lhs, rhs)
        require(is_integer(lhs.dtype), f"stablehlo.{name} of {lhs.dtype}")
        require(
            name == "shift_left" or (name == "shift_right_logical") == (lhs.dtype in UNSIGNED),
            f"stablehlo.{name} of {lhs.dtype}: unsigned shift logically, signed arithmetically",
        )
        return a.shift_left(lhs, rhs) if name == "shift_left" else a.shift_right(lhs, rhs)


for _name in ("shift_left", "shift_right_logical", "shift_right_arithmetic"):
    _add_shift(_name)


@FAMILY.exact("not", "every bit inverted")
def invert(a: Algebra[V], operand: V) -> V:
    require(operand.dtype not in FLOATS, f"stablehlo.not of {operand.dtype}")
    return a.logical_not(operand)


@FAMILY.exact("compare", "BOOL: x = y, x < y, …")
def compare(a: Algebra[V], lhs: V, rhs: V, comparison_direction: str) -> V:
    """§compare, as numbers of the operands' type: no total order of floats."""
    alike(lhs, rhs)
    if comparison_direction not in DIRECTIONS:
        raise MalformedError(f"comparison_direction {comparison_direction!r:.40}")
    return a.compare(lhs, rhs, DIRECTIONS[comparison_direction])


@FAMILY.moves("select", "x where pred holds, else y")
def select(a: Algebra[V], pred: V, on_true: V, on_false: V) -> V:
    alike(on_true, on_false)
    require(pred.dtype == "BOOL" and pred.shape in {(), on_true.shape}, "pred does not fit")
    return a.where(pred, on_true, on_false)


@FAMILY.exact("is_finite", "BOOL: neither infinite nor NaN")
def is_finite(a: Algebra[V], x: V) -> V:
    require(x.dtype in FLOATS, f"stablehlo.is_finite of {x.dtype}")
    return a.is_finite(x)


@FAMILY.rounds("convert", "the same number in another type")
def convert(a: Algebra[V], operand: V, dtype: Dtype) -> V:
    return a.cast(operand, dtype)
