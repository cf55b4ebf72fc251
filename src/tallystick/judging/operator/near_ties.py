"""Discrete results that depend on rounding: the index of the largest element, and the order of elements.

Two numbers within a few roundings of each other may come in either order on honest devices. A claimed index that
differs from the reference's is a *near tie* if the two numbers are within a margin, measured in *bands*: the unit
roundoff of their dtype times the larger magnitude. Inside the margin neither party is wrong. Integers have no margin:
only equal integers are tied.

Comparisons and stable sorts have no ties, because with single operators opened the compared bits are known. Devices
differ there only in NaN, zeros of either sign, and subnormal numbers, which some devices treat as 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from tallystick.graphs.graph import Node, Ref
from tallystick.judging.operator.places import Places, row_and_column
from tallystick.operators.precision import FORMATS
from tallystick.tensors.tensor import Tensor

Numbers: TypeAlias = npt.NDArray[Any]
Values: TypeAlias = Mapping[Ref, Tensor]


@dataclass(frozen=True)
class NearTie:
    """The largest distance in bands between a claimed choice and the reference's; infinite if the claim is wrong.

    `place` is the flat place of the choice with that distance.
    """

    bands: float
    detail: str
    place: int


def find_near_tie(node: Node, values: Values, ref: Ref, places: Places) -> NearTie | None:
    """The tie behind results of `ref` that differ from the reference's at flat `places`; `None` if nothing is chosen.

    A claim is wrong outright, at an infinite distance, if an index is out of range, if it repeats in a row in which
    each index occurs once, or if the value beside it is not that of the element.
    """
    choice = _CHOICES.get(node.operator)
    if choice is None or not places.size:
        return None
    apart = choice(node, values, ref, places)
    detail = f"{places.size} of {values[ref].array().size} choices differ"
    return NearTie(float(apart.max()), detail, int(places[np.argmax(apart)]))


def bands_between(x: Numbers, y: Numbers, dtype: str) -> npt.NDArray[np.float64]:
    """|x − y| in bands of their dtype; 0 for equal numbers and for two NaNs, infinite for integers that differ."""
    same = _same(x, y)
    if dtype not in FORMATS:
        return np.where(same, 0.0, math.inf)
    a, b = x.astype(np.float64), y.astype(np.float64)
    with np.errstate(all="ignore"):
        band = np.maximum(FORMATS[dtype].unit * np.maximum(np.abs(a), np.abs(b)), FORMATS[dtype].half_step)
        apart = np.abs(a - b) / band
    return np.where(same, 0.0, np.where(np.isfinite(apart), apart, math.inf))


def _extreme(node: Node, values: Values, _: Ref, places: Places) -> Margins:
    """The distances for a claimed index of the largest or smallest number, or for that number itself."""
    x, axis = _operand(node, values)
    lines = _lines(x.values(), axis)[places]
    find = np.max if "max" in node.operator else np.min  # NaN where any is
    return _judged(node, values, places, lines, np.arange(len(places)), find(lines, axis=1), x.dtype)


def _order(node: Node, values: Values, ref: Ref, places: Places) -> Margins:
    """The distances for indices and values in ascending or descending order, or for the first few of them."""
    x, axis = _operand(node, values)
    shape = values[ref].shape or (1,)
    row, column = row_and_column(places, shape, axis)
    rows, which = np.unique(row, return_inverse=True)
    lines = _lines(x.values(), axis)[rows]
    ordered = np.sort(lines, axis=1)
    if node.attributes.get("largest", node.attributes.get("descending", False)):
        ordered = ordered[:, ::-1]
    found = _judged(node, values, places, lines, which, ordered[which, column], x.dtype)
    if node.attributes.get("stable"):
        found = np.where(_is_vague(ordered, x.dtype)[which, column], found, math.inf)
    index = _results(node, values)[1]
    if index is None:
        return found
    named = np.sort(_lines(index.reshape(shape), axis)[rows], axis=1)
    return np.where((named[:, 1:] == named[:, :-1]).any(axis=1)[which], math.inf, found)


def _is_vague(lines: Numbers, dtype: str) -> npt.NDArray[np.bool_]:
    """Elements that devices may order differently: NaN, and zeros or subnormal numbers if a row has different ones."""
    if dtype not in FORMATS:
        return np.zeros(lines.shape, np.bool_)
    small = np.abs(lines) < FORMATS[dtype].smallest_normal
    signs, low = np.signbit(lines), np.where(small, lines, np.inf).min(axis=1, initial=np.inf)
    high = np.where(small, lines, -np.inf).max(axis=1, initial=-np.inf)
    is_mixed = (low != high) | ((small & signs).any(axis=1) & (small & ~signs).any(axis=1))
    return np.asarray(np.isnan(lines) | (small & is_mixed[:, None]))


Margins: TypeAlias = npt.NDArray[np.float64]
Choice: TypeAlias = Callable[[Node, Values, Ref, Places], Margins]
_EXTREMES: Final = ("aten.argmax.default", "aten.argmin.default", "aten.max.dim", "aten.min.dim")
_ORDERS: Final = (
    *("aten.sort.default", "aten.sort.stable", "aten.argsort.default", "aten.argsort.stable", "aten.topk.default"),
)
_CHOICES: Final[Mapping[str, Choice]] = {
    **dict.fromkeys(_EXTREMES, _extreme),
    **dict.fromkeys(_ORDERS, _order),
}


def _judged(
    node: Node, values: Values, places: Places, lines: Numbers, which: Places, best: Numbers, dtype: str
) -> Margins:
    """How far the number at the claimed index is from the `best` one; `which` is the row of `lines` of each place."""
    stated, index = _results(node, values)
    if index is None:
        return np.full(places.size, math.inf)
    claimed = index.reshape(-1)[places].astype(np.int64)
    outside = (claimed < 0) | (claimed >= lines.shape[1])
    chosen = lines[which, np.where(outside, 0, claimed)]
    if stated is not None:
        outside |= ~_same(stated.reshape(-1)[places], chosen)
    return np.where(outside, math.inf, bands_between(chosen, best, dtype))


def _operand(node: Node, values: Values) -> tuple[Tensor, int]:
    """The tensor that is chosen from, and the axis; without an axis, all elements in one row."""
    x, dim = values[str(node.operands["self"])], node.attributes.get("dim", -1)
    if dim is None or not x.shape:
        return Tensor(x.dtype, (x.array().size,), x.data), 0
    assert isinstance(dim, int)  # the node was read through its schema
    return x, dim % len(x.shape)


def _results(node: Node, values: Values) -> tuple[Numbers | None, Numbers | None]:
    """The claimed numbers, if the operator gives them, and the claimed indices."""
    given = [None if ref is None else values[ref].values() for ref in node.outputs]
    return (None, given[0]) if len(given) == 1 else (given[0], given[1])


def _lines(array: Numbers, axis: int) -> Numbers:
    """The rows along an axis, [rows, side], in the row-major order of the other axes."""
    return np.moveaxis(array, axis, -1).reshape(-1, array.shape[axis])


def _same(x: Numbers, y: Numbers) -> npt.NDArray[np.bool_]:
    return np.asarray((x == y) | ((x != x) & (y != y)))
