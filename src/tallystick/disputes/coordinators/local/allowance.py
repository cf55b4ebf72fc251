"""How much of the board a party may fill, which depends on what it has at stake."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from tallystick.disputes.game.rules import Rules
from tallystick.disputes.game.state import State, Status

IDLE: Final = Fraction(1, 2)
"""Of parties that have no claim and could not pay for one: however many there are, half is beyond them."""
CLAIMING: Final = Fraction(3, 4)
"""Of provers of open claims, and of parties with the bond of one in their purse; they can have it back."""
ANSWERING: Final = Fraction(1)
"""Of provers in open disputes, whose time runs, and of parties that the rules name."""


@dataclass(frozen=True)
class Allowance:
    """Up to which share the board may be full for a party to put more, and how many disputes its claims ever met."""

    share: Fraction = IDLE
    disputes: int = 0


def allowance_of(party: str, state: State, purse: int) -> Allowance:
    """What a party has at stake in the game, or could have with what is in its purse."""
    claims = {number: claim for number, claim in enumerate(state.claims) if claim.prover == party}
    disputes = sum(dispute.claim in claims for dispute in state.disputes)
    if is_named(party, state.rules) or any(claim.disputes for claim in claims.values()):
        return Allowance(ANSWERING, disputes)
    is_claiming = purse >= state.rules.prover_bond or any(each.status is Status.OPEN for each in claims.values())
    return Allowance(CLAIMING if is_claiming else IDLE, disputes)


def is_named(party: str, rules: Rules) -> bool:
    """Whether the rules give a party something to do."""
    return party in (*rules.members, rules.referee, rules.beacon, rules.planter, rules.guardian, rules.treasury)
