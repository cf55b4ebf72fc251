"""What a challenger could not have seen in recorded calls: one layer in fewer bits, tried on a call of the claim.

The call is computed again with one matrix product at a time in fewer bits, and its outputs are judged as those of a
prover. Whatever stays within the limits is named, so that "nothing to contest" says how much was looked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from tallystick.disputes.evidence.rounding import EngineAround
from tallystick.graphs.engine import Arguments, Engine
from tallystick.graphs.graph import Graph, Node, Operand, Ref
from tallystick.operators.definition import Exactness
from tallystick.operators.registry import operator
from tallystick.tensors.fewer_bits import FEWER_BITS, Values, in_fewer_bits
from tallystick.tensors.spec import TensorSpec
from tallystick.workloads.names import BATCH

TRIED: Final = 8
"""The most products that are tried, evenly spread over the graph; the first and the last are among them."""


CHEAPER: Final[Mapping[str, tuple[str, ...]]] = {
    "F64": ("BF16", "F16", "int8 by row"),
    "F32": ("BF16", "F16", "int8 by row"),
    "F16": ("BF16", "int8 by row", "int4 by row"),
    "BF16": ("int8 by row", "int4 by row"),
}
"""The formats that are tried, by the dtype of a product."""


@dataclass(frozen=True)
class CheapEngine(EngineAround):
    """An engine that computes one node, by its number, with those of its operands that are `rounded` in fewer bits.

    `specs` are those of all values of the graph.
    """

    number: int
    fewer_bits: Callable[[Values], Values]
    specs: Mapping[Ref, TensorSpec]
    rounded: frozenset[Ref]

    def prepare(self, node: Node) -> Callable[[Arguments], tuple[Any, ...]]:
        """See `Engine`."""
        run = self.engine.prepare(node)
        if node.number != self.number:
            return run
        return lambda arguments: run({name: self._read(node.operands[name], each) for name, each in arguments.items()})

    def _read(self, operand: Operand, array: Any) -> Any:
        if not isinstance(operand, str) or operand not in self.rounded or not self.specs[operand].is_float:
            return array
        return self.engine.load(in_fewer_bits(self.engine.unload(array, self.specs[operand].dtype), self.fewer_bits))


def blind_spots(graph: Graph, engine: Engine, is_seen: Callable[[CheapEngine], bool]) -> tuple[str, ...]:
    """A sentence for each format in which some product could be computed unseen; `is_seen` judges one trial."""
    specs, weights = graph.specs(), weights_of(graph)
    missed, tried = dict[str, list[Node]](), dict[str, int]()
    for node in spread(products_of(graph)):
        read = frozenset(node.refs)
        for name in CHEAPER.get(specs[node.refs[0]].dtype, ()):
            rounded = (read & weights or read) if name.startswith("int") else read
            tried[name] = tried.get(name, 0) + 1
            if not is_seen(CheapEngine(engine, node.number, FEWER_BITS[name], specs, rounded)):
                missed.setdefault(name, []).append(node)
    told = [
        f"one matrix product in {name}: {len(nodes)} of {tried[name]} that were tried, the first at operator "
        f"{nodes[0].number} ({nodes[0].operator})"
        for name, nodes in missed.items()
    ]
    shown = [name for name in tried if name not in missed]
    less = f"; one matrix product in {', '.join(shown)} leaves them ({tried[shown[0]]} tried)" if shown else ""
    return (*told, f"outputs that are off within the limits{less}")


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
    found = {each.name for each in graph.sources if not each.name.startswith(BATCH)}
    for node in graph.nodes:
        if found.issuperset(node.refs):
            found.update(ref for ref in node.outputs if ref is not None)
    return frozenset(found)
