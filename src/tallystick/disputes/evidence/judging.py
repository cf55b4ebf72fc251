"""Who is at fault, as a referee or a member of a committee decides from the files at the board."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

import numpy as np

from tallystick.core.digests import leaf_hash
from tallystick.core.errors import MalformedError, ProofError, UnavailableError
from tallystick.core.files import read_document
from tallystick.core.tensors import Tensor, TensorSpec
from tallystick.disputes.evidence.locate import Leeway, deviation, run_node
from tallystick.disputes.evidence.replays import Replays, Ruled, rule_by_audit, rule_training_record
from tallystick.disputes.evidence.statement import (
    OperatorsStatement,
    StatementCache,
    check_descent,
    check_records,
)
from tallystick.disputes.evidence.training import TrainingStatement
from tallystick.disputes.evidence.view import OpeningView, as_prover_fault, record_file, revealed_operator, view_of
from tallystick.disputes.game.protocols import DisputeView
from tallystick.disputes.game.state import Dispute
from tallystick.formats.spec import Origin
from tallystick.programs.admission import Deriver, parse_ref
from tallystick.programs.encoding import graph_root
from tallystick.programs.execution import Engine
from tallystick.programs.graph import Node, Ref, operands_of, result_ref
from tallystick.programs.operators.balls.bound import ResultBound, bound
from tallystick.programs.operators.definition import operator
from tallystick.programs.operators.precision import FORMATS, UNSTATED, Precision
from tallystick.verdicts.bounds import Threshold, errors_of, join as join_errors, rounding_errors
from tallystick.verdicts.leaf.bundle import LeafBundle
from tallystick.verdicts.leaf.judge import deviating_places, rule_leaf
from tallystick.verdicts.leaf.request import Ground, LeafLimits, LeafRequest, Ruling
from tallystick.verdicts.opening.budget import judge_budget
from tallystick.verdicts.operator.judge import DEFINITION_ERRORS
from tallystick.verdicts.operator.lazy_algebra import Places
from tallystick.verdicts.profiles import Budget, Profile, budget_for
from tallystick.verdicts.verdict import Fault, require

# How far a claimed result may differ from the exact one, calibrated by a committee member's own kernel.
#
# The member computes the operator on the same operands. Its own error, joined with one rounding, is the error of an
# honest kernel here. The claim may be `SAFETY` times as far off at each percentile, and never beyond the proven bound
# (`verdicts.bounds`). Elements without a bound are compared directly with the member's own results.

SAFETY: Final = 8.0


def within_own(node: Node, values: Mapping[Ref, Tensor], engine: Engine, precision: Precision) -> tuple[bool, str]:
    """Whether an honest kernel can give the claimed results of `node`, and a sentence about the first that it cannot.

    Raises `UnavailableError` if the engine or the reference does not compute the operator, `MalformedError` if the
    operator refuses its operands.
    """
    own = own_results(node, values, engine)
    meaning = operator(node.operator)
    bounds = bound(meaning, {**operands_of(node, values), **node.attributes}, precision)
    leeway = Leeway.of([node], {ref: TensorSpec.of(value) for ref, value in values.items()})
    for ref, limit in zip(node.outputs, bounds, strict=True):
        if ref is not None and limit is not None and not _holds(ref, values[ref], own[ref], limit, leeway):
            return False, f"{ref} ({node.operator}) is further off than {SAFETY:g} times the member's own kernel"
    return True, f"node {node.number} ({node.operator}) is what the member's own kernel gives"


def own_results(node: Node, values: Mapping[Ref, Tensor], engine: Engine) -> dict[Ref, Tensor]:
    """The results that an engine computes from the claimed operands, by reference."""
    loaded = {ref: engine.load(values[ref]) for ref in dict.fromkeys(node.refs)}
    return {ref: tensor for ref, (_, tensor) in run_node(node, loaded, engine).items()}


def _holds(ref: Ref, claimed: Tensor, own: Tensor, limit: ResultBound, leeway: Leeway) -> bool:
    if claimed.dtype not in FORMATS or not np.isfinite(limit.radius).all():
        return deviation(claimed, own, leeway, ref) <= 1.0
    unit, reference = FORMATS[claimed.dtype].unit, limit.value.astype(np.float64)
    ours = errors_of(own.values().astype(np.float64), reference, limit.radius, unit)
    calibrated = join_errors((ours, rounding_errors(reference, limit.radius, unit)))
    theirs = errors_of(claimed.values().astype(np.float64), reference, limit.radius, unit)
    return Threshold(calibrated, SAFETY).judge(theirs).agrees


# Who is at fault, as a referee or a member of a committee decides from the files at the board.
#
# A referee rules by structure, theorem and tie (`leaf/judge.py`), and leaves the rest to a committee. A member has an
# engine. It computes the operator itself, and it replays a segment if the contested state cannot be shown by an
# opening. For a large operator, it also judges the elements where its own kernel differs most from the claim.

Element = tuple[int, int]


@dataclass
class DisputeJudge:
    """Judges disputes over what was opened; implements `game.protocols.Judge`.

    With an `engine` it judges as a member of a committee, without one as a referee. `profile` holds calibrated
    thresholds of operators. `budgets` limit the sum of errors of a whole step, one for each graph. `limits` say how
    much of a large operator is computed. `origins` are weights that runs may begin with, as this judge has them.
    """

    engine: Engine | None = None
    device: str = "cpu"
    profile: Profile | None = None
    precision: Precision = UNSTATED
    limits: LeafLimits = field(default_factory=LeafLimits)
    budgets: tuple[Budget, ...] = ()
    origins: tuple[Origin, ...] = ()
    _statements: StatementCache = field(init=False)

    def __post_init__(self) -> None:
        self._statements = StatementCache(self.origins)

    @property
    def is_member(self) -> bool:
        """Whether it computes and replays natively."""
        return self.engine is not None

    def rule(self, answered: DisputeView, nonce: str | None = None) -> Ruled:
        """Who is at fault and why; `None` if a committee has to decide, or a member cannot decide."""
        opened = OpenedDispute(answered)
        try:
            if answered.dispute.ground == "leaf":
                return self._leaf(opened, nonce) if answered.dispute.level == 1 else self._record(answered)
            return self._budget(opened) if answered.dispute.ground == "budget" else self._structure(opened)
        except (ProofError, MalformedError) as error:  # all that is read here was supplied by the prover
            return Fault.PROVER, str(error)
        except UnavailableError as error:
            return None, str(error)

    def worst(self, answered: DisputeView) -> Element | None:
        """The element of a large operator that convicts the prover when a move names it: (result, flat place).

        It is the element farthest beyond its bound. It is judged again alone, because a referee will do the same.
        `None` if the operator is small enough for every judge to see all of it, and if no single element convicts: a
        threshold is left by all elements together.
        """
        if not self.is_large(answered):
            return None
        opened = OpenedDispute(answered)
        try:
            ref = self.ruling(opened, None).worst
            parsed = None if ref is None else parse_ref(ref[0])
            if ref is None or parsed is None:
                return None
            named = parsed[1], ref[1]
            alone = self.ruling(opened, named)
        except (ProofError, MalformedError, UnavailableError):
            return None
        return named if alone.fault is Fault.PROVER else None

    def is_large(self, answered: DisputeView) -> bool:
        """Whether the contested operator, by the specs of its graph, is too large for a judge to compute as a whole."""
        if answered.dispute.level != 1 or answered.dispute.ground != "leaf":
            return False
        opened = OpenedDispute(answered)
        try:
            return self.limits.are_passed_by(Deriver()(opened.node, opened.view.operators.specs))
        except (ProofError, MalformedError, UnavailableError):
            return False

    def _leaf(self, opened: OpenedDispute, nonce: str | None) -> Ruled:
        """Rule by the operator.

        A graph of one operator has no partition, so the challenger had no turn to protest: its structure is judged too.
        """
        ruling = self.ruling(opened, opened.dispute.element, nonce)
        ruled: Ruled = ruling.fault, ruling.reason
        if ruling.fault is None and self.engine is not None:
            judged = self._refusing if ruling.ground is Ground.OPERANDS else self._member
            ruled = judged(opened, ruling.reason, self.engine)
        if ruled[0] is Fault.PROVER or opened.dispute.size > 1:
            return ruled
        structure = self._structure(opened)
        return ruled if structure[0] is Fault.CHALLENGER else structure

    def ruling(self, opened: OpenedDispute, element: Element | None, nonce: str | None = None) -> Ruling:
        """The referee's ruling on the revealed operator; raises `ProofError` if its files cannot be read.

        With an engine and a nonce, the ruling also covers the elements where the member's own kernel differs.
        """
        view, dispute = opened.view, opened.dispute
        revealed = revealed_operator(opened.answered.turns[-1])
        with as_prover_fault():
            line = revealed.record.to_bytes()
        require(leaf_hash(line).hex() == dispute.leaf, "operator.json is not the record under the posted leaf")
        bundle = replace(view.bundle(dispute.low), operator=revealed)
        question = LeafRequest(
            precision=self.precision,
            profile=self.profile,
            nonce=bytes.fromhex(nonce or ""),
            element=None if element is None else (result_ref(revealed.record.node, element[0]), element[1]),
            index=dispute.low,
            bits=False,
            limits=self.limits,
        )
        return rule_leaf(bundle, replace(question, deviating=self._deviating(opened, bundle, question.nonce)))

    def _deviating(self, opened: OpenedDispute, bundle: LeafBundle, nonce: bytes) -> Mapping[Ref, Places]:
        """The places where a member's kernel gives other elements of a large operator; all if it does not run."""
        node, specs = opened.node, opened.view.operators.specs
        refs = [ref for ref in (*node.refs, *node.outputs) if ref is not None]
        is_whole = all(ref in bundle.values and TensorSpec.of(bundle.values[ref]) == specs[ref] for ref in refs)
        if self.engine is None or not nonce or not is_whole or not self.limits.are_passed_by(Deriver()(node, specs)):
            return {}
        try:
            own = own_results(node, bundle.values, self.engine)
        except UnavailableError:
            return {ref: np.arange(specs[ref].size) for ref in node.outputs if ref is not None}
        return {ref: deviating_places(bundle.values[ref], result, nonce) for ref, result in own.items()}

    def _member(self, opened: OpenedDispute, reason: str, engine: Engine) -> Ruled:
        try:
            holds, why = within_own(opened.node, opened.values, engine, self.precision)
        except MalformedError as error:
            return self._refusing(opened, str(error), engine)
        except DEFINITION_ERRORS as error:
            return None, f"the definition fails over its operands ({type(error).__name__}; {reason})"
        return (Fault.CHALLENGER if holds else Fault.PROVER), f"{why} ({reason})"

    def _refusing(self, opened: OpenedDispute, reason: str, engine: Engine) -> Ruled:
        """Rule on operands that the definition refuses.

        The prover is at fault if the member's own kernel refuses them too, or gives another result. If the kernel gives
        the claimed result, the definition may be too narrow, and the member does not decide.
        """
        node, values = opened.node, opened.values
        engine.prepare(node)  # an engine that does not know the operator says nothing about the operands
        try:
            own = own_results(node, values, engine)
        except UnavailableError as error:
            return Fault.PROVER, f"{reason}; the member's own kernel refuses them too: {error}"
        leeway = Leeway.of([node], {ref: TensorSpec.of(value) for ref, value in values.items()})
        if any(deviation(values[ref], result, leeway, ref) > 1.0 for ref, result in own.items()):
            return Fault.PROVER, f"{reason}; the member's own kernel takes them, and gives another result"
        return None, f"{reason}; the member's own kernel takes them, and gives the claimed result"

    def _record(self, answered: DisputeView) -> Ruled:
        """Rule on a record that the prover revealed without opening operators below it."""
        dispute, statement = answered.dispute, self._statements.whole(answered.statement, answered.claim)
        with as_prover_fault():
            line = read_document(answered.turns[-1] / record_file(dispute.low))
        require(leaf_hash(line).hex() == dispute.leaf, "the revealed record is not the one under the posted leaf")
        if isinstance(statement, TrainingStatement):
            return rule_training_record(statement, line, self.device if self.is_member else None)
        require(
            not isinstance(statement, OperatorsStatement), "the claim is about operators, and a record was revealed"
        )
        return Fault.PROVER, "a call has operators, and the prover did not open them"

    def _structure(self, opened: OpenedDispute) -> Ruled:
        """Rule on a protest: whether the last answer is consistent and belongs to the claim."""
        answered = opened.answered
        statement = self._statements.whole(answered.statement, answered.claim)
        if opened.dispute.level > 1:
            check_records(answered)
            question = "whether the run is that of its spec takes an audit"
        else:
            question = check_descent(answered, statement, opened.view)
            opened.view.check_ends()
            opened.view.check_cuts(opened.dispute)
        if not question or not isinstance(statement, TrainingStatement):
            return Fault.CHALLENGER, "what was opened is consistent and belongs to the claim"
        if not self.is_member:
            return None, question
        if opened.dispute.level > 1:
            return rule_by_audit(statement, self.device)
        return Replays(statement, self.device).rule_start(opened.view, 1.0)

    def _budget(self, opened: OpenedDispute) -> Ruled:
        """Rule on aligned errors by the opened values: all in one-round mode, otherwise both ends of the step."""
        budget = budget_for(self.budgets, graph_root(opened.view.graph)) if self.budgets else None
        if budget is None:
            return None, "this judge has no budget for the graph"
        verdict = judge_budget(opened.view.graph, opened.view.opened, budget, self.precision)
        if verdict.outcome == "rejected":
            return Fault.PROVER, f"the errors add up: {verdict.objections[0].name}"
        if verdict.outcome == "accepted":
            return Fault.CHALLENGER, "the errors stay within the budget"
        return None, verdict.unavailable[0] if verdict.unavailable else "nothing to weigh is opened"


@dataclass(frozen=True)
class OpenedDispute:
    """A dispute with what the prover opened of it, which one ruling reads and checks once."""

    answered: DisputeView

    @property
    def dispute(self) -> Dispute:
        """The dispute."""
        return self.answered.dispute

    @cached_property
    def view(self) -> OpeningView:
        """What was opened, checked against the posted tree; raises `ProofError`."""
        view = view_of(self.answered)
        view.check(self.dispute)
        return view

    @property
    def node(self) -> Node:
        """The contested operator."""
        return self.view.graph.nodes[self.dispute.low]

    @cached_property
    def values(self) -> Mapping[Ref, Tensor]:
        """The values that it read and gave, as far as they are opened."""
        return self.view.bundle(self.dispute.low).values
