"""What comes in is held or goes out, and every credit is new, rests, and belongs to somebody."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tallystick.disputes.game import moves as m
from tallystick.disputes.game.state import State


def money(before: State, move: m.Move, now: int, after: State) -> Iterator[str]:
    """The books: balance, what is held, what is paid out, and new credits."""
    paid = after.paid_out - before.paid_out
    if after.balance != before.balance + m.value_of(move) - paid:
        yield "the balance is not what came in less what went out"
    if paid < 0 or (paid and not isinstance(move, m.Withdraw)):
        yield f"{move.kind} paid out {paid}"
    if change_of_held(before, after) != m.value_of(move) - paid:
        yield f"{move.kind} changed what is held by {change_of_held(before, after)}, and {m.value_of(move)} came in"
    if not isinstance(move, m.Withdraw):
        for name, amount in credited(before, after).items():
            new = after.owed.get(name, ())[len(before.owed.get(name, ())) :]
            if amount < 0 or any(each.ripe != now + before.rules.withdrawal_delay for each in new):
                yield f"a credit of {name[-4:]} is not new, or not ripe after one delay"


def change_of_held(before: State, after: State) -> int:
    """How much more belongs to somebody: only what has changed is looked at."""
    change = sum(new.bond - old.bond for old, new in zip(before.claims, after.claims, strict=False) if old is not new)
    change += sum(each.bond for each in after.claims[len(before.claims) :])
    for old, new in zip(before.disputes, after.disputes, strict=False):
        if old is not new:
            change += new.held - old.held
    change += sum(each.held for each in after.disputes[len(before.disputes) :])
    for name, member in after.members.items():
        held = before.members.get(name)
        if held is not member:
            change += member.stake - (held.stake if held else 0)
    return change + sum(credited(before, after).values())


def credited(before: State, after: State) -> Mapping[str, int]:
    """How much more each party is owed, where that has changed."""
    if after.owed is before.owed:
        return {}
    changed = {name: credits for name, credits in after.owed.items() if before.owed.get(name) is not credits}
    gone = {name: () for name in before.owed if name not in after.owed}
    return {
        name: sum(each.amount for each in credits) - sum(each.amount for each in before.owed.get(name, ()))
        for name, credits in {**changed, **gone}.items()
    }
