"""What honest rounding does to the outputs of a call, and what a challenger could not have seen in them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np

from tallystick.core.tensors import FEWER_BITS, State, Tensor, TensorSpec, Values, in_fewer_bits
from tallystick.disputes.evidence.locate import relative_rms
from tallystick.programs.execution import Arguments, Engine, execute
from tallystick.programs.graph import Graph, Node, Operand, Ref, operands_of
from tallystick.programs.operators.balls.bound import bound
from tallystick.programs.operators.definition import Exactness, operator
from tallystick.programs.operators.precision import FORMATS
from tallystick.programs.step_names import BATCH

# How far honest rounding moves the outputs of a call, estimated by the challenger for the model itself.
#
# Limits that hold for every model are wide: a linear layer in 16 bits stays within them. So where the outputs of a call
# are not the challenger's own, it runs the call again with noise in every result of an operator that sums or calls a
# library: `ROUNDINGS` roundings of the dtype at the scale of the value. The root mean square by which this moves an
# output is its drift, and outputs may lie `SAFETY` drifts away. Beyond that they are not those of honest rounding. But
# a judge convicts by the proven bound of one operator, which is wide for long sums: an output that is no further off
# than one sum at its bound would move it is named, and not contested, because the challenger could lose its bond.
#
# This holds for graphs that compute in F32 and F64. In 16 bits one rounding is as large as what a cheaper layer
# changes.

ROUNDINGS: Final = 4.0
"""The standard deviation of the noise, in roundings at the scale of a value."""
SAFETY: Final = 16.0
"""How many drifts away an output may lie."""
LEAST: Final[Mapping[str, float]] = {"F32": 4e-6, "F64": 1e-14}
"""Differences that are never looked at: in F32 eight times the largest between honest stacks (docs/data/drift.json)."""
FLOATS: Final = {"F32": np.float32, "F64": np.float64}
Kernel: TypeAlias = Callable[[Arguments], tuple[Any, ...]]
NOISY: Final = frozenset({Exactness.ACCUMULATES, Exactness.LIBRARY, Exactness.COMPOSITE})


def is_wide(graph: Graph) -> bool:
    """Whether a graph computes in F32 or F64 alone, so that drifts decide about its outputs."""
    return {each.dtype for each in graph.specs().values() if each.is_float} <= LEAST.keys()


def differences(recorded: State, own: State) -> dict[str, float]:
    """The relative root mean square by which each output of floats differs."""
    return {name: relative_rms(recorded[name], each) for name, each in own.items() if each.dtype in FORMATS}


def drifts_of(graph: Graph, bindings: Mapping[Ref, Tensor], engine: Engine, own: State) -> dict[str, float]:
    """The drift of each output of floats: how far noise in the operators moves it."""
    return differences(execute(graph, bindings, with_noise(engine)), own)


def hidden_of(graph: Graph, bindings: Mapping[Ref, Tensor], engine: Engine, own: State) -> dict[str, float]:
    """How far one sum that is off by its whole proven bound, which no judge convicts, moves each output at most."""
    hidden = dict.fromkeys(differences(own, own), 0.0)
    for node in graph.nodes:
        if operator(node.operator).exactness is Exactness.ACCUMULATES:
            moved = differences(execute(graph, bindings, at_its_bound(engine, graph.specs(), node.number)), own)
            hidden = {name: max(hidden[name], gap) for name, gap in moved.items()}
    return hidden


@dataclass(frozen=True)
class ChangedEngine:
    """Another engine of which some kernels are changed: `change` takes a node and its kernel, and gives another."""

    engine: Engine
    change: Callable[[Node, Kernel], Kernel]

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

    def prepare(self, node: Node) -> Kernel:
        """See `Engine`."""
        return self.change(node, self.engine.prepare(node))


def at_its_bound(engine: Engine, specs: Mapping[Ref, TensorSpec], number: int) -> ChangedEngine:
    """An engine that is off by the proven bound at one node, with random signs; `specs` are those of the graph."""
    random = np.random.default_rng(0)

    def change(node: Node, run: Kernel) -> Kernel:
        dtypes = [spec.dtype for spec in node.results if spec is not None]
        if node.number != number or len(dtypes) != 1 or dtypes[0] not in FORMATS:
            return run

        def moved(arguments: Arguments) -> tuple[Any, ...]:
            values = tensors_read(engine, node, arguments, specs)
            [limit] = bound(operator(node.operator), {**operands_of(node, values), **node.attributes})
            if limit is None:
                return run(arguments)
            signs = np.where(random.random(limit.radius.shape) < 0.5, -1.0, 1.0)
            result = np.where(np.isfinite(limit.radius), limit.value + signs * limit.radius, limit.value)
            return (engine.load(Tensor.of(np.asarray(result.astype(FLOATS[dtypes[0]])))),)

        return moved

    return ChangedEngine(engine, change)


def with_noise(engine: Engine) -> ChangedEngine:
    """An engine with noise in the results of operators whose kernels differ between honest stacks."""
    random = np.random.default_rng(0)

    def moved(array: Any, dtype: str) -> Any:
        exact = engine.unload(array, dtype).values()
        values = exact.astype(np.float64)
        finite = values[np.isfinite(values)]
        scale = math.sqrt(float(np.mean(finite**2))) if finite.size else 0.0
        size = ROUNDINGS * FORMATS[dtype].unit * (np.abs(values) + scale)
        with np.errstate(invalid="ignore", over="ignore"):
            noisy = values + np.where(np.isfinite(values), size, 0.0) * random.standard_normal(values.shape)
        return engine.load(Tensor.of(np.asarray(noisy.astype(exact.dtype))))

    def change(node: Node, run: Kernel) -> Kernel:
        if operator(node.operator).exactness not in NOISY:
            return run
        dtypes = [spec.dtype if spec is not None and spec.is_float else None for spec in node.results]
        return lambda arguments: tuple(
            result if dtype is None else moved(result, dtype)
            for result, dtype in zip(run(arguments), dtypes, strict=True)
        )

    return ChangedEngine(engine, change)


def tensors_read(
    engine: Engine, node: Node, arguments: Arguments, specs: Mapping[Ref, TensorSpec]
) -> dict[Ref, Tensor]:
    """The values that a node reads, by reference, from its arguments as arrays of the engine."""
    values = dict[Ref, Tensor]()
    for name, operand in node.operands.items():
        refs, arrays = (operand, arguments[name]) if isinstance(operand, tuple) else ((operand,), (arguments[name],))
        for ref, array in zip(refs, arrays, strict=True):
            if ref is not None:
                values[ref] = engine.unload(array, specs[ref].dtype)
    return values


# What a challenger could not have seen in recorded calls: one layer in fewer bits, tried on a call of the claim.
#
# The call is computed again with one matrix product at a time in fewer bits, and its outputs are judged as those of a
# prover. Whatever stays within the limits is named, so that "nothing to contest" says how much was looked for.

TRIED: Final = 8
"""The most products that are tried, evenly spread over the graph; the first and the last are among them."""


CHEAPER: Final[Mapping[str, tuple[str, ...]]] = {
    "F64": ("BF16", "F16", "int8 by row"),
    "F32": ("BF16", "F16", "int8 by row"),
    "F16": ("BF16", "int8 by row", "int4 by row"),
    "BF16": ("int8 by row", "int4 by row"),
}
"""The formats that are tried, by the dtype of a product."""


def with_cheap_node(
    engine: Engine,
    number: int,
    fewer_bits: Callable[[Values], Values],
    specs: Mapping[Ref, TensorSpec],
    rounded: frozenset[Ref],
) -> ChangedEngine:
    """An engine that computes one node, by its number, with those of its operands that are `rounded` in fewer bits.

    `specs` are those of all values of the graph.
    """

    def read(operand: Operand, array: Any) -> Any:
        if not isinstance(operand, str) or operand not in rounded or not specs[operand].is_float:
            return array
        return engine.load(in_fewer_bits(engine.unload(array, specs[operand].dtype), fewer_bits))

    def change(node: Node, run: Kernel) -> Kernel:
        if node.number != number:
            return run
        return lambda arguments: run({name: read(node.operands[name], array) for name, array in arguments.items()})

    return ChangedEngine(engine, change)


def blind_spots(graph: Graph, engine: Engine, is_seen: Callable[[Engine], bool]) -> tuple[str, ...]:
    """A sentence for each format in which some product could be computed unseen; `is_seen` judges one trial."""
    specs, weights = graph.specs(), weights_of(graph)
    missed, tried = dict[str, list[Node]](), dict[str, int]()
    for node in spread(products_of(graph)):
        read = frozenset(node.refs)
        for name in CHEAPER.get(specs[node.refs[0]].dtype, ()):
            rounded = (read & weights or read) if name.startswith("int") else read
            tried[name] = tried.get(name, 0) + 1
            if not is_seen(with_cheap_node(engine, node.number, FEWER_BITS[name], specs, rounded)):
                missed.setdefault(name, []).append(node)
    sentences = [
        f"one matrix product in {name}: {len(nodes)} of {tried[name]} that were tried, the first at operator "
        f"{nodes[0].number} ({nodes[0].operator})"
        for name, nodes in missed.items()
    ]
    seen = [name for name in tried if name not in missed]
    less = f"; one matrix product in {', '.join(seen)} leaves them ({tried[seen[0]]} tried)" if seen else ""
    return (*sentences, f"outputs that are off within the limits{less}")


def products_of(graph: Graph) -> list[Node]:
    """The nodes that sum products of two tensors of two dimensions or more: linear layers, attention, convolutions."""
    specs = graph.specs()

    def is_product(node: Node) -> bool:
        factors = [ref for ref in node.refs if specs[ref].is_float and len(specs[ref].shape) >= 2]
        return len(factors) >= 2 and operator(node.operator).exactness is Exactness.ACCUMULATES

    return [node for node in graph.nodes if is_product(node)]


def spread(nodes: list[Node], count: int = TRIED) -> list[Node]:
    """At most `count` of the nodes, evenly spread from the first to the last."""
    if len(nodes) <= count:
        return nodes
    return [nodes[round(place)] for place in np.linspace(0, len(nodes) - 1, count)]


def weights_of(graph: Graph) -> frozenset[Ref]:
    """The values that depend on no input of a call: weights, constants, and what is computed from them alone."""
    fixed = {each.name for each in graph.sources if not each.name.startswith(BATCH)}
    for node in graph.nodes:
        if fixed.issuperset(node.refs):
            fixed.update(ref for ref in node.outputs if ref is not None)
    return frozenset(fixed)
