"""Which child holds the fault: each is executed from the prover's own values, and what leaves it is compared.

The challenger starts no child from values of its own, so that an honest prover's other kernels never add up. It stops
at the first child that leaves the tolerance `DECISIVE` times. A child that is out by less may be a decoy: an operator
can lie further off than any honest kernel and still within its proven bound, and no judge convicts it. Then all are
executed, and the one with the largest deviation is named. Where all but the last agree bit by bit it is the last one,
which is not executed. All rounds together cost 1 + 1/N + 1/N² … executions of the graph at most; half of that on
average where the fault is decisive.

In one-round mode no child is asked for: `deviations` walks through all operators, each from its claimed operands.
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
"""Tolerances that no decoy of usual width reaches: a sum of k products with random signs, moved by its whole bound
γₖ·Σ|xᵢwᵢ|, is off by 0.65·k^1.5 ÷ `ALLOWED`, in F32 59 tolerances for k = 2,048 and 173 for k = 4,096 (for products of
one sign 2); in 16 bits, where sums are F32, it stays within the tolerance. Choices among floats reach 100."""


@dataclass
class ChallengerWork:
    """What a challenger computed: operators executed in choosing, and steps or calls replayed in doubting."""

    operators: int = 0
    replayed: int = 0


@dataclass(frozen=True)
class Located:
    """The child that was named, and by how much each child deviates in units of the tolerance; NaN if not executed."""

    child: int
    deviations: tuple[float, ...]

    @property
    def is_within(self) -> bool:
        """Whether no child leaves the tolerance."""
        return not any(each > 1.0 for each in self.deviations)


def locate(view: OpeningView, children: Sequence[tuple[int, int]], engine: Engine, work: ChallengerWork) -> Located:
    """The first child whose outputs leave the tolerance decisively, or the one with the largest deviation.

    Raises `ProofError` where a value that a child reads or gives is not opened.
    """
    found: list[float] = []
    for number, (low, high) in enumerate(children):
        if number == len(children) - 1 and not any(found):
            return Located(number, (*found, math.nan))
        found.append(deviation_of(view, low, high, engine, work))
        if found[-1] > DECISIVE:
            return Located(number, tuple(found))
    return Located(max(range(len(found)), key=found.__getitem__), tuple(found))


def deviation_of(view: OpeningView, low: int, high: int, engine: Engine, work: ChallengerWork) -> float:
    """The largest deviation of what operators [low, high) give and the cut behind them cuts."""
    graph = view.cuts.child(low, high)
    if graph is None:
        return 0.0
    read = view.values(each.name for each in graph.sources)
    work.operators += len(graph.nodes)
    try:
        own = execute(graph, read, engine)
    except (MalformedError, UnavailableError):
        return math.inf  # operands that an operator does not take; the graph itself ran when the claim was doubted
    leeway = Leeway.of(graph.nodes, view.cuts.specs)
    return max(deviation(view.value(ref), tensor, leeway, ref) for ref, tensor in own.items())


def deviations(view: OpeningView, engine: Engine, work: ChallengerWork) -> Iterator[float]:
    """By how much the results of each operator deviate from what the engine makes of its claimed operands, in order.

    Every value is read once, and held until its last reader ran. Raises `ProofError` where one is not opened.
    """
    walk, last = _Walk(view, engine, work), last_readers(view.graph)
    for place, node in enumerate(view.graph.nodes):
        yield walk.deviation(place, node)
        for ref in last.get(node.number, ()):
            walk.held.pop(ref, None)


@dataclass(frozen=True)
class _Walk:
    """Runs operators one by one over `held`, claimed values as arrays of the engine."""

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
                self.held[ref] = self.engine.load(self.view.read(ref))
        claimed = {ref: self.view.read(ref) for ref in wanted}
        self.work.operators += 1
        try:
            own = self._run(node)
        except (MalformedError, UnavailableError):
            return math.inf
        leeway = Leeway.of([node], self.view.cuts.specs)
        return max(self._compared(ref, tensor, own[ref], leeway) for ref, tensor in claimed.items())

    def _run(self, node: Node) -> dict[Ref, tuple[Any, Tensor]]:
        """What the engine makes of the held operands: as arrays, and as tensors."""
        results = self.engine.prepare(node)(operands_of(node, self.held))
        triples = zip(node.outputs, node.results, results, strict=True)
        named = {ref: (array, spec.dtype) for ref, spec, array in triples if ref is not None and spec is not None}
        return {ref: (array, self.engine.unload(array, dtype)) for ref, (array, dtype) in named.items()}

    def _compared(self, ref: Ref, claimed: Tensor, own: tuple[Any, Tensor], leeway: Leeway) -> float:
        """Where the bytes are those that were claimed, the next operator reads what was computed."""
        array, tensor = own
        is_claimed = is_same(claimed, tensor)
        self.held[ref] = array if is_claimed else self.engine.load(claimed)
        return 0.0 if is_claimed else deviation(claimed, tensor, leeway, ref)
