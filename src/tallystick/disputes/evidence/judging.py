"""Who is at fault, as a referee or a member of a committee finds from what lies at the board.

A referee rules by structure, theorem and tie (`leaf/judge.py`), and leaves the rest to a committee. A member has an
engine: it computes the operator itself, and replays a segment where a state is contested that no opening can show. Of a
large operator it judges exactly those elements as well where its own kernel differs most from what was claimed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from tallystick.audits.screens import screen_anchors
from tallystick.commitments.tree import leaf_hash
from tallystick.disputes.evidence.claimed_run import ClaimCache, ClaimedCalls, ClaimedTraining
from tallystick.disputes.evidence.doubting import stack_for
from tallystick.disputes.evidence.doubts import audit_whole, doubt_training
from tallystick.disputes.evidence.drift import Leeway, deviation
from tallystick.disputes.evidence.members import own_results, within_own
from tallystick.disputes.evidence.records import record_file
from tallystick.disputes.evidence.replays import Replays, objection
from tallystick.disputes.evidence.structure import check_turn
from tallystick.disputes.evidence.view import OpeningView, revealed_operator, supplied, view_of
from tallystick.disputes.game.protocols import DisputeView
from tallystick.disputes.game.state import Dispute
from tallystick.documents.files import read_document
from tallystick.errors import MalformedError, ProofError, UnavailableError
from tallystick.graphs.check import parse_ref
from tallystick.graphs.derive import Deriver
from tallystick.graphs.engine import Engine
from tallystick.graphs.graph import Ref, result_ref
from tallystick.graphs.root import graph_root
from tallystick.judging.fault import Fault
from tallystick.judging.findings import Findings, require
from tallystick.judging.leaf.bundle import LeafBundle
from tallystick.judging.leaf.deviations import deviating_places
from tallystick.judging.leaf.judge import rule_leaf
from tallystick.judging.leaf.request import Ground, LeafLimits, LeafRequest, Ruling
from tallystick.judging.opening.budget import judge_budget
from tallystick.judging.operator.judge import DEFINITION_ERRORS
from tallystick.judging.operator.places import Places
from tallystick.operators.precision import UNSTATED, Precision
from tallystick.tensors.spec import TensorSpec
from tallystick.transcripts.budget import Budget, budget_for
from tallystick.transcripts.profile import Profile
from tallystick.transcripts.record import AnchorRecord, StepRecord, read_record
from tallystick.workloads.names import STATE_PREFIXES

Element = tuple[int, int]
Found = tuple[Fault | None, str]


@dataclass
class DisputeJudge:
    """Judges disputes over what was opened; implements `parties.Judge`. With an `engine` it is a member's.

    `profile` holds calibrated thresholds of operators, `budgets` for each graph what the errors of a whole step may add
    up to. `limits` say how much of a large operator is computed.
    """

    engine: Engine | None = None
    device: str = "cpu"
    profile: Profile | None = None
    precision: Precision = UNSTATED
    limits: LeafLimits = field(default_factory=LeafLimits)
    budgets: tuple[Budget, ...] = ()
    _held: ClaimCache = field(default_factory=ClaimCache)

    @property
    def is_member(self) -> bool:
        """Whether it computes and replays natively."""
        return self.engine is not None

    def rule(self, answered: DisputeView, nonce: str | None = None) -> Found:
        """Who is at fault and why; `None` where a committee has to decide, or a member cannot tell."""
        try:
            if answered.dispute.ground == "leaf":
                return self._leaf(answered, nonce) if answered.dispute.level == 1 else self._record(answered)
            if answered.dispute.ground == "budget":
                return self._budget(answered)
            return self._structure(answered)
        except (ProofError, MalformedError) as error:  # all that is read here was supplied by the prover
            return Fault.PROVER, str(error)
        except UnavailableError as error:
            return None, str(error)

    def _leaf(self, answered: DisputeView, nonce: str | None) -> Found:
        """By the operator; of a single one by its structure too, since nobody had a move to protest against it."""
        found = self._operator(answered, nonce)
        if found[0] is Fault.PROVER or answered.dispute.size > 1:
            return found
        structure = self._structure(answered)
        return found if structure[0] is Fault.CHALLENGER else structure

    def _operator(self, answered: DisputeView, nonce: str | None) -> Found:
        ruling = self.ruling(answered, nonce)
        if ruling.fault is not None or self.engine is None:
            return ruling.fault, ruling.reason
        if ruling.ground is Ground.OPERANDS:
            return self._refusing(answered, ruling, self.engine)
        return self._member(answered, ruling, self.engine)

    def ruling(self, answered: DisputeView, nonce: str | None = None) -> Ruling:
        """The referee's ruling on the operator that was revealed; raises `ProofError` where nothing readable was.

        A member with a nonce has it ruled on where its own kernel differs, too.
        """
        view, dispute = view_of(answered), answered.dispute
        view.check(dispute)
        revealed = revealed_operator(answered.turns[-1])
        with supplied():
            line = revealed.record.to_bytes()
        require(leaf_hash(line).hex() == dispute.leaf, "operator.json is not the record under the posted leaf")
        bundle = replace(view.bundle(dispute.low), operator=revealed)
        question = LeafRequest(
            precision=self.precision,
            profile=self.profile,
            nonce=bytes.fromhex(nonce or ""),
            element=_named(dispute, revealed.record.node),
            index=dispute.low,
            bits=False,
            limits=self.limits,
        )
        return rule_leaf(
            bundle, replace(question, deviating=self._deviating(view, dispute.low, bundle, question.nonce))
        )

    def _deviating(self, view: OpeningView, place: int, bundle: LeafBundle, nonce: bytes) -> Mapping[Ref, Places]:
        """Where a member's kernel gives other elements of a large operator; all elements where it does not run."""
        node, specs = view.graph.nodes[place], view.operators.specs
        refs = [ref for ref in (*node.refs, *node.outputs) if ref is not None]
        is_whole = all(ref in bundle.values and TensorSpec.of(bundle.values[ref]) == specs[ref] for ref in refs)
        if self.engine is None or not nonce or not is_whole or not self.limits.are_passed_by(Deriver()(node, specs)):
            return {}
        try:
            own = own_results(node, bundle.values, self.engine)
        except UnavailableError:
            return {ref: np.arange(specs[ref].size) for ref in node.outputs if ref is not None}
        return {ref: deviating_places(bundle.values[ref], result, nonce) for ref, result in own.items()}

    def worst(self, answered: DisputeView) -> Element | None:
        """The element that convicts the prover of a large operator when it is named, as a move names it.

        It is the one farthest beyond its bound, judged once more alone, as a referee will. `None` where every judge
        sees the whole operator, and where no single element convicts: what leaves a threshold does so over all.
        """
        if not self.is_large(answered):
            return None
        try:
            ref = self.ruling(_naming(answered, None)).worst
            parsed = None if ref is None else parse_ref(ref[0])
            if ref is None or parsed is None:
                return None
            named = parsed[1], ref[1]
            alone = self.ruling(_naming(answered, named))
        except (ProofError, MalformedError, UnavailableError):
            return None
        return named if alone.fault is Fault.PROVER else None

    def is_large(self, answered: DisputeView) -> bool:
        """Whether the contested operator is more than `limits` let a judge compute as a whole, as its graph says."""
        dispute = answered.dispute
        if dispute.level != 1 or dispute.ground != "leaf":
            return False
        try:
            view = view_of(answered)
            view.check(dispute)
            derived = Deriver()(view.graph.nodes[dispute.low], view.operators.specs)
        except (ProofError, MalformedError, UnavailableError):
            return False
        return self.limits.are_passed_by(derived)

    def _member(self, answered: DisputeView, ruling: Ruling, engine: Engine) -> Found:
        view, place = view_of(answered), answered.dispute.low
        try:
            holds, why = within_own(view.graph.nodes[place], view.bundle(place).values, engine, self.precision)
        except MalformedError as error:
            return self._refusing(answered, replace(ruling, reason=str(error)), engine)
        except DEFINITION_ERRORS as error:
            return None, f"the definition fails over its operands ({type(error).__name__}; {ruling.reason})"
        return (Fault.CHALLENGER if holds else Fault.PROVER), f"{why} ({ruling.reason})"

    def _refusing(self, answered: DisputeView, ruling: Ruling, engine: Engine) -> Found:
        """Over operands that the definition refuses: wrong where one's own kernel refuses too, or gives another result.

        A kernel that takes them, and gives what is claimed, may be right: then the definition is too narrow.
        """
        view, place = view_of(answered), answered.dispute.low
        node, values = view.graph.nodes[place], view.bundle(place).values
        engine.prepare(node)  # an engine that does not know the operator says nothing about the operands
        try:
            own = own_results(node, values, engine)
        except UnavailableError as error:
            return Fault.PROVER, f"{ruling.reason}; nor does a kernel of one's own: {error}"
        leeway = Leeway.of([node], {ref: TensorSpec.of(value) for ref, value in values.items()})
        if any(deviation(values[ref], result, leeway, ref) > 1.0 for ref, result in own.items()):
            return Fault.PROVER, f"{ruling.reason}; and a kernel of one's own that does gives another result"
        return None, f"{ruling.reason}; a kernel of one's own does, and gives what is claimed"

    def _record(self, answered: DisputeView) -> Found:
        """A record that was revealed and not descended from."""
        dispute, held = answered.dispute, self._held.of(answered.statement, answered.claim)
        with supplied():
            line = read_document(answered.turns[-1] / record_file(dispute.low))
        require(leaf_hash(line).hex() == dispute.leaf, "the revealed record is not the one under the posted leaf")
        if isinstance(held, ClaimedCalls):
            return Fault.PROVER, "a call has operators, and the prover did not open them"
        assert isinstance(held, ClaimedTraining)
        record = read_record(line, "record")
        if not isinstance(record, StepRecord | AnchorRecord):
            return Fault.CHALLENGER, f"the {record.kind} record is what claim and spec say"
        if held.evidence.program is None:
            return self._without_graph(held)
        if isinstance(record, AnchorRecord):
            return self._anchor(held, record.index)
        return Fault.PROVER, "a step has operators, and the prover did not open them"

    def _without_graph(self, held: ClaimedTraining) -> Found:
        if self.is_member:
            return self._audited(held)
        return None, "the run has no step graph; only a replay of its recipe can tell"

    def _anchor(self, held: ClaimedTraining, mark: int) -> Found:
        """An anchor by its own summaries and what a step can reach, and for a member by a replay."""
        screened = replace(held.evidence, findings=Findings())
        screen_anchors(screened)
        seen = [finding for finding in screened.findings.seen if finding.where.startswith(f"step {mark}")]
        if wrong := objection(Findings(seen)):
            return Fault.PROVER, wrong
        if not self.is_member:
            return None, f"whether anchor {mark} follows from the one before it takes a replay"
        wrong = objection(Replays(held, self.device).check_anchor(mark))
        return (Fault.PROVER, wrong) if wrong else (Fault.CHALLENGER, f"anchor {mark} is that of a replay")

    def _structure(self, answered: DisputeView) -> Found:
        held = self._held.of(answered.statement, answered.claim)
        open_questions = check_turn(answered, held)
        if not isinstance(held, ClaimedTraining) or not (open_questions or answered.dispute.level > 1):
            return Fault.CHALLENGER, "what was opened hangs together and belongs to the claim"
        if not self.is_member:
            return None, open_questions[0] if open_questions else "whether the run is that of its spec takes an audit"
        return self._audited(held) if answered.dispute.level > 1 else self._before(answered, held)

    def _before(self, answered: DisputeView, held: ClaimedTraining) -> Found:
        view = view_of(answered)
        names = [each.name for each in view.graph.inputs if each.name.startswith(STATE_PREFIXES)]
        step = int(view.value("position.step").values()) + 1
        wrong = objection(Replays(held, self.device).check_before(view.values(names), step))
        reason = f"the state before step {step} is that of a replay"
        return (Fault.PROVER, wrong) if wrong else (Fault.CHALLENGER, reason)

    def _audited(self, held: ClaimedTraining) -> Found:
        report = audit_whole(held.evidence, stack_for(held, self.device))
        found = doubt_training(held, Replays(held, self.device), report)
        if found is not None:
            return Fault.PROVER, found.reason
        if report.verdict.unavailable:
            return None, report.verdict.unavailable[0]
        return Fault.CHALLENGER, "an audit of the whole run finds nothing"

    def _budget(self, answered: DisputeView) -> Found:
        """Whether errors are aligned, as far as values are opened: all of them in one-round mode, else both ends."""
        no_budget = "this judge has no budget for the graph"
        if not self.budgets:
            return None, no_budget
        view = view_of(answered)
        view.check(answered.dispute)
        budget = budget_for(self.budgets, graph_root(view.graph))
        if budget is None:
            return None, no_budget
        verdict = judge_budget(view.graph, view.opened, budget, self.precision)
        if verdict.outcome == "rejected":
            return Fault.PROVER, f"the errors add up: {verdict.objections[0].name}"
        if verdict.outcome == "accepted":
            return Fault.CHALLENGER, "the errors stay within the budget"
        return None, verdict.unavailable[0] if verdict.unavailable else "nothing to weigh is opened"


def _naming(answered: DisputeView, element: Element | None) -> DisputeView:
    """The same dispute, with this element named."""
    return replace(answered, dispute=replace(answered.dispute, element=element))


def _named(dispute: Dispute, node: int) -> tuple[Ref, int] | None:
    """The element that the challenger named, by the reference to its result."""
    if dispute.element is None:
        return None
    result, place = dispute.element
    return result_ref(node, result), place
