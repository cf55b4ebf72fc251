"""Facts about a graph without running it, and which of its nodes are the update."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from tallystick.core.canonical_json import Json
from tallystick.core.tensors import TensorSpec
from tallystick.programs.admission import Derived, Deriver, depths, peak_bytes
from tallystick.programs.encoding import Find
from tallystick.programs.graph import Graph, Node, Output, Ref
from tallystick.programs.operators.definition import operator
from tallystick.programs.slicing import ancestors, givers_of, readers_of


@dataclass(frozen=True)
class OperatorCount:
    """How often an operator occurs, and the total cost of its nodes."""

    nodes: int
    flops: int
    bytes_moved: int


@dataclass(frozen=True)
class Inspection:
    """A graph and what can be computed about it without running it."""

    graph: Graph
    find: Find = operator

    @cached_property
    def nodes(self) -> Mapping[int, Node]:
        """The nodes by number."""
        return {node.number: node for node in self.graph.nodes}

    @cached_property
    def specs(self) -> Mapping[Ref, TensorSpec]:
        """The spec of every value."""
        return self.graph.specs()

    @cached_property
    def costs(self) -> Mapping[int, Derived]:
        """The derived results and costs of each node, by number."""
        derive = Deriver(self.find)
        return {node.number: derive(node, self.specs) for node in self.graph.nodes}

    @cached_property
    def depths(self) -> Mapping[int, int]:
        """The length of the longest chain of nodes that ends with each node, by number."""
        return depths(self.graph)

    @property
    def depth(self) -> int:
        """The length of the longest chain of nodes in which each reads the one before."""
        return max(self.depths.values(), default=0)

    @property
    def flops(self) -> int:
        """The floating-point operations of all nodes."""
        return sum(cost.flops for cost in self.costs.values())

    @property
    def bytes_moved(self) -> int:
        """The bytes read and written by an evaluation that stores every intermediate."""
        return sum(cost.bytes_moved for cost in self.costs.values())

    @property
    def value_bytes(self) -> int:
        """The bytes of all values together."""
        return sum(spec.nbytes for spec in self.specs.values())

    @property
    def peak_bytes(self) -> int:
        """The largest number of bytes in memory at one time, each value in its own dtype."""
        return peak_bytes(self.graph, {number: cost.largest_bytes for number, cost in self.costs.items()})

    @property
    def kinds(self) -> Mapping[str, int]:
        """The number of nodes in each exactness class."""
        return dict(Counter(str(self.find(node.operator).exactness) for node in self.graph.nodes).most_common())

    @cached_property
    def operators(self) -> Mapping[str, OperatorCount]:
        """The operators by name, those with the most floating-point operations first."""
        counts: dict[str, OperatorCount] = {}
        for node in self.graph.nodes:
            seen, cost = counts.get(node.operator, OperatorCount(0, 0, 0)), self.costs[node.number]
            counts[node.operator] = OperatorCount(
                seen.nodes + 1, seen.flops + cost.flops, seen.bytes_moved + cost.bytes_moved
            )
        return dict(sorted(counts.items(), key=lambda entry: (-entry[1].flops, -entry[1].nodes, entry[0])))

    def reads(self, number: int) -> tuple[int, ...]:
        """The nodes whose results node `number` reads."""
        givers = (self._givers[ref] for ref in self.nodes[number].refs if ref in self._givers)
        return tuple(dict.fromkeys(givers))

    def read_by(self, number: int) -> tuple[int, ...]:
        """The nodes that read results of node `number`."""
        readers = (reader for ref in self.nodes[number].outputs if ref for reader in self._readers.get(ref, ()))
        return tuple(dict.fromkeys(readers))

    def to_json(self) -> Json:
        """The counts as JSON values."""
        graph = self.graph
        counts = {"constants": len(graph.constants), "inputs": len(graph.inputs), "outputs": len(graph.outputs)}
        return {
            **counts,
            "bytes_moved": self.bytes_moved,
            "depth": self.depth,
            "dialect": graph.dialect,
            "flops": self.flops,
            "form": str(graph.form),
            "kinds": dict(self.kinds),
            "nodes": len(graph.nodes),
            "operators": {
                name: {"bytes_moved": each.bytes_moved, "flops": each.flops, "nodes": each.nodes}
                for name, each in self.operators.items()
            },
            "peak_bytes": self.peak_bytes,
            "value_bytes": self.value_bytes,
            "values": len(self.specs),
        }

    @cached_property
    def _givers(self) -> Mapping[Ref, int]:
        return givers_of(self.graph)

    @cached_property
    def _readers(self) -> Mapping[Ref, list[int]]:
        return readers_of(self.graph)


# Which nodes of a step graph are the update: those behind the gradients that give weights and optimizer memory.


def before_update(graph: Graph) -> set[int]:
    """The nodes up to the gradients; all of a graph without outputs `gradients.…`, as of inference."""
    gradients = [output for output in graph.outputs if output.name.startswith("gradients.")]
    return _behind(graph, gradients) if gradients else {node.number for node in graph.nodes}


def update_nodes(graph: Graph) -> tuple[int, ...]:
    """The nodes of the update, in ascending order."""
    state = [output for output in graph.outputs if output.name.startswith(("weights.", "optimizer."))]
    return tuple(sorted(_behind(graph, state) - before_update(graph)))


def _behind(graph: Graph, outputs: Iterable[Output]) -> set[int]:
    givers = givers_of(graph)
    return ancestors(graph, {givers[output.value] for output in outputs if output.value in givers})
