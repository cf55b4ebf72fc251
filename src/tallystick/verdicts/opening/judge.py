"""Judges the operators of one opened step or call. Only the reference in NumPy is executed.

The opening must be consistent. An operator with a value that is not opened is not judged.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from tallystick.core.digests import Digest, digest_from, leaf_hash, tree_root
from tallystick.core.errors import MalformedError, ProofError, UnavailableError, UsageError
from tallystick.core.files import read_document
from tallystick.core.tensors import Tensor
from tallystick.formats.openings import OpenedOperator, Opening
from tallystick.formats.records import StepRecord
from tallystick.programs.encoding import NodeProof, check_node, file_root, graph_root
from tallystick.programs.files import load_program
from tallystick.programs.graph import Graph, Node, Ref
from tallystick.programs.operators.precision import UNSTATED, Precision, outside
from tallystick.verdicts.opening.binding import check_binding, check_operator
from tallystick.verdicts.opening.files import (
    GRAPH,
    OPERATOR,
    OPERATORS,
    OpenedValues,
    follow_operators,
    read_opening,
    read_operator_lines,
)
from tallystick.verdicts.opening.published import Published
from tallystick.verdicts.operator.judge import ComparedResult, OperatorJudge, Values, derive_results, find_near_tie
from tallystick.verdicts.profiles import Profile
from tallystick.verdicts.properties import judge_properties
from tallystick.verdicts.tolerance import Finding
from tallystick.verdicts.verdict import DIFFERS, Findings, Verdict, VerdictCoverage, bound_by_digest, require

Opened: TypeAlias = "tuple[Graph | None, tuple[Node, ...], Mapping[Ref, Digest]]"
"""The graph (`None` if only one operator is opened), the opened nodes, and the digests of their values."""


@dataclass(frozen=True)
class OpeningRequest:
    """The settings of a verifier of opened operators.

    `claim` is the digest of the published claim; `published` is the claim itself, which allows further checks.
    """

    precision: Precision = UNSTATED
    profile: Profile | None = None
    nodes: frozenset[int] = frozenset()
    properties: tuple[str, ...] = ()
    claim: Digest | None = None
    published: Published | None = None


def judge_opening(folder: Path, request: OpeningRequest) -> Verdict:
    """Judge every opened operator in `folder`, or those of `request.nodes`.

    Raises:
        UnavailableError: there is no opening.
        UsageError: a requested node or property does not exist.

    Whatever else is wrong with the files is in the verdict: bytes that are not those that the opening names reject it;
    what is missing or not understood here leaves it inconclusive.
    """
    notes = Findings(keeps_going=True)
    try:
        opening = read_opening(folder)
    except MalformedError as error:
        return Verdict((), (str(error),), ("the operators: what the opening states cannot be read",))
    with notes.check("opened record"):
        check_binding(opening)
    with notes.check("claim"):
        require(request.claim in (None, opening.claim), f"the opening belongs to the claim {opening.claim}")
    if request.published is not None:
        request.published.check(notes, opening)
    read = _read_all if (folder / OPERATORS).exists() else _read_one
    graph, nodes, digests = read(notes, folder, opening)
    opened = OpenedValues(folder)
    try:
        opened.require_readable()
    except MalformedError as error:  # no digest names the file as a whole: its values count as not opened
        notes.leave_open("", str(error))
    if notes.rejected or notes.undecided:
        left = "the opening is not consistent" if notes.rejected else "not all of the opening can be read"
        return Verdict(tuple(notes.seen), tuple(notes.open_lines), (f"the operators: {left}",))
    if request.published is not None:
        with notes.check("value"):
            request.published.check_step(notes, opening, opening.opened_record(), opened.opened)
    judged, unavailable = _judge_nodes(notes, opened, request, opening, nodes, digests)
    if request.properties and graph is None:
        unavailable.append("properties: they are checked of a whole opening, and one operator is opened here")
    elif (
        request.properties
        and graph is not None
        and (values := _values(notes, opened, digests, "properties")) is not None
    ):
        unavailable += judge_properties(notes, graph, values, request.properties)
    assumed = ["SHA-256 is collision resistant, and NumPy computes what it says"]
    if request.profile is not None:
        assumed.append("honest stacks differ by no more than those the profile was calibrated on")
    not_checked = tuple(_not_checked(opened, opening, request))
    coverage = VerdictCoverage(judged, opening.operators.size, "operators", "judged", closely="within their bounds")
    return Verdict(tuple(notes.seen), (*unavailable, *notes.open_lines), not_checked, tuple(assumed), coverage)


def judge_operator(notes: Findings, judge: OperatorJudge, node: Node, values: Values, engine: str | None = None) -> str:
    """Judge the results of `node`; returns what could not be checked, or an empty string.

    `engine` is the engine that the prover states. If it is known to exceed a bound, a result beyond that bound is not
    held against the prover. Raises `MalformedError` if the operator does not accept its operands, for example an index
    out of range.
    """
    missing = next((ref for ref in (*node.refs, *filter(None, node.outputs)) if ref not in values), None)
    if missing is not None:
        return f"node {node.number}: {missing} is not opened"
    try:
        derive_results(node, values)
    except MalformedError as error:
        notes.note(DIFFERS, "operator types", f"node {node.number}", str(error))
        return ""
    try:
        compared = judge.compare(node, values)
    except UnavailableError as error:
        return f"node {node.number}: {error}"
    return "; ".join(filter(None, (_judge_result(notes, judge, result, values, engine) for result in compared)))


def _judge_result(
    notes: Findings, judge: OperatorJudge, result: ComparedResult, values: Values, engine: str | None
) -> str:
    finding = result.finding
    if result.limit is None and finding.agrees and result.unbounded.any():
        return _judge_choice(notes, result, values)
    if result.undecided:
        return result.undecided
    known = None if finding.agrees else outside(engine, result.node.operator, result.dtype)
    if known is not None and result.limit is not None:
        return f"{result.name}: {finding.distance:.3g} of its bound, and {known}"
    notes.note(finding, "operator", result.name)
    if not finding.agrees:
        return ""
    try:
        calibrated = judge.threshold(result)
    except UnavailableError as error:
        return str(error)
    if calibrated is not None:
        notes.note(calibrated, "operator threshold", result.name)
    return ""


def _judge_choice(notes: Findings, result: ComparedResult, values: Values) -> str:
    """Integers about which the bound says nothing: kernels may give equal numbers in any order, and no others."""
    tie = find_near_tie(result.node, values, result.ref, result.places[result.unbounded])
    if tie is None or 0 < tie.bands < math.inf:
        return f"{result.name}: {int(result.unbounded.sum())} elements differ about which the bound says nothing"
    notes.note(Finding(tie.bands, 0.0, detail=f"{tie.detail}, in bands"), "operator", result.name)
    return ""


def _read_all(notes: Findings, folder: Path, opening: Opening) -> Opened:
    graphs: list[Graph] = []
    lines: list[bytes] = []
    digests: dict[Ref, Digest] = dict(opening.sources)
    with notes.check("graph"):
        graphs.append(_named_graph(folder / GRAPH, opening.graph))
    with notes.check("operators root"):
        lines = read_operator_lines(folder)
        tree = (len(lines), digest_from(tree_root([leaf_hash(line) for line in lines])))
        require(tree == (opening.operators.size, opening.operators.root), f"{OPERATORS} is not what the opening names")
    if not graphs:
        return None, (), digests
    graph = graphs[0]
    with notes.check("operators"):
        digests = follow_operators(opening, graph, lines)
    return graph, graph.nodes, digests


def _named_graph(path: Path, root: Digest) -> Graph:
    """The graph `root`; raises `ProofError` for another one, `MalformedError` for that one if nobody here runs it."""
    other = f"{path.name} is not the graph that the opening names"
    try:
        graph, _ = load_program(path)
    except MalformedError:
        with bound_by_digest(other):
            require(file_root(path) == root, other)
        raise
    require(graph_root(graph) == root, other)
    return graph


def _read_one(notes: Findings, folder: Path, opening: Opening) -> Opened:
    nodes: tuple[Node, ...] = ()
    digests: dict[Ref, Digest] = {}
    with notes.check("operator"):
        opened = OpenedOperator.from_bytes(read_document(folder / OPERATOR), OPERATOR)
        digests = {**opened.record.inputs, **opened.record.outputs}
        opened.check_record(opening)
        node = check_node(NodeProof.from_json(opened.node), opening.graph)
        check_operator(node, opened.record)
        nodes = (node,)
    return None, nodes, digests


def _judge_nodes(
    notes: Findings,
    opened: OpenedValues,
    request: OpeningRequest,
    opening: Opening,
    nodes: Collection[Node],
    digests: Mapping[Ref, Digest],
) -> tuple[int, list[str]]:
    """How many operators were judged, and what could not be checked."""
    judge = OperatorJudge(opening.graph, request.precision, request.profile)
    judged, lines = 0, list[str]()
    known = {node.number: node for node in nodes}
    unknown = sorted(request.nodes - known.keys())
    if unknown:
        raise UsageError(f"node {unknown[0]} is not opened here")
    for node in (known[number] for number in sorted(request.nodes or known)):
        wanted = {ref: digests[ref] for ref in (*node.refs, *filter(None, node.outputs))}
        values = _values(notes, opened, wanted, f"node {node.number}")
        if values is None:
            continue
        try:
            line = judge_operator(notes, judge, node, values, opening.engine)
        except MalformedError as error:  # an engine may define what the reference refuses
            line = f"node {node.number}: {error}"
        judged += not line
        lines += [line] if line else []
    return judged, lines


def _values(
    notes: Findings, opened: OpenedValues, wanted: Mapping[Ref, Digest], subject: str
) -> dict[Ref, Tensor] | None:
    """The opened values; `None` where one is not the one that its name says."""
    try:
        return opened.opened(wanted)
    except (ProofError, MalformedError) as error:
        notes.note(DIFFERS, "value", subject, str(error))
    return None


def _not_checked(opened: OpenedValues, opening: Opening, request: OpeningRequest) -> Iterator[str]:
    record = opening.opened_record()
    if request.published is not None:
        yield from request.published.not_checked(opening, record, opened.__contains__)
    elif isinstance(record, StepRecord):
        yield "whether loss and learning rate are those of the record: `tally audit` replays the step"
    if isinstance(record, StepRecord):
        if record.batch.digest is None:
            yield f"whether this is the batch of step {record.index}: its record names positions, and not tensors"
        if record.pre.exact is None or record.post.exact is None:
            yield f"whether these are the states around step {record.index}: its record has no exact summary of both"
    if opening.engine is not None:
        yield f"whether {opening.engine} computed the operators: the opening says so"
    if request.published is None:
        yield "whether transcript and graph are those of the claim that was published: only the claim itself says so"
