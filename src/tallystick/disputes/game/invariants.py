"""The invariants after every move: no money appears or disappears, and every bond has exactly one owner."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tallystick.disputes.game.state import Phase, State, Status


def broken(state: State) -> Iterator[str]:
    """One line for each invariant that does not hold."""
    if held(state) != state.balance:
        yield f"bonds, stakes and credits are {held(state)}, and the balance is {state.balance}"
    open_disputes = Counter(each.claim for each in state.disputes if each.phase is not Phase.SETTLED)
    for number, claim in enumerate(state.claims):
        expected = state.rules.prover_bond if claim.status is Status.OPEN else 0
        if claim.bond != expected:
            yield f"claim {number} is {claim.status} and holds {claim.bond}"
        if claim.disputes != open_disputes[number]:
            yield f"claim {number} counts {claim.disputes} disputes, and {open_disputes[number]} are open"
        if claim.status is Status.FINAL and claim.disputes:
            yield f"claim {number} is final with open disputes"
    for number, dispute in enumerate(state.disputes):
        if dispute.phase is Phase.SETTLED and (dispute.held or dispute.fault is None):
            yield f"dispute {number} is settled and holds {dispute.held}"
        if dispute.deposit < 0 or not 0 <= dispute.low < dispute.high <= dispute.size:
            yield f"dispute {number} stands at leaves {dispute.low} to {dispute.high} with {dispute.deposit}"
    for name, member in state.members.items():
        if member.stake < 0 or member.serving != _sittings(state, name):
            yield f"member {name[:10]} has {member.stake} and serves in {member.serving}"


def held(state: State) -> int:
    """The sum of all bonds, deposits, stakes and credits."""
    claims = sum(claim.bond for claim in state.claims)
    disputes = sum(dispute.held for dispute in state.disputes)
    stakes = sum(member.stake for member in state.members.values())
    return claims + disputes + stakes + sum(each.amount for credits in state.owed.values() for each in credits)


def _sittings(state: State, name: str) -> int:
    voting = (each for each in state.disputes if each.phase in (Phase.COMMITTING, Phase.REVEALING))
    return sum(name in each.rounds[-1].drawn for each in voting)
