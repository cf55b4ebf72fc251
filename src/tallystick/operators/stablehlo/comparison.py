"""Comparison, selection, bits and conversion."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tallystick.errors import MalformedError
from tallystick.operators.algebra import Algebra, Comparison, V
from tallystick.operators.definition import Exactness, Family
from tallystick.operators.stablehlo.arguments import FLOATS, UNSIGNED, alike, is_integer, require

FAMILY = Family()

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


for _name, _apply in BITWISE.items():
    FAMILY.operator(f"stablehlo.{_name}", "Tensor lhs, Tensor rhs", f"x {_name} y, of every bit", Exactness.EXACT)(
        _bitwise(_name, _apply)
    )
for _name in SHIFTS:
    FAMILY.operator(f"stablehlo.{_name}", "Tensor lhs, Tensor rhs", "bits of x moved by y places", Exactness.EXACT)(
        _shift(_name)
    )


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
