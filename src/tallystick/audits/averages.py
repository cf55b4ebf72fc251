"""Compares the averages of a step graph with what the spec states of them, and averages with replayed ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tallystick.graphs.graph import Graph, Node, Ref
from tallystick.judging.findings import require
from tallystick.tensors.tensor import State
from tallystick.tolerances.streams import difference_norm, norm
from tallystick.tolerances.tolerance import Finding
from tallystick.transcripts.average import AverageRule
from tallystick.workloads.names import AVERAGE, AVERAGED, WEIGHTS

UNIT: Final = {"F64": 2.0**-53, "F32": 2.0**-24, "F16": 2.0**-11, "BF16": 2.0**-8}
ROUNDING: Final = 8
"""Units in the last place by which two stacks may round one update of an average apart: four operations each."""


def check_averages(graph: Graph, rule: AverageRule | None) -> None:
    """Raise `ProofError` unless the graph averages every weight after its update as `rule` says, or none without it."""
    outputs = {each.name: each.value for each in graph.outputs}
    wanted = {name.removeprefix(WEIGHTS) for name in outputs if name.startswith(WEIGHTS)} if rule is not None else set()
    found = {name.removeprefix(AVERAGE) for name in outputs if name.startswith(AVERAGE)}
    require(found == wanted, "the step graph averages other weights than the spec says")
    is_counted = rule is not None and rule.counts
    require((AVERAGED in outputs) == is_counted, "the step graph counts averages otherwise than the spec says")
    if rule is None:
        return
    reading = _AverageNodes({ref: node for node in graph.nodes for ref in node.outputs if ref is not None}, rule)
    if is_counted:
        require(reading.counts(outputs[AVERAGED]), f"the step graph does not count {AVERAGED} up by one")
    for name in sorted(found):
        held = reading.is_average(outputs[AVERAGE + name], AVERAGE + name, outputs[WEIGHTS + name])
        require(held, f"the step graph does not average {name} as the spec says ({rule.form}, decay {rule.decay})")


def compare_averages(states: tuple[State, State, State], limit: float, steps: int) -> Finding:
    """Compare claimed averages with replayed ones; `states` are the start, the claimed one and the replayed one.

    An average is a mean of weights. So it is no further off than they are, by `limit` of their move, and by the
    rounding of each update.
    """
    averages = [[each[name] for name in sorted(each) if name.startswith(AVERAGE)] for each in states]
    weights = [[each[name] for name in sorted(each) if name.startswith(WEIGHTS)] for each in states]
    unit = max((UNIT[each.dtype] for each in averages[2]), default=0.0)
    allowed = limit * difference_norm(weights[0], weights[2]) + ROUNDING * steps * unit * norm(averages[2])
    return Finding(difference_norm(averages[1], averages[2]), allowed, "averages")


@dataclass(frozen=True)
class _AverageNodes:
    """Reads how values are made; `made` is the node of each."""

    made: dict[Ref, Node]
    rule: AverageRule

    def counts(self, ref: Ref) -> bool:
        """Whether a value is the count of averages after one more."""
        return self._is(ref, "aten.add.Scalar", {"self": AVERAGED}, {"alpha": 1, "other": 1})

    def is_average(self, ref: Ref, average: Ref, weight: Ref) -> bool:
        """Whether a value is the new average of `average` and `weight`."""
        if not self.rule.counts:
            return self._is_moved(ref, average, weight)
        node = self.made.get(ref)
        if node is None or node.operator != "aten.where.self" or node.operands["self"] != weight:
            return False
        first, moved = node.operands["condition"], node.operands["other"]
        is_first = isinstance(first, str) and self._is(first, "aten.eq.Scalar", {"self": AVERAGED}, {"other": 0})
        return is_first and isinstance(moved, str) and self._is_moved(moved, average, weight)

    def _is_moved(self, ref: Ref, average: Ref, weight: Ref) -> bool:
        decay, share = self.rule.decay, 1 - self.rule.decay
        if self.rule.form == "lerp":
            return self._is(ref, "aten.lerp.Scalar", {"self": average, "end": weight}, {"weight": share})
        node = self.made.get(ref)
        inner = None if node is None else node.operands.get("self" if self.rule.form == "sum" else "other")
        if not isinstance(inner, str):
            return False
        if self.rule.form == "sum":
            return self._is(ref, "aten.add.Tensor", {"self": inner, "other": weight}, {"alpha": share}) and self._is(
                inner, "aten.mul.Scalar", {"self": average}, {"other": decay}
            )
        apart = self.made[inner].operands.get("self") if inner in self.made else None
        return (
            isinstance(apart, str)
            and self._is(ref, "aten.sub.Tensor", {"self": average, "other": inner}, {"alpha": 1})
            and self._is(inner, "aten.mul.Scalar", {"self": apart}, {"other": share})
            and self._is(apart, "aten.sub.Tensor", {"self": average, "other": weight}, {"alpha": 1})
        )

    def _is(self, ref: Ref, operator: str, operands: dict[str, Ref], attributes: dict[str, float]) -> bool:
        node = self.made.get(ref)
        return node is not None and (node.operator, dict(node.operands), dict(node.attributes)) == (
            operator,
            operands,
            attributes,
        )
