"""What stands at keys that are later than the token, where every token is paired with every key.

No step has these pairs, so that nothing may read them; but a mask puts a number there, which a reduction over keys then
leaves out: e^−∞ is 0, and 0 more is no more. Known is a number; `None` where finite numbers stand that no step has; or
`ANYTHING`, where there may be infinities and what they lead to.

Finite is what activations, keys and scores are taken to be, and far above `FORBIDS`: that number, added to a score,
leaves nothing of it.
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
"""What a reduction leaves out."""
IDEMPOTENT: Final = frozenset({"max", "min"})
UNBOUNDED: Final = frozenset({"exp", "expm1", "log", "log1p", "sqrt", "rsqrt", "pow"})
"""What makes infinities, or no number at all, of finite numbers that no step has."""


def forbids(later: Later) -> bool:
    """Whether a number, added to a score, leaves nothing of it."""
    return later is not None and later <= FORBIDS


def is_neutral(reduction: str, later: Later, dtype: str) -> bool:
    """Whether a reduction over keys leaves out later ones."""
    if dtype == "BOOL" and later is not None:
        return later == (reduction in {"min", "prod"})
    return forbids(later) if reduction == "max" else later == NEUTRAL[reduction]


def computed(operands: Sequence[tuple[str, Later]], compute: Compute) -> Later:
    """One primitive on known numbers of these dtypes; '' for the dtype of a plain number."""
    values = [REFERENCE.full((), later or 0.0, dtype) if dtype else later for dtype, later in operands]
    try:
        return _same(float(compute(values).array))
    except MalformedError:
        return ANYTHING


def absorbed(primitive: str, operands: Sequence[Later], in_steps: Sequence[bool]) -> Later:
    """A primitive of operands of which not all are known; `in_steps` tells which are numbers that steps have.

    Products with what no step has are not relied on: it may be out of range, and 0·∞ is no number.
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
    """One of two by a condition."""
    if condition is not None:
        return x if condition else y
    return x if x == y else spoiled(x, y)


def reduced(reduction: str, later: Later) -> Later:
    """Several of one number, along an axis that is not that of keys."""
    if later is None or reduction in IDEMPOTENT or later == NEUTRAL[reduction] or later == 0:
        return later
    return later if forbids(later) and reduction == "sum" else spoiled(later)


def product_sum(x: Later, y: Later) -> Later:
    """A sum of products, along an axis that is not that of keys; at most one of both pairs tokens with keys."""
    if x is None and y is None:
        return None
    return 0.0 if (x, y) in {(0.0, None), (None, 0.0), (0.0, 0.0)} else spoiled(x, y)


def spoiled(*operands: Later) -> Later:
    """Finite numbers from finite ones; anything where an operand is an infinity, or as good as one."""
    return ANYTHING if any(each is not None and not abs(each) < -FORBIDS for each in operands) else None


def _same(number: float) -> float:
    """NaN is one object, so that values that hold it are equal."""
    return ANYTHING if math.isnan(number) else number
