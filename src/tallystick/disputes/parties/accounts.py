"""Who is owed what: the money of each party, from the accepted moves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tallystick.commitments.encoding import Json
from tallystick.disputes.coordinators.coordinator import MoveEntry
from tallystick.disputes.game.game import apply
from tallystick.disputes.game.moves import Withdraw, value_of
from tallystick.disputes.game.rules import Rules
from tallystick.disputes.game.state import Credit, Phase, State, Status


@dataclass(frozen=True)
class PartyAccount:
    """The money of one party: what it paid in, took out, and is owed, and what open claims, disputes and stakes hold.

    `roles` say what it is: `prover of claim 0`, `challenger in dispute 0`, `referee`, ….
    """

    party: str
    roles: tuple[str, ...]
    paid_in: int
    taken_out: int
    held: int
    credits: tuple[Credit, ...]

    @property
    def owed(self) -> int:
        """What the coordinator owes it."""
        return sum(each.amount for each in self.credits)

    @property
    def gained(self) -> int:
        """What it has more than it began with, when everything held comes back."""
        return self.taken_out + self.owed + self.held - self.paid_in

    def to_json(self) -> dict[str, Json]:
        """All fields, with the time from which the last credit can be taken out."""
        return {
            "gained": self.gained,
            "held": self.held,
            "owed": self.owed,
            "paid_in": self.paid_in,
            "party": self.party,
            "payable": max((each.ripe for each in self.credits), default=None),
            "roles": list(self.roles),
            "taken_out": self.taken_out,
        }


def accounts(rules: Rules, entries: Iterable[MoveEntry]) -> list[PartyAccount]:
    """The accounts of all parties that have paid in or are owed something, in the order of their first moves."""
    state, paid, taken = State(rules), Counter[str](), Counter[str]()
    for entry in entries:
        before, state = state, apply(state, entry.move, entry.time)
        paid[entry.move.actor] += value_of(entry.move)
        if isinstance(entry.move, Withdraw):
            taken[entry.move.actor] += state.paid_out - before.paid_out
    held = Counter[str]()
    for party, amount in _held(state):
        held[party] += amount
    parties = dict.fromkeys((*paid, *state.owed))
    return [
        PartyAccount(
            party, tuple(_roles(state, party)), paid[party], taken[party], held[party], state.owed.get(party, ())
        )
        for party in parties
        if paid[party] or party in state.owed
    ]


def _held(state: State) -> Iterator[tuple[str, int]]:
    """Bonds, fees and stakes that the coordinator holds, by who paid them."""
    for claim in state.claims:
        if claim.status is Status.OPEN:
            yield claim.prover, claim.bond
    for dispute in state.disputes:
        if dispute.phase is not Phase.SETTLED:
            yield dispute.challenger, dispute.bond + dispute.deposit
            yield from ((each.party, each.bond) for each in dispute.appeals)
    for party, member in state.members.items():
        yield party, member.stake


def _roles(state: State, party: str) -> Iterator[str]:
    yield from (f"prover of claim {number}" for number, each in enumerate(state.claims) if each.prover == party)
    disputes = enumerate(state.disputes)
    yield from (f"challenger in dispute {number}" for number, each in disputes if each.challenger == party)
    if party in state.members:
        yield "member"
    rules = state.rules
    named = {"referee": rules.referee, "beacon": rules.beacon, "treasury": rules.treasury}
    yield from (role for role, name in named.items() if name == party)
