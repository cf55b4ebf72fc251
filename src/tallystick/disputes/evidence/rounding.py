"""How far honest rounding moves the outputs of a call, estimated by the challenger for the model itself.

Limits that hold for every model are wide: a linear layer in 16 bits stays within them. So where the outputs of a call
are not the challenger's own, it runs the call again with noise in every result of an operator that sums or calls a
library: `ROUNDINGS` roundings of the dtype at the scale of the value. The root mean square by which this moves an
output is its drift, and outputs may lie `SAFETY` drifts away. Beyond that they are not those of honest rounding. But a
judge convicts by the proven bound of one operator, which is wide for long sums: an output that is no further off than
one sum at its bound would move it is named, and not contested, because the challenger could lose its bond.

This holds for graphs that compute in F32 and F64. In 16 bits one rounding is as large as what a cheaper layer changes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from tallystick.disputes.evidence.drift import relative_rms
from tallystick.graphs.engine import Arguments, Engine
from tallystick.graphs.execution import execute
from tallystick.graphs.graph import Graph, Node, Operand, Ref
from tallystick.operators.balls.bound import bound
from tallystick.operators.definition import Exactness
from tallystick.operators.precision import FORMATS
from tallystick.operators.registry import operator
from tallystick.tensors.spec import TensorSpec
from tallystick.tensors.tensor import State, Tensor

ROUNDINGS: Final = 4.0
"""The standard deviation of the noise, in roundings at the scale of a value."""
SAFETY: Final = 16.0
"""How many drifts away an output may lie."""
LEAST: Final[Mapping[str, float]] = {"F32": 4e-6, "F64": 1e-14}
"""Differences that are never looked at: in F32 eight times the largest between honest stacks (docs/data/drift.json)."""
FLOATS: Final = {"F32": np.float32, "F64": np.float64}
NOISY: Final = frozenset({Exactness.ACCUMULATES, Exactness.LIBRARY, Exactness.COMPOSITE})


def is_wide(graph: Graph) -> bool:
    """Whether a graph computes in F32 or F64 alone, so that drifts decide about its outputs."""
    return {each.dtype for each in graph.specs().values() if each.is_float} <= LEAST.keys()


def differences(recorded: State, own: State) -> dict[str, float]:
    """The relative root mean square by which each output of floats differs."""
    return {name: relative_rms(recorded[name], each) for name, each in own.items() if each.dtype in FORMATS}


def drifts_of(graph: Graph, bindings: Mapping[Ref, Tensor], engine: Engine, own: State) -> dict[str, float]:
    """The drift of each output of floats: how far noise in the operators moves it."""
    return differences(execute(graph, bindings, NoisyEngine(engine)), own)


def hidden_of(graph: Graph, bindings: Mapping[Ref, Tensor], engine: Engine, own: State) -> dict[str, float]:
    """How far one sum that is off by its whole proven bound, which no judge convicts, moves each output at most."""
    found = dict.fromkeys(differences(own, own), 0.0)
    for node in graph.nodes:
        if operator(node.operator).exactness is Exactness.ACCUMULATES:
            moved = differences(execute(graph, bindings, BoundEngine(engine, graph.specs(), node.number)), own)
            found = {name: max(found[name], gap) for name, gap in moved.items()}
    return found


@dataclass(frozen=True)
class EngineAround:
    """An engine that changes how some nodes of another engine are computed."""

    engine: Engine

    @property
    def name(self) -> str:
        """See `Engine`."""
        return self.engine.name

    def load(self, tensor: Tensor) -> Any:
        """See `Engine`."""
        return self.engine.load(tensor)

    def unload(self, array: Any, dtype: str) -> Tensor:
        """See `Engine`."""
        return self.engine.unload(array, dtype)


@dataclass(frozen=True)
class BoundEngine(EngineAround):
    """An engine that is off by the proven bound at one node, with random signs; `specs` are those of the graph."""

    specs: Mapping[Ref, TensorSpec]
    number: int
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def prepare(self, node: Node) -> Callable[[Arguments], tuple[Any, ...]]:
        """See `Engine`."""
        run, meaning = self.engine.prepare(node), operator(node.operator)
        dtypes = [spec.dtype for spec in node.results if spec is not None]
        if node.number != self.number or len(dtypes) != 1 or dtypes[0] not in FORMATS:
            return run

        def moved(arguments: Arguments) -> tuple[Any, ...]:
            read = {name: self._tensors(node.operands[name], each) for name, each in arguments.items()}
            [limit] = bound(meaning, {**read, **node.attributes})
            if limit is None:
                return run(arguments)
            signs = np.where(self.random.random(limit.radius.shape) < 0.5, -1.0, 1.0)
            values = np.where(np.isfinite(limit.radius), limit.value + signs * limit.radius, limit.value)
            return (self.engine.load(Tensor.of(np.asarray(values.astype(FLOATS[dtypes[0]])))),)

        return moved

    def _tensors(self, operand: Operand, array: Any) -> Any:
        if operand is None:
            return None
        if isinstance(operand, tuple):
            return tuple(
                None if ref is None else self._tensor(ref, each) for ref, each in zip(operand, array, strict=True)
            )
        return self._tensor(operand, array)

    def _tensor(self, ref: Ref, array: Any) -> Tensor:
        return self.engine.unload(array, self.specs[ref].dtype)


@dataclass(frozen=True)
class NoisyEngine(EngineAround):
    """An engine with noise in the results of operators whose kernels differ between honest stacks."""

    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def prepare(self, node: Node) -> Callable[[Arguments], tuple[Any, ...]]:
        """See `Engine`."""
        run = self.engine.prepare(node)
        if operator(node.operator).exactness not in NOISY:
            return run
        dtypes = [spec.dtype if spec is not None and spec.is_float else None for spec in node.results]
        return lambda arguments: tuple(
            result if dtype is None else self._moved(result, dtype)
            for result, dtype in zip(run(arguments), dtypes, strict=True)
        )

    def _moved(self, array: Any, dtype: str) -> Any:
        exact = self.engine.unload(array, dtype).values()
        values = exact.astype(np.float64)
        finite = values[np.isfinite(values)]
        scale = math.sqrt(float(np.mean(finite**2))) if finite.size else 0.0
        size = ROUNDINGS * FORMATS[dtype].unit * (np.abs(values) + scale)
        with np.errstate(invalid="ignore", over="ignore"):
            moved = values + np.where(np.isfinite(values), size, 0.0) * self.random.standard_normal(values.shape)
        return self.engine.load(Tensor.of(np.asarray(moved.astype(exact.dtype))))
