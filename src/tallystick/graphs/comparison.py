"""Runs two graphs on the same inputs: how far their outputs differ, and the first operator whose results differ.

The reference engine computes in float64 whatever the dtypes of a graph. There, two programs that only order or fuse
their operators differently agree to far below one rounding of F32; two programs with different formulas do not.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tallystick.graphs.difference import Change, diff
from tallystick.graphs.engine import Arguments, Engine
from tallystick.graphs.execution import execute
from tallystick.graphs.graph import Graph, Node, Ref, Role
from tallystick.tensors.dtypes import numpy_dtype, round_to_bfloat16
from tallystick.tensors.spec import TensorSpec
from tallystick.tensors.tensor import State, Tensor

SAME_FUNCTION: Final = 2.0**-20
"""How far graphs of one function may differ on the reference, as a share of the largest element: 16 F32 roundings."""
SHOWN: Final = 3


@dataclass(frozen=True)
class Comparison:
    """How far the outputs differ, as shares of the largest element of each, and where the programs begin to differ.

    `parting` is the first operator of the first graph whose value differs from its counterpart's by more than the
    limit. `extra` are the operators of the first graph up to there that have no counterpart, `lacking` those of the
    second.
    """

    distances: Mapping[str, float]
    limit: float
    parting: str = ""
    extra: tuple[str, ...] = ()
    lacking: tuple[str, ...] = ()

    @property
    def worst(self) -> str:
        """The name of the output that differs most."""
        return max(self.distances, key=lambda name: self.distances[name])

    @property
    def agrees(self) -> bool:
        """Whether every output is within the limit."""
        return all(distance <= self.limit for distance in self.distances.values())

    @property
    def explanation(self) -> str:
        """What differs, in one line; empty if the outputs agree."""
        if self.agrees:
            return ""
        parts = [f"{self.worst} is {self.distances[self.worst]:.2g} of its largest element away"]
        parts += [f"they part at {self.parting}"] if self.parting else []
        parts += [f"only here, before that: {', '.join(self.extra[-SHOWN:])}"] if self.extra else []
        parts += [f"only there: {', '.join(self.lacking[-SHOWN:])}"] if self.lacking else []
        return "; ".join(parts)


def compare_graphs(
    first: Graph, second: Graph, bindings: tuple[State, State], engine: Engine, limit: float = SAME_FUNCTION
) -> Comparison:
    """Run both graphs, each with its own bindings, and compare the outputs that the second one has.

    The distance of an output that the first graph lacks is infinite. Raises what `execute` raises.
    """
    found = diff(first, second)
    mine = _run(first, bindings[0], engine, {change.number for change in found.changed})
    theirs = _run(second, bindings[1], engine, {change.other for change in found.changed})
    names = [output.name for output in second.outputs]
    distances = {name: share_apart(theirs[name], mine[name]) if name in mine else np.inf for name in names}
    ordered = sorted(found.changed, key=lambda change: change.number)
    parting = next((change for change in ordered if _is_apart(change, mine, theirs, limit)), None)
    if parting is None:
        return Comparison(distances, limit, "", _before(first, found.removed, None), _before(second, found.added, None))
    node = next(node for node in first.nodes if node.number == parting.number)
    removed, added = _before(first, found.removed, parting.number), _before(second, found.added, parting.other)
    return Comparison(distances, limit, _named(node, parting.fields), removed, added)


def share_apart(expected: Tensor, found: Tensor) -> float:
    """The largest |Δ| as a share of the largest finite magnitude; infinite if shapes, NaNs or infinities differ."""
    x, y = (tensor.values().astype(np.float64) for tensor in (expected, found))
    if x.shape != y.shape:
        return np.inf
    with np.errstate(invalid="ignore"):
        away = np.where((x == y) | (np.isnan(x) & np.isnan(y)), 0.0, np.abs(x - y))
    largest = float(np.max(np.abs(x[np.isfinite(x)]), initial=0.0))
    return float(np.max(np.nan_to_num(away, nan=np.inf, posinf=np.inf), initial=0.0)) / (largest or 1.0)


def draw_state(graph: Graph, generator: np.random.Generator, role: Role = Role.WEIGHT) -> dict[Ref, Tensor]:
    """Random weights, or the inputs of another role, for which values stay near 1 and different formulas show.

    Matrices are normally distributed with variance 1 ÷ their last side; vectors lie near 1.
    """
    return {each.name: _normal(each.spec, generator) for each in graph.inputs if each.role is role}


def cast(tensor: Tensor, dtype: str) -> Tensor:
    """The numbers of a tensor, rounded to another dtype."""
    return tensor if tensor.dtype == dtype else from_numbers(tensor.values(), dtype)


def from_numbers(values: npt.NDArray[Any], dtype: str) -> Tensor:
    """Numbers as a tensor of `dtype`, rounded to nearest even."""
    if dtype == "BF16":
        return Tensor.of(round_to_bfloat16(values.astype("<f4")), dtype)
    return Tensor.of(np.asarray(values, numpy_dtype(dtype)), dtype)


def _normal(spec: TensorSpec, generator: np.random.Generator) -> Tensor:
    drawn = generator.standard_normal(spec.shape)
    return from_numbers(drawn / np.sqrt(spec.shape[-1]) if len(spec.shape) > 1 else 1 + drawn / 4, spec.dtype)


def _run(graph: Graph, bindings: State, engine: Engine, kept: set[int]) -> dict[Ref, Tensor]:
    """The outputs by name, and by reference the results of the nodes `kept`."""
    values: dict[Ref, Tensor] = {}

    def keep(node: Node, _: Arguments, results: tuple[Any, ...]) -> None:
        if node.number in kept:
            found = zip(node.outputs, results, node.results, strict=True)
            values.update({ref: engine.unload(array, spec.dtype) for ref, array, spec in found if ref and spec})

    outputs = execute(graph, bindings, engine, watch=keep)
    return values | outputs


def _is_apart(change: Change, mine: State, theirs: State, limit: float) -> bool:
    value, other = mine.get(f"n{change.number}"), theirs.get(f"n{change.other}")
    return value is not None and other is not None and share_apart(other, value) > limit


def _before(graph: Graph, numbers: Collection[int], last: int | None) -> tuple[str, ...]:
    """The nodes with these numbers up to the last one, or all."""
    wanted = {number for number in numbers if last is None or number <= last}
    return tuple(_named(node) for node in graph.nodes if node.number in wanted)


def _named(node: Node, parameters: tuple[str, ...] = ()) -> str:
    return f"n{node.number} ({node.operator}{': ' if parameters else ''}{', '.join(parameters)})"
