"""What crosses a cut through the operators of a step.

Operators stand in one order, that of the graph, which makes their indices unique. A cut lies after an operator; a value
crosses it that was given before and is read after it, or returned. Of a contested range [low, high) only what was given
inside it has to be opened at its cuts: what was given before `low` crossed an earlier cut and was opened there, and
inputs and constants are opened with the descent.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from tallystick.graphs.graph import Graph, Ref
from tallystick.graphs.slicing import verification_slice


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
    def last_read(self) -> Mapping[Ref, int]:
        """The place of the last operator that reads each value; behind the last one for what the graph returns."""
        found = {ref: place for place, node in enumerate(self.graph.nodes) for ref in node.refs}
        return found | {output.value: len(self.graph.nodes) for output in self.graph.outputs}

    def crossing(self, low: int, place: int) -> tuple[Ref, ...]:
        """What operators `low` … `place` give and the cut after operator `place` cuts, in the order of the graph."""
        given = (ref for node in self.graph.nodes[low : place + 1] for ref in node.outputs if ref is not None)
        return tuple(ref for ref in given if self.last_read.get(ref, -1) > place)

    def opened_at(self, low: int, places: Sequence[int]) -> tuple[Ref, ...]:
        """What a partition of a range that begins at `low` opens: all that crosses one of its cuts, each once."""
        return tuple(dict.fromkeys(ref for place in places for ref in self.crossing(low, place)))

    def child(self, low: int, high: int) -> Graph | None:
        """The operators of [low, high) as a graph of their own that gives what crosses its end; `None` if nothing does.

        Operators whose results nobody needs are left out.
        """
        wanted = self.crossing(low, high - 1)
        return verification_slice(self.graph, self._before(low), wanted) if wanted else None

    def _before(self, low: int) -> Collection[Ref]:
        return frozenset(ref for ref, place in self.given.items() if place < low)
