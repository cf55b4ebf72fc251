"""A party that a committee found at fault appeals to a larger one, while the rules have one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tallystick.disputes.game.moves import Appeal
from tallystick.disputes.game.voting import next_seats
from tallystick.disputes.parties.game_view import GameView
from tallystick.disputes.parties.task import PartyTask
from tallystick.judging.fault import Fault


@dataclass(frozen=True)
class AppealRole:
    """Appeals findings against this party, but not a finding that nobody is at fault, which returns the bonds."""

    def tasks(self, view: GameView) -> Iterator[PartyTask]:
        """The findings that can be appealed."""
        for option in view.options:
            dispute = view.state.disputes[option.dispute]
            parties = {Fault.PROVER: view.claim_of(dispute).prover, Fault.CHALLENGER: dispute.challenger}
            is_found_at_fault = dispute.fault is not None and parties.get(dispute.fault) == view.party
            if option.kind == "appeal" and is_found_at_fault:
                yield from _appeal(view, option.dispute)


def _appeal(view: GameView, number: int) -> Iterator[PartyTask]:
    dispute = view.state.disputes[number]
    price = view.rules.appeal_bond + view.rules.vote_fee * next_seats(dispute)
    move = Appeal(actor=view.party, dispute=number, value=price)
    if view.allows(move):
        key = f"appeal-{view.name_of(number)}-{len(dispute.rounds)}"
        yield PartyTask(key, dispute.deadline - view.time, lambda: move, kept=True, single=True)
