"""How far apart two tensors or two states are: elements, absolute distance, and units in the last place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from tallystick.commitments.encoding import Json
from tallystick.judging.verdict import number
from tallystick.tensors.spec import TensorSpec
from tallystick.tensors.tensor import State, Tensor

Floats: TypeAlias = npt.NDArray[np.float64]
FLOATS: Final = {"F64": (53, -1074), "F32": (24, -149), "F16": (11, -24), "BF16": (8, -133)}
"""The binary digits of a float, and the exponent of its smallest value."""


@dataclass(frozen=True)
class TensorDifference:
    """Two tensors that differ in their bits.

    `distance` is the largest absolute difference, `ulps` the largest in units in the last place of the larger value;
    `None` for integers. `index` is the flat place of the element that is furthest off,
    `first` and `second` its values. Where the specs differ, `problem` says so and nothing is measured.
    """

    name: str
    elements: int = 0
    size: int = 0
    distance: float = 0.0
    ulps: float | None = None
    index: int = 0
    first: float = 0.0
    second: float = 0.0
    problem: str = ""

    def to_json(self) -> Json:
        """As JSON values."""
        if self.problem:
            return {"name": self.name, "problem": self.problem}
        return {
            "distance": number(self.distance),
            "elements": self.elements,
            "first": number(self.first),
            "index": self.index,
            "name": self.name,
            "second": number(self.second),
            "size": self.size,
            "ulps": None if self.ulps is None else number(self.ulps),
        }

    def __str__(self) -> str:
        if self.problem:
            return f"{self.name}: {self.problem}"
        far = "" if self.ulps is None else f", {self.ulps:,.4g} ulp{'' if self.ulps == 1 else 's'}"
        return f"{self.name}: {self.elements:,} of {self.size:,} elements, by at most {self.distance:.3g}{far}"


def compare_states(first: State, second: State) -> tuple[TensorDifference, ...]:
    """The tensors of two states that differ: weights first, then the others, each in the order of their names."""
    names = sorted(first.keys() | second.keys(), key=lambda name: (not name.startswith("weights."), name))
    found = (compare_tensors(name, first.get(name), second.get(name)) for name in names)
    return tuple(each for each in found if each is not None)


def compare_tensors(name: str, first: Tensor | None, second: Tensor | None) -> TensorDifference | None:
    """How two tensors differ; `None` if their bits are equal."""
    if first is None or second is None:
        return TensorDifference(
            name, problem=f"{'not there' if first is None else 'there'} / {'not there' if second is None else 'there'}"
        )
    specs = TensorSpec.of(first), TensorSpec.of(second)
    if specs[0] != specs[1]:
        return TensorDifference(name, problem=f"{specs[0]} / {specs[1]}")
    if bytes(first.data) == bytes(second.data):
        return None
    return _measured(name, first, second)


def _measured(name: str, first: Tensor, second: Tensor) -> TensorDifference:
    bits = _bits(first) != _bits(second)  # tells the zeros apart, and finds equal NaNs equal
    mine, theirs = (each.values().reshape(-1).astype(np.float64) for each in (first, second))
    with np.errstate(invalid="ignore", over="ignore"):
        gap = np.abs(mine - theirs)
    gap[np.isnan(gap)] = np.inf  # one of the two is no number, or both are infinite with other signs
    ulps = _ulps(first.dtype, mine, theirs, gap)
    furthest = int(np.argmax(np.where(bits, gap, -1.0)))
    return TensorDifference(
        name,
        elements=int(bits.sum()),
        size=bits.size,
        distance=float(np.max(gap, where=bits, initial=0.0)),
        ulps=None if ulps is None else float(np.max(ulps, where=bits, initial=0.0)),
        index=furthest,
        first=float(mine[furthest]),
        second=float(theirs[furthest]),
    )


def _bits(tensor: Tensor) -> npt.NDArray[Any]:
    array = np.ascontiguousarray(tensor.array()).reshape(-1)
    return array.view(f"u{array.itemsize}") if array.dtype.kind != "b" else array


def _ulps(dtype: str, mine: Floats, theirs: Floats, gap: Floats) -> Floats | None:
    """The distances in units in the last place of the larger value; `None` for what is no float."""
    if dtype not in FLOATS:
        return None
    digits, least = FLOATS[dtype]
    _, exponents = np.frexp(np.maximum(np.abs(mine), np.abs(theirs)))
    found: Floats = np.ldexp(gap, -np.maximum(exponents - digits, least))
    return found
