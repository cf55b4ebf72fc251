"""The challenger: it contests what differs, names the child, and brings evidence that convicts at once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Final, Literal

import numpy as np

from tallystick.core.digests import prove_inclusion
from tallystick.core.errors import MalformedError, ProofError, RuleError, UnavailableError
from tallystick.core.tensors import Tensor
from tallystick.disputes.evidence.view import view_of
from tallystick.disputes.game.game import CAST, PRODUCT, convict
from tallystick.disputes.game.moves import (
    Choose,
    Concede,
    Contest,
    Evidence,
    Move,
    Pinpoint,
    Protest,
    Prove,
    RecordForm,
    TensorForm,
    ValueWriter,
)
from tallystick.disputes.game.protocols import DisputeView, Doubt, Ground, Judge
from tallystick.disputes.game.state import Dispute, Phase, PostedClaim, Status, bounds
from tallystick.disputes.parties.auditing import AuditFinding, Auditor, read_doubt
from tallystick.disputes.parties.game_view import BoardCache, GameView, claim_name
from tallystick.disputes.parties.player import FAILURES, AnswerPending, PartyTask, Workspace, is_nearly_over
from tallystick.formats.records import OperatorRecord
from tallystick.verdicts.leaf.bundling import WholeOpening
from tallystick.verdicts.verdict import Fault

# Search the prover's opening of the last operator for evidence that convicts at once.
#
# Only evidence that a coordinator checks itself counts (`cheap`): a value that is read with other bytes than were
# given, a wrong conversion, or a wrong product, of small tensors. Every candidate is checked before it is sent. Most
# faults leave no such evidence, and need a ruling.

GROUNDS: Final[dict[str, Literal["cast", "product"]]] = {CAST: "cast", PRODUCT: "product"}
FORMS: Final = frozenset({"F32", "F64"})
BYTES_MAX, SIDES_MAX, INPUTS_MAX, OUTPUTS_MAX = 4096, 8, 16, 4
ELEMENTS_TRIED: Final = 8


def find_evidence(answered: DisputeView) -> Evidence | None:
    """Evidence about the opened operator that a coordinator accepts; `None` if there is none."""
    dispute = answered.dispute
    if dispute.level != 1 or dispute.ground != "leaf":
        return None
    try:
        view = view_of(answered)
        bundle = view.bundle(dispute.low)
    except ProofError:
        return None  # files that cannot be read need a ruling
    record = bundle.operator.record
    candidates = (*_edges(view.whole, dispute.low, record), *_values(record, bundle.values))
    return next((each for each in candidates if _convicts(dispute, each)), None)


def _edges(whole: WholeOpening, place: int, record: OperatorRecord) -> Iterator[Evidence]:
    """Evidence about operators that gave a value to this one: with other bytes, or later in the order."""
    for index, line in enumerate(whole.lines):
        writer = OperatorRecord.from_bytes(line, f"operator {index}")
        shared = writer.outputs.keys() & record.inputs.keys()
        is_small = _fits(writer) and _fits(record)
        if is_small and any(writer.outputs[ref] != record.inputs[ref] or index >= place for ref in shared):
            proof = tuple(each.hex() for each in prove_inclusion(whole.leaves, index, len(whole.lines)))
            written = ValueWriter(record=_form(writer), index=index, proof=proof)
            yield Evidence(ground="edge", record=_form(record), writer=written)


def _values(record: OperatorRecord, values: Mapping[str, Tensor]) -> Iterator[Evidence]:
    """Evidence about the elements of a conversion or product that are furthest from the exact values."""
    refs = (*sorted(record.inputs), *sorted(record.outputs))
    if record.operator not in GROUNDS or not all(_is_small(values.get(ref)) for ref in refs):
        return
    tensors = [values[ref] for ref in refs]
    forms = tuple(
        TensorForm.model_validate({"dtype": each.dtype, "shape": each.shape, "data": bytes(each.data).hex()})
        for each in tensors
    )
    for element in _furthest(tensors):
        yield Evidence(ground=GROUNDS[record.operator], record=_form(record), tensors=forms, element=element)


def _furthest(tensors: list[Tensor]) -> list[int]:
    """Flat places in the last tensor, those furthest from the product of the other tensors first."""
    *sources, result = (np.asarray(each.values(), np.float64) for each in tensors)
    with np.errstate(all="ignore"):
        exact = np.broadcast_to(np.prod(np.broadcast_arrays(*sources), axis=0), result.shape)
        off = np.nan_to_num(np.abs(exact - result) / np.abs(result), nan=-1.0)
    return [int(each) for each in np.argsort(-off, axis=None, kind="stable")[:ELEMENTS_TRIED]]


def _is_small(tensor: Tensor | None) -> bool:
    return (
        tensor is not None and tensor.dtype in FORMS and tensor.nbytes <= BYTES_MAX and len(tensor.shape) <= SIDES_MAX
    )


def _fits(record: OperatorRecord) -> bool:
    return len(record.inputs) <= INPUTS_MAX and len(record.outputs) <= OUTPUTS_MAX


def _form(record: OperatorRecord) -> RecordForm:
    inputs, outputs = (tuple(sorted(each.items())) for each in (record.inputs, record.outputs))
    return RecordForm(node=record.node, operator=record.operator, inputs=inputs, outputs=outputs)


def _convicts(dispute: Dispute, evidence: Evidence) -> bool:
    try:
        convict(dispute, evidence)
    except RuleError:
        return False
    return True


# While a dispute waits for a ruling: bring evidence that convicts at once, or concede if the own judge says so.


def no_evidence(answered: DisputeView) -> Evidence | None:
    """Never give evidence."""
    return None


@dataclass
class EvidenceRole:
    """Judges an opened leaf once, for the party on `side`.

    A challenger brings evidence that convicts the prover. A party that finds itself at fault concedes: its bond is lost
    in any case, and it saves the fees of a committee.
    """

    side: Fault
    cache: BoardCache
    workspace: Workspace
    judge: Judge
    evidence: Callable[[DisputeView], Evidence | None] = no_evidence

    def tasks(self, view: GameView) -> Iterator[PartyTask]:
        """The disputes of this party that wait for a ruling and were not judged yet."""
        for number, dispute in enumerate(view.state.disputes):
            claim = view.claim_of(dispute)
            party = claim.prover if self.side is Fault.PROVER else dispute.challenger
            is_open = dispute.phase is Phase.RULING and claim.status is Status.OPEN
            is_new = self.workspace.note(_note(view, number)) is None
            if is_open and is_new and party == view.party:
                left = max(dispute.deadline - view.time, 0)
                key = f"plea-{view.name_of(number)}"
                yield PartyTask(key, left, partial(self._answer, view, number), kept=True)

    def _answer(self, view: GameView, number: int) -> Move | None:
        answered = self.cache.answered(view, number)
        evidence = self.evidence(answered) if self.side is Fault.CHALLENGER else None
        if evidence is not None:
            return Prove(actor=view.party, dispute=number, evidence=evidence)
        fault, reason = self.judge.rule(answered)
        if fault is self.side:
            return Concede(actor=view.party, dispute=number)
        self.workspace.put_note(_note(view, number), {"reason": reason})
        return None


def _note(view: GameView, number: int) -> str:
    return f"pleas/{view.name_of(number)}"


# While a dispute waits for a ruling or a draw: the challenger names the one element that convicts, if there is one.

NAMEABLE: Final = (Phase.RULING, Phase.DRAWING)


@dataclass
class PinpointRole:
    """Names an element once for each opened operator; a referee then judges only this element, a committee also this.

    If no element convicts, that is stored too, because the search runs the whole operator.
    """

    cache: BoardCache
    workspace: Workspace
    naming: Callable[[DisputeView], tuple[int, int] | None]

    def tasks(self, view: GameView) -> Iterator[PartyTask]:
        """The opened operators that this challenger has not searched for a wrong element yet."""
        for number, dispute in enumerate(view.state.disputes):
            is_open = view.state.claims[dispute.claim].status is Status.OPEN and _has_elements(dispute)
            is_new = self.workspace.note(_pinpoint_note(view, number)) is None
            if is_open and is_new and dispute.challenger == view.party:
                left = max(dispute.deadline - view.time, 0)
                key = f"name-{view.name_of(number)}"
                yield PartyTask(key, left, partial(self._name, view, number), kept=True, single=True)

    def _name(self, view: GameView, number: int) -> Move | None:
        named = self.naming(self.cache.answered(view, number))
        if named is None:
            self.workspace.put_note(_pinpoint_note(view, number), {"element": None})
            return None
        return Pinpoint(actor=view.party, dispute=number, result=named[0], element=named[1])


def _pinpoint_note(view: GameView, number: int) -> str:
    return f"names/{view.name_of(number)}"


def _has_elements(dispute: Dispute) -> bool:
    """Whether an operator was opened, and an element of it can be named but was not."""
    is_operator = dispute.level == 1 and dispute.ground == "leaf"
    return is_operator and dispute.phase in NAMEABLE and dispute.element is None


# The challenger: recomputes claims, contests what differs, and names the child that differs until one leaf is left.


@dataclass
class Challenger:
    """Recomputes every claim once and contests it at most once; `claims` are the numbers to look at, `None` for all.

    If its clock is nearly over and it could not choose, it protests, because a timeout would certainly lose the bond.
    """

    cache: BoardCache
    workspace: Workspace
    auditor: Auditor
    claims: Collection[int] | None = None
    contests: bool = True

    def tasks(self, view: GameView) -> Iterator[PartyTask]:
        """Claims that were not recomputed yet, and disputes in which the challenger's clock runs."""
        if self.contests:
            yield from self._claims(view)
        for number, seconds in view.turns.items():
            dispute = view.state.disputes[number]
            if dispute.phase is Phase.CHOOSE:
                key = f"choice-{view.name_of(number)}-{dispute.turn}"
                yield PartyTask(key, seconds, partial(self._choice, view, number, seconds), kept=True)

    def _claims(self, view: GameView) -> Iterator[PartyTask]:
        contested = {dispute.claim for dispute in view.state.disputes if dispute.challenger == view.party}
        claims = enumerate(view.state.claims)
        relevant = (claim for number, claim in claims if claim.deadline > view.time or number in contested)
        self.auditor.keep([claim for claim in relevant if claim.status is Status.OPEN])
        for number, claim in enumerate(view.state.claims):
            left = claim.deadline - view.time
            is_open = claim.status is Status.OPEN and left > 0 and number not in contested
            is_ours = claim.prover != view.party and (self.claims is None or number in self.claims)
            noted = self.workspace.note(_contest_note(claim))
            is_settled = noted is not None and noted.get("doubt") is None
            if is_open and is_ours and not is_settled:
                key = f"contest-{number}-{claim_name(claim)}"
                answer = partial(self._contest, view, number, left)
                yield PartyTask(key, left, answer, True, True, partial(self._is_pending, claim))

    def _is_pending(self, claim: PostedClaim) -> bool:
        return self.auditor.is_pending(claim) and self._noted(claim) is None

    def _contest(self, view: GameView, number: int, left: int) -> Move | None:
        claim = view.state.claims[number]
        doubt = self._noted(claim)
        if doubt is None:
            finding = self._find(claim, is_nearly_over(left, view.rules.challenge_window))
            if finding is None:
                raise AnswerPending
            doubt = finding.doubt
            self.workspace.put_note(_contest_note(claim), finding.to_json())
        if doubt is None:
            return None
        price = view.rules.challenger_bond + view.rules.deposit
        return Contest(actor=view.party, value=price, claim=number, low=doubt.low, high=doubt.high)

    def _noted(self, claim: PostedClaim) -> Doubt | None:
        """The doubt that was found before, if the contest could not be made then."""
        return read_doubt((self.workspace.note(_contest_note(claim)) or {}).get("doubt"))

    def _find(self, claim: PostedClaim, is_nearly_over: bool) -> AuditFinding | None:
        """What to contest: all leaves, if the statement is malformed, or if it is withheld until the window ends."""
        try:
            return self.auditor.find(claim, self.cache.folder_of(claim.statement))
        except (MalformedError, ProofError) as error:
            return AuditFinding(Doubt(0, claim.size, str(error)))
        except UnavailableError as error:
            if is_nearly_over and self.cache.is_missing(claim.statement):
                return AuditFinding(Doubt(0, claim.size, str(error)))
            raise

    def _choice(self, view: GameView, number: int, seconds: int) -> Move:
        """A choice of a child, or a protest; near the end of the clock any failure gives a protest."""
        dispute = view.state.disputes[number]
        chosen: int | Ground
        try:
            ends = bounds(dispute.low, dispute.high, view.rules.ways)
            chosen = self.auditor.choose(self.cache.answered(view, number), list(pairwise(ends)))
        except (MalformedError, ProofError):
            chosen = "structure"
        except FAILURES:
            if not is_nearly_over(seconds, view.rules.extension):
                raise
            chosen = "structure"
        if isinstance(chosen, int):
            return Choose(actor=view.party, dispute=number, turn=dispute.turn, child=chosen)
        return Protest(actor=view.party, dispute=number, turn=dispute.turn, ground=chosen)


def _contest_note(claim: PostedClaim) -> str:
    return f"claims/{claim_name(claim)}"
