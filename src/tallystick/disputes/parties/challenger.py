"""The challenger: recomputes claims, contests what differs, and names the child that differs until one leaf is left."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from tallystick.disputes.game.moves import Choose, Contest, Move, Protest
from tallystick.disputes.game.partition import bounds
from tallystick.disputes.game.protocols import Doubt, Ground
from tallystick.disputes.game.state import Phase, PostedClaim, Status
from tallystick.disputes.parties.auditing import AuditFinding, Auditor, read_doubt
from tallystick.disputes.parties.board_cache import BoardCache
from tallystick.disputes.parties.game_view import GameView, claim_name
from tallystick.disputes.parties.task import FAILURES, AnswerPending, PartyTask, is_nearly_over
from tallystick.disputes.parties.workspace import Workspace
from tallystick.errors import MalformedError, ProofError, UnavailableError


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
            noted = self.workspace.note(_note(claim))
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
            self.workspace.put_note(_note(claim), finding.to_json())
        if doubt is None:
            return None
        price = view.rules.challenger_bond + view.rules.deposit
        return Contest(actor=view.party, value=price, claim=number, low=doubt.low, high=doubt.high)

    def _noted(self, claim: PostedClaim) -> Doubt | None:
        """The doubt that was found before, if the contest could not be made then."""
        return read_doubt((self.workspace.note(_note(claim)) or {}).get("doubt"))

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


def _note(claim: PostedClaim) -> str:
    return f"claims/{claim_name(claim)}"
