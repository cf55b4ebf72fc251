"""The context in which a rule is applied: times and pauses, payments, and who is paid when a dispute ends."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

from tallystick.core.errors import RuleError
from tallystick.disputes.game.moves import Dismiss, Pause, Resume, Withdraw
from tallystick.disputes.game.state import Credit, Dispute, Pausing, Phase, PostedClaim, Rules, State, Status
from tallystick.verdicts.verdict import Fault

# The context in which a rule is applied: the state and two times.


@dataclass(frozen=True)
class Context:
    """A state at a moment, in seconds: `now` is real time, for withdrawals; `time` is game time, which pauses stop."""

    state: State
    now: int
    time: int

    @property
    def rules(self) -> Rules:
        """The rules of this coordinator."""
        return self.state.rules

    def with_state(self, state: State) -> Context:
        """The context with another state, at the same moment."""
        return replace(self, state=state)

    def claim(self, number: int) -> PostedClaim:
        """Claim `number`; raises `RuleError` with code `unknown` if there is none."""
        allow(number < len(self.state.claims), "unknown", f"there is no claim {number}")
        return self.state.claims[number]

    def dispute(self, number: int) -> Dispute:
        """Dispute `number`; raises `RuleError` with code `unknown` if there is none."""
        allow(number < len(self.state.disputes), "unknown", f"there is no dispute {number}")
        return self.state.disputes[number]

    def change_claim(self, number: int, **changes: Any) -> Context:
        """The context in which claim `number` has changed."""
        return self.with_state(replace(self.state, claims=_changed(self.state.claims, number, changes)))

    def change_dispute(self, number: int, **changes: Any) -> Context:
        """The context in which dispute `number` has changed."""
        return self.with_state(replace(self.state, disputes=_changed(self.state.disputes, number, changes)))


def allow(condition: bool, code: str, sentence: str) -> None:
    """Raise `RuleError` with `code` unless the condition holds."""
    if not condition:
        raise RuleError(code, sentence)


def mover(claim: PostedClaim, dispute: Dispute) -> str | None:
    """The party whose clock runs; `None` in the phases of referee and committee."""
    if dispute.phase in (Phase.PARTITION, Phase.LEAF):
        return claim.prover
    return dispute.challenger if dispute.phase is Phase.CHOOSE else None


def time_left(dispute: Dispute, time: int) -> int:
    """The seconds that the party to move has left; zero or less once it is late."""
    clocks = dispute.clocks
    left = clocks.challenger if dispute.phase is Phase.CHOOSE else clocks.prover
    return left - (time - clocks.since)


def _changed(entries: tuple[Any, ...], number: int, changes: dict[str, Any]) -> tuple[Any, ...]:
    return (*entries[:number], replace(entries[number], **changes), *entries[number + 1 :])


# Pauses: the guardian can stop game time for a limited time, and not again for a while. It has no power over money.
#
# During a pause no clock runs, and no move is taken except withdrawals and the end of the pause.


def pause(at: Context, move: Pause) -> State:
    """Stop game time, for at most `pause_max` seconds."""
    allow(at.now >= at.state.pausing.allowed_from, "rest", "the last pause is too recent")
    return replace(at.state, pausing=replace(at.state.pausing, since=at.now))


def resume(at: Context, move: Resume) -> State:
    """End a pause before its time."""
    allow(at.state.pausing.since is not None, "running", "game time is not stopped")
    return _ended(at.state, at.now)


def with_expired_pause_lifted(state: State, now: int) -> State:
    """The state in which a pause that has reached `pause_max` is over."""
    since = state.pausing.since
    if since is None or now < since + state.rules.pause_max:
        return state
    return _ended(state, since + state.rules.pause_max)


def game_time(state: State, now: int) -> int:
    """Real time in seconds, less the time of all pauses."""
    pausing = with_expired_pause_lifted(state, now).pausing
    return (now if pausing.since is None else pausing.since) - pausing.total


def _ended(state: State, end: int) -> State:
    since = state.pausing.since
    assert since is not None  # checked by both callers
    lasted = state.pausing.total + end - since
    return replace(state, pausing=Pausing(None, lasted, end + state.rules.pause_rest))


# Payments: a party withdraws what it is owed, after a delay. So no party can block the payment of another.

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


# Who is paid what when a dispute ends: every bond is paid out exactly once.


def settle(at: Context, number: int, fault: Fault) -> State:
    """The state in which dispute `number` is over, and its money is owed to its owners."""
    return _closed(_shared_out(_appeals_returned(at, number, fault), number, fault), number, fault).state


def dismiss(at: Context, move: Dismiss) -> State:
    """A dispute over a claim that another dispute slashed is over: each party gets back what is left of its money."""
    dispute = at.dispute(move.dispute)
    for each in dispute.appeals:
        at = _paid(at, each.party, each.bond)
    at = _paid(at, dispute.challenger, dispute.bond + dispute.deposit)
    return _closed(_released(at, dispute), move.dispute, Fault.NOBODY).state


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
