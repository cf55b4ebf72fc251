"""Payments: a party withdraws what it is owed, after a delay. So no party can block the payment of another."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tallystick.disputes.game.context import Context, allow
from tallystick.disputes.game.moves import Withdraw
from tallystick.disputes.game.state import Credit, State

CREDITS_PER_WITHDRAWAL: Final = 32


def receive(state: State, amount: int) -> State:
    """The state after `amount` came in."""
    return replace(state, balance=state.balance + amount)


def credit(state: State, party: str, amount: int, now: int) -> State:
    """The state in which `party` is owed `amount` more, to be withdrawn from `withdrawal_delay` after `now` on."""
    if not amount:
        return state
    entry = Credit(amount, now + state.rules.withdrawal_delay)
    return replace(state, owed={**state.owed, party: (*state.owed.get(party, ()), entry)})


def withdraw(at: Context, move: Withdraw) -> State:
    """The state after a party withdrew its ripe credits, the oldest first, at most `CREDITS_PER_WITHDRAWAL` at once."""
    state, credits = at.state, at.state.owed.get(move.actor, ())
    ripe = [each for each in credits[:CREDITS_PER_WITHDRAWAL] if each.ripe <= at.now]
    allow(bool(ripe), "nothing", "nothing is owed to this party yet")
    amount = sum(each.amount for each in ripe)
    owed = {name: rest for name, rest in {**state.owed, move.actor: credits[len(ripe) :]}.items() if rest}
    return replace(state, owed=owed, balance=state.balance - amount, paid_out=state.paid_out + amount)


def withdrawable(state: State, party: str, now: int) -> int:
    """The amount that `party` can take out by one withdrawal."""
    credits = state.owed.get(party, ())[:CREDITS_PER_WITHDRAWAL]
    return sum(each.amount for each in credits if each.ripe <= now)
