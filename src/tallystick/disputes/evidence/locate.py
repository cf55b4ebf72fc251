"""Which child holds the fault: each child is executed from the prover's own values, and its outputs are compared.

The challenger never starts a child from its own values, so that the differences between honest kernels do not add up.
It stops at the first child that deviates by more than `DECISIVE` tolerances. A child that deviates by less may be a
decoy: an operator can be further off than any honest kernel and still be within its proven bound, and no judge convicts
it. In that case all children are executed, and the one with the largest deviation is named. If all but the last agree
bit by bit, the last one is named without executing it. All rounds together cost at most 1 + 1/N + 1/N² + … executions
of the graph, and half of that on average if the fault is decisive.

In one-round mode there are no children: `deviations` walks through all operators, each from its claimed operands.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tallystick.disputes.evidence.drift import Leeway, deviation, is_same
from tallystick.disputes.evidence.view import OpeningView
from tallystick.errors import MalformedError, UnavailableError
from tallystick.graphs.costs import last_readers
from tallystick.graphs.engine import Engine
from tallystick.graphs.execution import execute, operands_of
from tallystick.graphs.graph import Node, Ref
from tallystick.tensors.tensor import Tensor

DECISIVE: Final = 192.0
"""A number of tolerances that no decoy of usual width reaches.

A sum of k products with random signs, moved by its whole bound γₖ·Σ|xᵢwᵢ|, is off by 0.65·k^1.5 ÷ `ALLOWED`. In F32
that is 59 tolerances for k = 2,048 and 173 for k = 4,096 (2 for products of one sign). In 16 bits, where sums are F32,
it stays within the tolerance. Choices among floats reach 100."""


@dataclass
class ChallengerWork:
    """Counts of a challenger's work: operators executed to choose a child, steps or calls replayed to doubt a claim.

    `remarks` are the odd things in a claim that no judge would convict.
    """

    operators: int = 0
    replayed: int = 0
    remarks: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Located:
    """The named child, and the deviation of each child in tolerances; NaN for a child that was not executed."""

    child: int
    deviations: tuple[float, ...]

    @property
    def is_within(self) -> bool:
        """Whether no child leaves the tolerance."""
        return not any(each > 1.0 for each in self.deviations)


def locate(view: OpeningView, children: Sequence[tuple[int, int]], engine: Engine, work: ChallengerWork) -> Located:
    """The first child whose outputs leave the tolerance decisively, or the one with the largest deviation.

    Raises `ProofError` if a value that a child reads or gives is not opened.
    """
    far: list[float] = []
    for number, (low, high) in enumerate(children):
        if number == len(children) - 1 and not any(far):
            return Located(number, (*far, math.nan))
        far.append(deviation_of(view, low, high, engine, work))
        if far[-1] > DECISIVE:
            return Located(number, tuple(far))
    return Located(max(range(len(far)), key=far.__getitem__), tuple(far))


def deviation_of(view: OpeningView, low: int, high: int, engine: Engine, work: ChallengerWork) -> float:
    """The largest deviation, in tolerances, of the values that operators [low, high) give across the cut after them."""
    graph = view.cuts.child(low, high)
    if graph is None:
        return 0.0
    read = view.values(each.name for each in graph.sources)
    work.operators += len(graph.nodes)
    try:
        own = execute(graph, read, engine)
    except (MalformedError, UnavailableError):
        return math.inf  # an operator refuses its operands; the graph itself ran when the claim was doubted
    leeway = Leeway.of(graph.nodes, view.cuts.specs)
    return max(deviation(view.value(ref), tensor, leeway, ref) for ref, tensor in own.items())


def deviations(view: OpeningView, engine: Engine, work: ChallengerWork) -> Iterator[float]:
    """The deviation of each operator, in tolerances, from what the engine computes from its claimed operands, in order.

    Every value is loaded once, and kept in memory until its last reader has run. Raises `ProofError` if a value is not
    opened.
    """
    walk, last = _Walk(view, engine, work), last_readers(view.graph)
    for place, node in enumerate(view.graph.nodes):
        yield walk.deviation(place, node)
        for ref in last.get(node.number, ()):
            walk.held.pop(ref, None)


@dataclass(frozen=True)
class _Walk:
    """Runs operators one by one; `held` keeps the claimed values that are still needed, as arrays of the engine."""

    view: OpeningView
    engine: Engine
    work: ChallengerWork
    held: dict[Ref, Any] = field(default_factory=dict)

    def deviation(self, place: int, node: Node) -> float:
        wanted = self.view.cuts.crossing(place, place)
        if not wanted:
            return 0.0
        for ref in node.refs:
            if ref not in self.held:
                self.held[ref] = self.engine.load(self.view.value(ref))
        claimed = {ref: self.view.value(ref) for ref in wanted}
        self.work.operators += 1
        try:
            own = self._run(node)
        except (MalformedError, UnavailableError):
            return math.inf
        leeway = Leeway.of([node], self.view.cuts.specs)
        return max(self._compared(ref, tensor, own[ref], leeway) for ref, tensor in claimed.items())

    def _run(self, node: Node) -> dict[Ref, tuple[Any, Tensor]]:
        """The engine's results from the held operands, each as an array and as a tensor."""
        results = self.engine.prepare(node)(operands_of(node, self.held))
        triples = zip(node.outputs, node.results, results, strict=True)
        named = {ref: (array, spec.dtype) for ref, spec, array in triples if ref is not None and spec is not None}
        return {ref: (array, self.engine.unload(array, dtype)) for ref, (array, dtype) in named.items()}

    def _compared(self, ref: Ref, claimed: Tensor, own: tuple[Any, Tensor], leeway: Leeway) -> float:
        """The deviation of one result in tolerances; holds its array for the operators that read it."""
        array, tensor = own
        is_claimed = is_same(claimed, tensor)  # then the computed array saves loading the claimed value
        self.held[ref] = array if is_claimed else self.engine.load(claimed)
        return 0.0 if is_claimed else deviation(claimed, tensor, leeway, ref)
