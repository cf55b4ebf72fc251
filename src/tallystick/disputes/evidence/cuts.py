"""What crosses a cut through the operators of a step.

Operators stand in one order, that of the graph, which makes their indices unique. A cut lies after an operator; a value
crosses it that was given before and is read after it, or returned. Of a contested range [low, high) only what was given
inside it has to be opened at its cuts: what was given before `low` crossed an earlier cut and was opened there, and
inputs and constants are opened with the descent.
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
    """A graph with where each value is given and where it is last read; places count operators from 0."""

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
        """The place of the last operator that reads each value; behind the last one for what the graph returns."""
        found = {ref: place for place, node in enumerate(self.graph.nodes) for ref in node.refs}
        return found | {output.value: len(self.graph.nodes) for output in self.graph.outputs}

    def crossing(self, low: int, place: int) -> tuple[Ref, ...]:
        """What operators `low` … `place` give and the cut after operator `place` cuts, in the order of the graph."""
        return self.opened_at(low, (place,))

    def opened_at(self, low: int, places: Sequence[int]) -> tuple[Ref, ...]:
        """What a partition of a range that begins at `low` opens: all that crosses one of its cuts, each once.

        `places` rise. What does not cross the first cut behind it crosses none.
        """
        nodes = enumerate(self.graph.nodes[low : places[-1] + 1], low) if places else ()
        first = ((ref, places[bisect_left(places, place)]) for place, node in nodes for ref in node.outputs)
        return tuple(ref for ref, cut in first if ref is not None and self.last_read.get(ref, -1) > cut)

    def child(self, low: int, high: int) -> Graph | None:
        """The operators of [low, high) as a graph of their own that gives what crosses its end; `None` if nothing does.

        Operators whose results nobody needs are left out.
        """
        wanted = self.crossing(low, high - 1)
        return self._graph(low, _needed(self.graph.nodes[low:high], wanted), wanted) if wanted else None

    def _graph(self, low: int, nodes: tuple[Node, ...], wanted: Sequence[Ref]) -> Graph:
        """As `slicing.verification_slice`, which looks at the whole graph for each slice of it."""
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
        return {each.name: each for each in self.graph.sources}


def _needed(nodes: Sequence[Node], wanted: Sequence[Ref]) -> tuple[Node, ...]:
    """Those of consecutive nodes that the wanted values depend on."""
    refs, kept = set(wanted), list[Node]()
    for node in reversed(nodes):
        if not refs.isdisjoint(filter(None, node.outputs)):
            refs.update(node.refs)
            kept.append(node)
    return tuple(reversed(kept))
