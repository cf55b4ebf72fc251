"""Two graphs run on the same inputs: how far their outputs are apart, and the first operator where they part.

On the reference engine, which computes in float64 whatever the dtypes of a graph, two programs that differ in the order
or the fusion of their operators agree to far below one rounding of F32. Another formula does not.
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
"""The share of the largest element by which graphs of one function may part on the reference: 16 roundings of F32."""
SHOWN: Final = 3


@dataclass(frozen=True)
class Comparison:
    """How far the outputs are apart, as shares of each one's largest element, and where the programs part.

    `parting` is the first operator of the first graph whose value is farther from its counterpart's than the limit.
    `extra` are the operators without counterpart of the first graph up to there, `lacking` those of the second.
    """

    distances: Mapping[str, float]
    limit: float
    parting: str = ""
    extra: tuple[str, ...] = ()
    lacking: tuple[str, ...] = ()

    @property
    def worst(self) -> str:
        """The output that is farthest away."""
        return max(self.distances, key=lambda name: self.distances[name])

    @property
    def agrees(self) -> bool:
        """Whether every output is within the limit."""
        return all(distance <= self.limit for distance in self.distances.values())

    @property
    def explanation(self) -> str:
        """What differs, in one line; nothing where the outputs agree."""
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

    An output that the first graph lacks is infinitely far. Raises what `execute` raises.
    """
    found = diff(first, second)
    mine = _run(first, bindings[0], engine, {change.number for change in found.changed})
    theirs = _run(second, bindings[1], engine, {change.other for change in found.changed})
    names = [output.name for output in second.outputs]
    distances = {name: share_apart(theirs[name], mine[name]) if name in mine else np.inf for name in names}
    ordered = sorted(found.changed, key=lambda change: change.number)
    parting = next((change for change in ordered if _is_apart(change, mine, theirs, limit)), None)
    return Comparison(
        distances,
        limit,
        "" if parting is None else _named(_node(first, parting.number), parting.fields),
        _before(first, found.removed, None if parting is None else parting.number),
        _before(second, found.added, None if parting is None else parting.other),
    )


def share_apart(expected: Tensor, found: Tensor) -> float:
    """The largest |Δ| as a share of the largest finite magnitude; infinite for other shapes, NaN or infinities."""
    x, y = (tensor.values().astype(np.float64) for tensor in (expected, found))
    if x.shape != y.shape:
        return np.inf
    with np.errstate(invalid="ignore"):
        away = np.where((x == y) | (np.isnan(x) & np.isnan(y)), 0.0, np.abs(x - y))
    largest = float(np.max(np.abs(x[np.isfinite(x)]), initial=0.0))
    return float(np.max(np.nan_to_num(away, nan=np.inf, posinf=np.inf), initial=0.0)) / (largest or 1.0)


def draw_state(graph: Graph, generator: np.random.Generator, role: Role = Role.WEIGHT) -> dict[Ref, Tensor]:
    """Random weights under which every operator sees values of about 1, so that formulas differ where they can.

    Matrices are normal with the variance 1 ÷ their last side, vectors lie about 1. With another role, buffers.
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
    """The outputs by name, and the results of the nodes `kept` by reference."""
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


def _node(graph: Graph, number: int) -> Node:
    return next(node for node in graph.nodes if node.number == number)


def _named(node: Node, parameters: tuple[str, ...] = ()) -> str:
    return f"n{node.number} ({node.operator}{': ' if parameters else ''}{', '.join(parameters)})"
