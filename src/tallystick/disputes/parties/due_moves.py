"""The moves that anybody may make once they are due, as the rules say."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from tallystick.disputes.game.context import mover
from tallystick.disputes.game.game import MoveOption
from tallystick.disputes.game.ledger import withdrawable
from tallystick.disputes.game.moves import Convene, Dismiss, Draw, Finalise, Move, Settle, Tally, Timeout, Withdraw
from tallystick.disputes.parties.game_view import GameView
from tallystick.disputes.parties.task import PartyTask

DUE: Final[dict[str, Callable[..., Move]]] = {
    "timeout": Timeout,
    "convene": Convene,
    "tally": Tally,
    "settle": Settle,
    "dismiss": Dismiss,
}


@dataclass
class DueMoves:
    """Makes due moves in this party's claims and disputes, or in those of everybody; withdraws what it is owed.

    It draws a nonce only if the rules name this party, or nobody, as the beacon.
    """

    everybody: bool = False
    withdraws: bool = True
    finalises: bool = True
    nonce: Callable[[], str] = lambda: secrets.token_hex(32)

    def tasks(self, view: GameView) -> Iterator[PartyTask]:
        """The moves that are due now."""
        for option in view.options:
            if self.everybody or view.is_in(option.dispute):
                move = self._due(view, option)
                if move is not None and view.allows(move):
                    yield self._task(view.name_of(option.dispute), move)
        if self.finalises:
            yield from self._closings(view)
        if self.withdraws and withdrawable(view.state, view.party, view.now):
            yield self._task("all", Withdraw(actor=view.party))

    def about(self, view: GameView, number: int) -> Iterator[PartyTask]:
        """The moves that are due in one dispute and over its claim, and the withdrawal of what this party is owed."""
        claim = view.state.disputes[number].claim
        wanted = (view.name_of(number), f"finalise-{claim}", "withdraw-all")
        yield from (task for task in self.tasks(view) if task.key.endswith(wanted))

    def _due(self, view: GameView, option: MoveOption) -> Move | None:
        """The move of an option, if anybody may make it when it is due; never this party's own timeout."""
        if option.kind == "draw":
            return Draw(actor=view.party, dispute=option.dispute, nonce=self.nonce())
        if option.kind not in DUE or (option.kind == "convene" and view.rules.referee == view.party):
            return None
        dispute = view.state.disputes[option.dispute]
        is_own_defeat = option.kind == "timeout" and mover(view.claim_of(dispute), dispute) == view.party
        return None if is_own_defeat else DUE[option.kind](actor=view.party, dispute=option.dispute)

    def _closings(self, view: GameView) -> Iterator[PartyTask]:
        for number, claim in enumerate(view.state.claims):
            move = Finalise(actor=view.party, claim=number)
            if (self.everybody or claim.prover == view.party) and view.allows(move):
                yield self._task(f"{number}", move)

    def _task(self, name: str, move: Move) -> PartyTask:
        return PartyTask(f"{move.kind}-{name}", None, lambda: move)
