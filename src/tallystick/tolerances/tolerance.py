"""The plug point: what is recorded about a tensor or a state, and when a replay agrees with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np

from tallystick.tensors.dtypes import ROUNDOFF
from tallystick.tensors.tensor import Tensor

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Values: TypeAlias = Tensor | Array
States: TypeAlias = Mapping[str, Tensor] | Mapping[str, Array]
FLOAT_DTYPES = frozenset({"F16", "BF16", "F32", "F64"})


@dataclass(frozen=True)
class Finding:
    """What one comparison showed: the distance found and the distance allowed, in the same unit.

    `name` says which check it was, `where` the tensor, element or step with the largest distance, `detail`
    what a person should know besides. An `advisory` finding is shown and decides nothing.
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
    """One operator as the verifier ran it; `error` bounds every IEEE-754 evaluation order."""

    inputs: tuple[Array, ...]
    output: Array
    error: Array | None = None


@dataclass(frozen=True)
class ReplayedState:
    """One segment as the verifier ran it: the state it started from and the state it arrived at."""

    start: States
    end: States


class Tolerance(Protocol):
    """What is recorded about a state, and when a replay agrees with it.

    An audit has both states: it summarizes the claimed one itself and compares, so that a summary of the prover's
    decides nothing. A tolerance is chosen by name (`registry`), by the verifier's policy alone.
    """

    def summarize(self, value: States, /) -> bytes:
        """The bytes that stand for a state."""
        ...

    def compare(self, claimed: bytes, replayed: ReplayedState, /) -> Finding:
        """How far the replay lies from the summary; raises `MalformedError` for bytes that are none."""
        ...


def as_tensor(values: Values) -> Tensor:
    """A tensor, or an array seen as one."""
    return values if isinstance(values, Tensor) else Tensor.of(values)


def as_state(value: Values | States) -> dict[str, Tensor]:
    """A state by sorted name; a lone tensor is the state whose only entry has the empty name."""
    if isinstance(value, Mapping):
        return {name: as_tensor(value[name]) for name in sorted(value)}
    return {"": as_tensor(value)}


def outcome(replayed: Replayed | ReplayedState) -> Values | States:
    """What the verifier arrived at: an operator's output, or the end of a segment."""
    return replayed.end if isinstance(replayed, ReplayedState) else replayed.output


def origin(replayed: Replayed | ReplayedState) -> Values | States:
    """What the verifier started from: an operator's first input, or the start of a segment."""
    return replayed.start if isinstance(replayed, ReplayedState) else replayed.inputs[0]


def roundoff(*tensors: Tensor) -> float:
    """The coarsest unit roundoff among the tensors, and that of binary32 at least."""
    return max((ROUNDOFF["F32"], *(ROUNDOFF.get(tensor.dtype, 0.0) for tensor in tensors)))


def is_float(tensor: Tensor) -> bool:
    """Whether the elements are floating-point numbers that arithmetic is done on (8-bit floats are bytes)."""
    return tensor.dtype in FLOAT_DTYPES
