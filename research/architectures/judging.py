"""Every operator of one run, judged on the values of that run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from tallystick.core.tensors import Tensor
from tallystick.programs.encoding import graph_root
from tallystick.programs.graph import Graph, Ref
from tallystick.programs.operators.precision import lines_of
from tallystick.verdicts.opening.judge import judge_operator
from tallystick.verdicts.operator.judge import OperatorJudge
from tallystick.verdicts.verdict import Findings

Values: TypeAlias = Mapping[Ref, Tensor]


@dataclass(frozen=True)
class Judgement:
    """What a judge found by deterministic bounds; `share` is the most of a bound that was used, `where` by what.

    `unbounded` are operators with a result that no bound holds for, `partly_unbounded` those with such elements.
    `undecided` are results beyond a bound that the engine is known to leave: nobody is accused of them.
    """

    operators: int
    rejected: tuple[str, ...]
    share: float
    where: str
    unbounded: tuple[str, ...]
    partly_unbounded: tuple[str, ...]
    undecided: tuple[str, ...] = ()


def judge_all(graph: Graph, values: Values, engine: str | None = None) -> Judgement:
    """Judge every operator of `graph`; `values` holds every value of one run, which was made by `engine`."""
    judge = OperatorJudge(graph_root(graph))
    rejected, undecided, unbounded, partly = [], [], set(), set()
    share, where = 0.0, ""
    for node in graph.nodes:
        notes = Findings()
        unjudged = judge_operator(notes, judge, node, values, engine)
        if any(str(line) in unjudged for line in lines_of(engine)):
            undecided.append(unjudged)
        elif unjudged:
            unbounded.add(node.operator)
        for finding in notes.seen:
            if not finding.agrees:
                rejected.append(f"{finding.where}: {finding.distance:.3g} of {finding.allowed:g} {finding.detail}")
            elif "undetermined" in finding.detail:
                partly.add(node.operator)
            if finding.distance > share:
                share, where = finding.distance, node.operator
    sets = tuple(sorted(unbounded)), tuple(sorted(partly))
    return Judgement(len(graph.nodes), tuple(rejected), share, where, *sets, tuple(undecided))
