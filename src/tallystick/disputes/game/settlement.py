"""Who is paid what when a dispute ends: every bond is paid out exactly once."""

from __future__ import annotations

from dataclasses import replace

from tallystick.disputes.game.context import Context
from tallystick.disputes.game.ledger import credit
from tallystick.disputes.game.state import Dispute, Phase, State, Status
from tallystick.judging.fault import Fault


def settle(at: Context, number: int, fault: Fault) -> State:
    """The state in which dispute `number` is over, and its money is owed to its owners."""
    return _closed(_shared_out(_appeals_returned(at, number, fault), number, fault), number, fault).state


def dismiss(at: Context, number: int) -> State:
    """The state in which a dispute over a slashed claim is over: each party gets back what is left of its money."""
    dispute = at.dispute(number)
    for each in dispute.appeals:
        at = _paid(at, each.party, each.bond)
    at = _paid(at, dispute.challenger, dispute.bond + dispute.deposit)
    return _closed(_released(at, dispute), number, Fault.NOBODY).state


def _appeals_returned(at: Context, number: int, fault: Fault) -> Context:
    """Return the bond of each appeal that was right, and pay that of a wrong one to the other party."""
    dispute = at.dispute(number)
    prover = at.claim(dispute.claim).prover
    for each in dispute.appeals:
        other = prover if each.party == dispute.challenger else dispute.challenger
        at = _paid(at, each.party if each.against is not fault else other, each.bond)
    return at


def _shared_out(at: Context, number: int, fault: Fault) -> Context:
    dispute = at.dispute(number)
    if fault is Fault.PROVER:
        return _prover_slashed(at, dispute)
    winner = at.claim(dispute.claim).prover if fault is Fault.CHALLENGER else dispute.challenger
    return _paid(_paid(at, winner, dispute.bond), dispute.challenger, dispute.deposit)


def _prover_slashed(at: Context, dispute: Dispute) -> Context:
    """Pay the challenger's costs and its reward from the prover's bond, and the rest to the treasury."""
    claim = at.claim(dispute.claim)
    spent = max(0, at.rules.deposit - dispute.deposit)
    reward = (claim.bond - spent) * at.rules.reward // 1000
    at = at.change_claim(dispute.claim, status=Status.SLASHED, bond=0)
    at = _paid(at, dispute.challenger, dispute.bond + dispute.deposit + spent + reward)
    return _paid(at, at.rules.treasury, claim.bond - spent - reward)


def _closed(at: Context, number: int, fault: Fault) -> Context:
    dispute = at.dispute(number)
    at = at.change_claim(dispute.claim, disputes=at.claim(dispute.claim).disputes - 1)
    appeals = tuple(replace(each, bond=0) for each in dispute.appeals)
    return at.change_dispute(
        number, phase=Phase.SETTLED, fault=fault, bond=0, deposit=0, appeals=appeals, deadline=at.time
    )


def _paid(at: Context, party: str, amount: int) -> Context:
    return at.with_state(credit(at.state, party, amount, at.now))


def _released(at: Context, dispute: Dispute) -> Context:
    """Release the members of a committee whose votes were never counted."""
    if dispute.phase not in (Phase.COMMITTING, Phase.REVEALING):
        return at
    members = dict(at.state.members)
    for name in dispute.rounds[-1].drawn:
        members[name] = replace(members[name], serving=members[name].serving - 1)
    return at.with_state(replace(at.state, members=members))
