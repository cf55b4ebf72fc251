"""While a dispute waits for a ruling: bring evidence that convicts at once, or concede if the own judge says so."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from tallystick.disputes.game.moves import Concede, Evidence, Move, Prove
from tallystick.disputes.game.protocols import DisputeView, Judge
from tallystick.disputes.game.state import Phase, Status
from tallystick.disputes.parties.board_cache import BoardCache
from tallystick.disputes.parties.game_view import GameView
from tallystick.disputes.parties.task import PartyTask
from tallystick.disputes.parties.workspace import Workspace
from tallystick.judging.fault import Fault


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
