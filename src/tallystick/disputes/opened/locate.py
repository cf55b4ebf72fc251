"""Which child holds the fault: each is executed from the prover's own values, and what leaves it is compared.

The challenger starts no child from values of its own, so that an honest prover's other kernels never add up. It stops
at the first child that leaves the tolerance; if none does, the one that comes closest to leaving it is named. Where all
but the last agree bit by bit it is the last, unseen. All rounds together cost 1 + 1/N + 1/N² … executions of the graph
at most, and half of one on average.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tallystick.disputes.opened.drift import deviation
from tallystick.disputes.opened.view import View
from tallystick.errors import MalformedError, UnavailableError
from tallystick.graphs.engine import Engine
from tallystick.graphs.execute import execute


@dataclass
class Work:
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


def locate(view: View, children: Sequence[tuple[int, int]], engine: Engine, work: Work) -> Located:
    """The first child whose outputs leave the tolerance, or the one with the largest deviation.

    Raises `ProofError` where a value that a child reads or gives is not opened.
    """
    found: list[float] = []
    for number, (low, high) in enumerate(children):
        if number == len(children) - 1 and not any(found):
            return Located(number, (*found, math.nan))
        found.append(deviation_of(view, low, high, engine, work))
        if found[-1] > 1.0:
            return Located(number, tuple(found))
    return Located(max(range(len(found)), key=found.__getitem__), tuple(found))


def deviation_of(view: View, low: int, high: int, engine: Engine, work: Work) -> float:
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
    return max(deviation(view.value(ref), tensor, len(graph.nodes)) for ref, tensor in own.items())
