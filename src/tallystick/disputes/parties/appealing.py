"""A party that a committee found at fault asks a larger one, while there is one to ask."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tallystick.disputes.game.moves import Appeal
from tallystick.disputes.game.voting import next_seats
from tallystick.disputes.parties.task import PartyTask
from tallystick.disputes.parties.watch import GameView
from tallystick.judging.fault import Fault


@dataclass(frozen=True)
class Appellant:
    """Appeals findings against this party; where nobody is at fault its bond comes back anyway."""

    def tasks(self, view: GameView) -> Iterator[PartyTask]:
        """The findings that can be appealed."""
        for option in view.options:
            if option.kind == "appeal" and _is_found_at_fault(view, option.dispute):
                yield from _appeal(view, option.dispute)


def _appeal(view: GameView, number: int) -> Iterator[PartyTask]:
    dispute = view.state.disputes[number]
    price = view.rules.appeal_bond + view.rules.vote_fee * next_seats(dispute)
    move = Appeal(actor=view.party, dispute=number, value=price)
    if view.allows(move):
        key = f"appeal-{view.name_of(number)}-{len(dispute.rounds)}"
        yield PartyTask(key, dispute.deadline - view.time, lambda: move, kept=True, single=True)


def _is_found_at_fault(view: GameView, number: int) -> bool:
    dispute = view.state.disputes[number]
    parties = {Fault.PROVER: view.claim_of(dispute).prover, Fault.CHALLENGER: dispute.challenger}
    return dispute.fault is not None and parties.get(dispute.fault) == view.party
