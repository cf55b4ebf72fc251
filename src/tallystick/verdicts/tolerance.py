"""Tolerances: what is recorded about a state, when a replay agrees with it, and the sums of products they take."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from tallystick.core.tensors import ROUNDOFF, Tensor

# Sums of products of float64 numbers, in the thread that asks for them.
#
# BLAS shares a product of more than about 10,000 numbers among its threads. They are soon done, and then wait for more
# work with the processor busy; where other programs compute too, a product of 0.05 ms takes 20 ms. So it gets blocks
# that are too small to be shared.

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
        total: Numbers = blocks.sum((0, 1)) + factors[whole:] @ rows[whole:]
    return total


def ratio(part: float, whole: float) -> float:
    """`part / whole`, with 0 / 0 = 0 and x / 0 = ∞; NaN stays NaN."""
    if whole == 0.0:
        return math.nan if math.isnan(part) else math.inf if part else 0.0
    return part / whole


# The interface of tolerances: what is recorded about a state, and when a replay agrees with it.

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Values: TypeAlias = Tensor | Array
States: TypeAlias = Mapping[str, Tensor] | Mapping[str, Array]
FLOAT_DTYPES = frozenset({"F16", "BF16", "F32", "F64"})


@dataclass(frozen=True)
class Finding:
    """The result of one comparison: the measured distance and the allowed distance, in the same unit.

    `name` names the check, `where` the tensor, element or step with the largest distance. `detail` is further text for
    a person. An `advisory` finding is shown and decides nothing.
    """

    distance: float
    allowed: float
    name: str = ""
    where: str = ""
    detail: str = ""
    advisory: bool = False

    @property
    def agrees(self) -> bool:
        """Whether the distance is allowed; NaN never is."""
        return self.distance <= self.allowed


@dataclass(frozen=True)
class Replayed:
    """One operator as the verifier ran it; `error` bounds the rounding of every IEEE-754 evaluation order."""

    inputs: tuple[Array, ...]
    output: Array
    error: Array | None = None


@dataclass(frozen=True)
class ReplayedState:
    """One segment as the verifier ran it: the states before and after."""

    start: States
    end: States


class Tolerance(Protocol):
    """How a state is summarized, and when a replay agrees with the summary.

    An audit has both states. It summarizes the claimed state itself and compares, so a summary written by the prover
    decides nothing. Only the verifier's policy chooses a tolerance, by name (`registry`).
    """

    def summarize(self, value: States, /) -> bytes:
        """The bytes that represent a state."""
        ...

    def compare(self, claimed: bytes, replayed: ReplayedState, /) -> Finding:
        """How far the replay lies from the summary; raises `MalformedError` if the bytes are not a summary."""
        ...


def as_tensor(values: Values) -> Tensor:
    """`values` as a tensor; an array is wrapped."""
    return values if isinstance(values, Tensor) else Tensor.of(values)


def as_state(value: Values | States) -> dict[str, Tensor]:
    """A state by sorted name; a lone tensor is the state whose only entry has the empty name."""
    if isinstance(value, Mapping):
        return {name: as_tensor(value[name]) for name in sorted(value)}
    return {"": as_tensor(value)}


def outcome(replayed: Replayed | ReplayedState) -> Values | States:
    """The result of a replay: an operator's output, or the end of a segment."""
    return replayed.end if isinstance(replayed, ReplayedState) else replayed.output


def origin(replayed: Replayed | ReplayedState) -> Values | States:
    """The start of a replay: an operator's first input, or the start of a segment."""
    return replayed.start if isinstance(replayed, ReplayedState) else replayed.inputs[0]


def roundoff(*tensors: Tensor) -> float:
    """The largest unit roundoff among the tensors' dtypes, but at least that of binary32."""
    return max((ROUNDOFF["F32"], *(ROUNDOFF.get(tensor.dtype, 0.0) for tensor in tensors)))


def is_float(tensor: Tensor) -> bool:
    """Whether the dtype is F16, BF16, F32 or F64; 8-bit floats count as bytes."""
    return tensor.dtype in FLOAT_DTYPES
