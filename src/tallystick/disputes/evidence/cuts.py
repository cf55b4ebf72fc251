"""Which values cross a cut through the operators of a step.

Operators have one order, that of the graph, so their indices are unique. A cut lies after an operator. A value crosses
the cut if an operator before it gives the value, and an operator after it reads the value or the graph returns it. For
a contested range [low, high), only values that are given inside the range have to be opened at its cuts. Values from
before `low` crossed an earlier cut and were opened there. Inputs and constants are opened with the descent.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from tallystick.graphs.graph import Constant, Graph, GraphForm, Input, Node, Output, Ref, Role
from tallystick.tensors.spec import TensorSpec


@dataclass(frozen=True)
class Cuts:
    """A graph, with the place where each value is given and where it is last read; places count operators from 0."""

    graph: Graph

    @cached_property
    def given(self) -> Mapping[Ref, int]:
        """The place of the operator that gives each value."""
        nodes = enumerate(self.graph.nodes)
        return {ref: place for place, node in nodes for ref in node.outputs if ref is not None}

    @cached_property
    def specs(self) -> Mapping[Ref, TensorSpec]:
        """The spec of every value, as the graph states it."""
        return self.graph.specs()

    @cached_property
    def last_read(self) -> Mapping[Ref, int]:
        """The place of the last operator that reads each value; the number of operators if the graph returns it."""
        readers = {ref: place for place, node in enumerate(self.graph.nodes) for ref in node.refs}
        return readers | {output.value: len(self.graph.nodes) for output in self.graph.outputs}

    def crossing(self, low: int, place: int) -> tuple[Ref, ...]:
        """The values that operators `low` … `place` give and that cross the cut after `place`, in graph order."""
        return self.opened_at(low, (place,))

    def opened_at(self, low: int, places: Sequence[int]) -> tuple[Ref, ...]:
        """What a partition of a range from `low` opens: every value that crosses one of its cuts, once.

        `places` are the operators before the cuts, in rising order.
        """
        nodes = enumerate(self.graph.nodes[low : places[-1] + 1], low) if places else ()
        # a value that does not cross the first cut after its operator crosses no later one
        first = ((ref, places[bisect_left(places, place)]) for place, node in nodes for ref in node.outputs)
        return tuple(ref for ref, cut in first if ref is not None and self.last_read.get(ref, -1) > cut)

    def child(self, low: int, high: int) -> Graph | None:
        """The operators of [low, high) as a graph that gives what crosses its end; `None` if nothing does.

        Operators whose results are not needed are left out.
        """
        wanted = self.crossing(low, high - 1)
        return self._graph(low, _needed(self.graph.nodes[low:high], wanted), wanted) if wanted else None

    def _graph(self, low: int, nodes: tuple[Node, ...], wanted: Sequence[Ref]) -> Graph:
        """As `slicing.verification_slice`, but without a pass over the whole graph for each slice."""
        read = dict.fromkeys(ref for node in nodes for ref in node.refs if self.given.get(ref, -1) < low)
        sources = [self._sources.get(ref) or Input(ref, Role.CUT, self.specs[ref]) for ref in read]
        return Graph(
            dialect=self.graph.dialect,
            form=GraphForm.VERIFICATION,
            inputs=tuple(each for each in sources if isinstance(each, Input)),
            constants=tuple(each for each in sources if isinstance(each, Constant)),
            nodes=nodes,
            outputs=tuple(Output(ref, ref) for ref in wanted),
        )

    @cached_property
    def _sources(self) -> Mapping[Ref, Input | Constant]:
        """The inputs and constants of the whole graph by name."""
        return {each.name: each for each in self.graph.sources}


def _needed(nodes: Sequence[Node], wanted: Sequence[Ref]) -> tuple[Node, ...]:
    """Those of the given consecutive nodes that the wanted values depend on, in order."""
    refs, kept = set(wanted), list[Node]()
    for node in reversed(nodes):
        if not refs.isdisjoint(filter(None, node.outputs)):
            refs.update(node.refs)
            kept.append(node)
    return tuple(reversed(kept))
