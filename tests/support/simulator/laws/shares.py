"""Who is paid by a move of a dispute, to the last unit, and that nobody else is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tallystick.disputes.game.state import Dispute, Phase, State, Status
from tallystick.verdicts.verdict import Fault
from tests.support.simulator.laws.money import credited


def who_was_paid(before: State, move: Any, after: State, number: int) -> Iterator[str]:
    """Bond, deposit, appeals, wages, fines and the prover's bond, each to whom it belongs and to nobody else."""
    old, new = before.disputes[number], after.disputes[number]
    expected = Counter[str]()
    if move.kind == "tally":
        expected += wages(before, old)
        old = replace(old, deposit=old.deposit - before.rules.vote_fee * len(old.rounds[-1].drawn))
    if move.kind == "unseal":
        expected[before.rules.treasury] += sum(before.members[name].stake for name in wrong_voters(old, move.answer))
        if any(after.members[name].stake or after.members[name].is_active for name in wrong_voters(old, move.answer)):
            yield "a member that voted against a planted answer was spared"
    if new.phase is Phase.SETTLED and old.phase is not Phase.SETTLED:
        expected += expected_shares(before, old, new.fault or Fault.NOBODY, is_dismissed=move.kind == "dismiss")
        yield from _is_closed(before, move, new, after)
    found = {name: amount for name, amount in credited(before, after).items() if amount}
    if found != {name: amount for name, amount in expected.items() if amount}:
        yield f"{move.kind} of dispute {number} paid {found}, where {dict(expected)} is right"


def _is_closed(before: State, move: Any, new: Dispute, after: State) -> Iterator[str]:
    if new.held or new.fault is None:
        yield f"a dispute is over and holds {new.held}"
    is_slashed = after.claims[new.claim].status is Status.SLASHED
    if is_slashed != (new.fault is Fault.PROVER or move.kind == "dismiss"):
        yield f"a dispute ended with {new.fault}, and the claim is {after.claims[new.claim].status}"
    if after.claims[new.claim].disputes != before.claims[new.claim].disputes - 1:
        yield "a claim lost count of its disputes"


def wrong_voters(dispute: Dispute, answer: Fault) -> set[str]:
    """The members that voted something other than `answer`."""
    votes = (pair for sitting in dispute.rounds for pair in zip(sitting.drawn, sitting.votes, strict=True))
    return {name for name, cast in votes if cast not in (None, answer)}


def expected_shares(state: State, dispute: Dispute, fault: Fault, is_dismissed: bool) -> Counter[str]:
    """What each party is owed for a dispute that ends so."""
    rules, claim, shares = state.rules, state.claims[dispute.claim], Counter[str]()
    sides = {Fault.PROVER: claim.prover, Fault.CHALLENGER: dispute.challenger}
    for each in dispute.appeals:
        is_lost = each.against is fault and not is_dismissed
        other = claim.prover if each.party == dispute.challenger else dispute.challenger
        shares[other if is_lost else each.party] += each.bond
    shares[dispute.challenger] += dispute.deposit
    shares[sides[Fault.PROVER] if fault is Fault.CHALLENGER else sides[Fault.CHALLENGER]] += dispute.bond
    if fault is Fault.PROVER:
        spent = max(0, rules.deposit - dispute.deposit)
        reward = (claim.bond - spent) * rules.reward // 1000
        shares[dispute.challenger] += spent + reward
        shares[rules.treasury] += claim.bond - spent - reward
    return shares


def wages(state: State, dispute: Dispute) -> Counter[str]:
    """What a count of votes pays: its fee to whoever voted, to the treasury that of an absent member and its fine."""
    fee, shares = state.rules.vote_fee, Counter[str]()
    sitting = dispute.rounds[-1]
    for name, cast in zip(sitting.drawn, sitting.votes, strict=True):
        shares[name if cast else state.rules.treasury] += fee
        shares[state.rules.treasury] += 0 if cast else min(fee, state.members[name].stake)
    return shares
