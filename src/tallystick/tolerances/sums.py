"""Sums of products of float64 numbers, in the thread that asks for them.

BLAS shares a product of more than about 10,000 numbers among its threads. They are soon done, and then wait for more
work with the processor busy; where other programs compute too, a product of 0.05 ms takes 20 ms. So it gets blocks
that are too small to be shared.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import numpy.typing as npt

BLOCK: Final = 1 << 12
Numbers = npt.NDArray[np.float64]


def inner(left: Numbers, right: Numbers) -> float:
    """Σ left · right over all elements; infinite or NaN where the values are."""
    a, b = left.reshape(-1), right.reshape(-1)
    whole = a.size - a.size % BLOCK
    with np.errstate(all="ignore"):
        blocks = np.vecdot(a[:whole].reshape(-1, BLOCK), b[:whole].reshape(-1, BLOCK))
        return float(blocks.sum() + np.dot(a[whole:], b[whole:]))


def square_sum(values: Numbers) -> float:
    """The sum of squares."""
    return inner(values, values)


def euclidean(values: Numbers) -> float:
    """The Euclidean norm of all elements."""
    return math.sqrt(square_sum(values))


def row_sum(factors: Numbers, rows: Numbers) -> Numbers:
    """The sum of all rows, each times its factor."""
    width = rows.shape[1]
    count = max(1, BLOCK // width)
    whole = len(rows) - len(rows) % count
    with np.errstate(all="ignore"):
        blocks = np.matmul(factors[:whole].reshape(-1, 1, count), rows[:whole].reshape(-1, count, width))
        found: Numbers = blocks.sum((0, 1)) + factors[whole:] @ rows[whole:]
    return found
