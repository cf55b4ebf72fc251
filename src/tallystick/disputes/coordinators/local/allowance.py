"""How full the board may be for a party to put more, which depends on what the party has at stake."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from tallystick.disputes.game.rules import Rules
from tallystick.disputes.game.state import State, Status

IDLE: Final = Fraction(1, 2)
"""For parties that have no claim and cannot pay for one: any number of them leaves half of the board free."""
CLAIMING: Final = Fraction(3, 4)
"""For provers of open claims, and for parties whose purse holds the bond of a claim; that money is not lost."""
ANSWERING: Final = Fraction(1)
"""For provers in open disputes, whose clock runs, and for parties that the rules name."""


@dataclass(frozen=True)
class Allowance:
    """The share up to which the board may be full for a party, and the number of all disputes over its claims."""

    share: Fraction = IDLE
    disputes: int = 0


def allowance_of(party: str, state: State, purse: int) -> Allowance:
    """The allowance of a party, by its role, claims and disputes, and by the money in its purse."""
    claims = {number: claim for number, claim in enumerate(state.claims) if claim.prover == party}
    disputes = sum(dispute.claim in claims for dispute in state.disputes)
    if is_named(party, state.rules) or any(claim.disputes for claim in claims.values()):
        return Allowance(ANSWERING, disputes)
    is_claiming = purse >= state.rules.prover_bond or any(each.status is Status.OPEN for each in claims.values())
    return Allowance(CLAIMING if is_claiming else IDLE, disputes)


def is_named(party: str, rules: Rules) -> bool:
    """Whether the rules name a party in any role."""
    return party in (*rules.members, rules.referee, rules.beacon, rules.planter, rules.guardian, rules.treasury)
