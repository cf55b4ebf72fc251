"""The value at keys later than the token, when every token is paired with every key.

No step has these pairs, so no result may depend on them. A mask writes a number there that a reduction over keys leaves
out: e^−∞ is 0, and adding 0 changes nothing. A value at later keys is a number if it is known; `None` if it consists of
finite numbers that no step has; and `ANYTHING` if it may contain infinities or what follows from them.

Activations, keys and scores are assumed to be finite and far above `FORBIDS`: that number, added to a score, makes the
weight of the key 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from tallystick.errors import MalformedError
from tallystick.operators.arrays import NUMPY
from tallystick.operators.values import Value, Values

Later: TypeAlias = float | None
Compute: TypeAlias = Callable[[list[Any]], Value]
ANYTHING: Final = math.nan
FORBIDS: Final = -1e9
REFERENCE: Final = Values(NUMPY, "F64")
NEUTRAL: Final[Mapping[str, float]] = {"sum": 0.0, "prod": 1.0, "max": -math.inf, "min": math.inf}
"""The neutral number of each reduction: an element that equals it changes nothing."""
IDEMPOTENT: Final = frozenset({"max", "min"})
UNBOUNDED: Final = frozenset({"exp", "expm1", "log", "log1p", "sqrt", "rsqrt", "pow"})
"""Primitives that can turn finite numbers into infinities or NaN."""


def forbids(later: Later) -> bool:
    """Whether this number, added to a score, makes the weight of the key 0."""
    return later is not None and later <= FORBIDS


def is_neutral(reduction: str, later: Later, dtype: str) -> bool:
    """Whether a reduction over keys leaves out the later keys."""
    if dtype == "BOOL" and later is not None:
        return later == (reduction in {"min", "prod"})
    return forbids(later) if reduction == "max" else later == NEUTRAL[reduction]


def computed(operands: Sequence[tuple[str, Later]], compute: Compute) -> Later:
    """The result of one primitive on known numbers of these dtypes; the dtype of a Python number is ''."""
    values = [REFERENCE.full((), later or 0.0, dtype) if dtype else later for dtype, later in operands]
    try:
        number = float(compute(values).array)
    except MalformedError:
        return ANYTHING
    return ANYTHING if math.isnan(number) else number  # one NaN object, so that values that hold it are equal


def absorbed(primitive: str, operands: Sequence[Later], in_steps: Sequence[bool]) -> Later:
    """The result of a primitive if not all operands are known; `in_steps` says which operands occur in the steps.

    A product with a number that no step has is never taken as 0: that number may be infinite, and 0·∞ is NaN.
    """
    x, y = (*operands, None)[:2]
    if (primitive in UNBOUNDED and not all(in_steps)) or (primitive == "div" and not in_steps[1]):
        return ANYTHING
    if primitive in {"add", "sub"} and forbids(x) and y is None:
        return x
    if primitive == "add" and forbids(y) and x is None:
        return y
    if primitive in {"mul", "div"} and x == 0 and y is None and in_steps[1]:
        return 0.0
    if primitive == "mul" and y == 0 and x is None and in_steps[0]:
        return 0.0
    if primitive == "logical_and" and 0 in (x, y):
        return 0.0
    return spoiled(*operands)


def chosen(condition: Later, x: Later, y: Later) -> Later:
    """The value at later keys of a choice between two by a condition."""
    if condition is not None:
        return x if condition else y
    return x if x == y else spoiled(x, y)


def reduced(reduction: str, later: Later) -> Later:
    """The value at later keys of a reduction of equal numbers along an axis other than that of keys."""
    if later is None or reduction in IDEMPOTENT or later == NEUTRAL[reduction] or later == 0:
        return later
    return later if forbids(later) and reduction == "sum" else spoiled(later)


def product_sum(x: Later, y: Later) -> Later:
    """The value at later keys of a sum of products, along an axis other than that of keys.

    At most one of the operands pairs tokens with keys.
    """
    if x is None and y is None:
        return None
    return 0.0 if (x, y) in {(0.0, None), (None, 0.0), (0.0, 0.0)} else spoiled(x, y)


def spoiled(*operands: Later) -> Later:
    """Finite numbers if all operands are finite; `ANYTHING` if one is infinite, or too large to tell from infinite."""
    return ANYTHING if any(each is not None and not abs(each) < -FORBIDS for each in operands) else None
