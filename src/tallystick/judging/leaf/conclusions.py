"""What a referee concludes when it compares the results of one operator with their bounds.

A result beyond its bound is wrong, except for a choice between numbers that honest devices may order either way. A
dispute must end with a loser, so a referee does not read the table of engines that are known to exceed bounds
(`operators/engines.py`). An element with an infinite bound passes only if it is what the reference computes; otherwise
the dispute is undecided.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tallystick.errors import MalformedError, UnavailableError
from tallystick.graphs.graph import Node, Ref
from tallystick.judging.findings import Findings
from tallystick.judging.operator.judge import ComparedResult, OperatorJudge, Values
from tallystick.judging.operator.places import Places
from tallystick.tolerances.tolerance import Finding


@dataclass
class Conclusions:
    """Results that are wrong, tied or undecided, one line each.

    `outside` lists results beyond a calibrated threshold, `worst` the worst element of each wrong result, and `refused`
    the reasons why the definition does not accept the claimed operands.
    """

    wrong: list[str] = field(default_factory=list)
    tied: list[str] = field(default_factory=list)
    undecided: list[str] = field(default_factory=list)
    outside: list[str] = field(default_factory=list)
    worst: list[tuple[Ref, int]] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)


def conclude(
    notes: Findings,
    judge: OperatorJudge,
    node: Node,
    values: Values,
    margin: float,
    places: Mapping[Ref, Places] | None = None,
    chunk: int = 0,
) -> Conclusions:
    """Note a finding for each result of `node`, and return the conclusions; `places` selects the elements to compare.

    `values` holds every value of the node, with the specs that the node states. Choices within `margin` roundings are
    tied.
    """
    found = Conclusions()
    try:
        compared = judge.compare(node, values, places, chunk)
    except MalformedError as error:
        found.refused.append(f"node {node.number} ({node.operator}) does not take its operands: {error}")
        return found
    except UnavailableError as error:
        found.undecided.append(f"node {node.number}: {error}")
        return found
    for result in compared:
        _conclude_one(notes, found, judge, result, values, margin)
    return found


def _conclude_one(
    notes: Findings, found: Conclusions, judge: OperatorJudge, result: ComparedResult, values: Values, margin: float
) -> None:
    differing = result.wrong | result.unbounded
    if result.undecided:
        found.undecided.append(result.undecided)
        return
    if differing.any() and _is_tie(notes, found, result, values, margin):
        return
    notes.note(result.finding, "operator", result.name)
    if result.wrong.any():
        found.wrong.append(_line(result, result.finding))
        found.worst.append((result.ref, result.worst))
    elif differing.any():
        count = int(result.unbounded.sum())
        found.undecided.append(f"{result.name}: {count} elements differ about which the bound says nothing")
    else:
        _ask_threshold(notes, found, judge, result)


def _is_tie(notes: Findings, found: Conclusions, result: ComparedResult, values: Values, margin: float) -> bool:
    """Whether the operator chooses among numbers; then a differing result is tied or wrong by how close they are."""
    from tallystick.judging.operator.near_ties import find_near_tie

    tie = find_near_tie(result.node, values, result.ref, result.places[result.wrong | result.unbounded])
    if tie is None:
        return False
    finding = Finding(tie.bands, margin, "tie", "", f"{tie.detail}, in bands")
    notes.note(finding, "tie", result.name, advisory=finding.agrees)
    if finding.agrees:
        found.tied.append(_line(result, finding))
    else:
        found.wrong.append(_line(result, finding))
        found.worst.append((result.ref, tie.place))
    return True


def _ask_threshold(notes: Findings, found: Conclusions, judge: OperatorJudge, result: ComparedResult) -> None:
    """Note the result beside its threshold; if it is within the bound but not the threshold, a committee decides."""
    try:
        finding = judge.threshold(result)
    except UnavailableError as error:
        found.undecided.append(str(error))
        return
    if finding is None:
        return
    notes.note(finding, "operator threshold", result.name, advisory=not finding.agrees)
    if not finding.agrees:
        found.outside.append(_line(result, finding))


def _line(result: ComparedResult, finding: Finding) -> str:
    place = f" at {finding.where}" if finding.where else ""
    detail = f" ({finding.detail})" if finding.detail else ""
    return f"{result.name}: {finding.distance:.4g} of {finding.allowed:.4g} allowed{place}{detail}"
