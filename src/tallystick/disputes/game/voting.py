"""Committees: who is drawn, and votes that are committed to, disclosed, counted and appealed."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import replace
from typing import Final, TypeVar

from tallystick.disputes.game.context import Context, allow, credit, settle as settled
from tallystick.disputes.game.moves import Appeal, Disclose, Draw, Enlist, Retire, Settle, Tally, Unseal, Vote
from tallystick.disputes.game.state import Appealed, Dispute, MemberStake, Phase, Round, State
from tallystick.verdicts.verdict import Fault

# Committees: who can be drawn, which members a nonce draws, how votes are committed to and counted.

VOTE_CODES: Final = {Fault.PROVER: b"\x01", Fault.CHALLENGER: b"\x02", Fault.NOBODY: b"\x03"}


def eligible(state: State, dispute: Dispute) -> tuple[str, ...]:
    """The members that can be drawn, in the order of the rules: active, and no party of the dispute."""
    parties = (state.claims[dispute.claim].prover, dispute.challenger)
    return tuple(
        name
        for name in state.rules.members
        if name in state.members and state.members[name].is_active and name not in parties
    )


def seats(state: State, dispute: Dispute, wanted: int) -> int:
    """The size of the next committee: `wanted`, but at most the largest odd number of eligible members."""
    size = min(wanted, len(eligible(state, dispute)))
    return size if size % 2 else max(size - 1, 0)


def draw_members(pool: tuple[str, ...], count: int, nonce: str, dispute: int, number: int) -> tuple[str, ...]:
    """`count` members without repetition: a partial Fisher–Yates shuffle, keyed by nonce, dispute and round."""
    left = list(pool)
    for i in range(count):
        j = i + _word(nonce, dispute, number, i) % (len(left) - i)
        left[i], left[j] = left[j], left[i]
    return tuple(left[:count])


def commitment(dispute: int, number: int, member: str, vote: Fault, salt: str) -> str:
    """The hash by which a member commits to its vote in round `number`; it holds the member, so no copy counts."""
    message = _uint64(dispute) + _uint64(number) + party_bytes(member) + VOTE_CODES[vote] + bytes.fromhex(salt)
    return hashlib.sha256(b"tallystick/vote/v1\n" + message).hexdigest()


def seal(prover: str, answer: Fault, salt: str) -> str:
    """The hash that a planted claim carries as `seal`, where other claims carry random bytes."""
    message = party_bytes(prover) + VOTE_CODES[answer] + bytes.fromhex(salt)
    return hashlib.sha256(b"tallystick/seal/v1\n" + message).hexdigest()


def majority(votes: tuple[Fault | None, ...]) -> Fault:
    """The finding of more than half of the drawn members; `NOBODY` if no finding has so many votes."""
    finding, count = Counter(vote for vote in votes if vote is not None).most_common(1)[0] if any(votes) else (None, 0)
    return finding if finding is not None and 2 * count > len(votes) else Fault.NOBODY


def undrawn(dispute: Dispute) -> Fault:
    """The finding that stands if no committee can be drawn: the appealed one, or `NOBODY` without an appeal."""
    return dispute.appeals[-1].against if dispute.appeals else Fault.NOBODY


def has_committed(sitting: Round) -> bool:
    """Whether every drawn member has committed to a vote."""
    return all(sitting.commitments)


def has_disclosed(sitting: Round) -> bool:
    """Whether every member that committed to a vote has disclosed it."""
    pairs = zip(sitting.commitments, sitting.votes, strict=True)
    return all(vote is not None for commitment, vote in pairs if commitment)


def party_bytes(party: str) -> bytes:
    """A party's 20 or 32 bytes."""
    return bytes.fromhex(party.removeprefix("0x"))


def _word(nonce: str, dispute: int, number: int, i: int) -> int:
    message = bytes.fromhex(nonce) + _uint64(dispute) + _uint64(number) + _uint64(i)
    return int.from_bytes(hashlib.sha256(b"tallystick/draw/v1\n" + message).digest())


def _uint64(value: int) -> bytes:
    return value.to_bytes(8)


# Votes of a committee: drawn, committed, disclosed, counted, appealed, and checked against planted answers.

Entry = TypeVar("Entry")


def enlist(at: Context, move: Enlist) -> State:
    """A member that the rules list pays its stake, and can be drawn."""
    allow(move.actor in at.rules.members, "actor", "the rules do not list this member")
    member = at.state.members.get(move.actor)
    allow(member is None or not member.stake, "enlisted", "this member has a stake already")
    staked = replace(member or MemberStake(stake=0), stake=move.value, is_active=True)
    return _with_member(at, move.actor, staked).state


def retire(at: Context, move: Retire) -> State:
    """A member of no current committee gets its stake back, once none of its votes can be found wrong any more."""
    member = at.state.members.get(move.actor, MemberStake(stake=0))
    allow(member.stake > 0, "actor", "this member has no stake")
    allow(member.serving == 0, "serving", "this member sits in a committee")
    allow(at.time >= member.bound_until, "early", "this member's last votes can still be held against it")
    left = _with_member(at, move.actor, replace(member, stake=0, is_active=False))
    return credit(left.state, move.actor, member.stake, at.now)


def draw(at: Context, move: Draw) -> State:
    """The nonce draws the committee from the members that are eligible now."""
    dispute = at.dispute(move.dispute)
    count = seats(at.state, dispute, dispute.seats)
    if not count:
        return settled(at, move.dispute, undrawn(dispute))
    pool = eligible(at.state, dispute)
    drawn = draw_members(pool, count, move.nonce, move.dispute, len(dispute.rounds))
    for name in drawn:
        at = _with_member(at, name, replace(at.state.members[name], serving=at.state.members[name].serving + 1))
    sitting = Round(drawn, ("",) * count, (None,) * count)
    deadline = at.time + at.rules.vote_window
    return at.change_dispute(
        move.dispute, phase=Phase.COMMITTING, deadline=deadline, rounds=(*dispute.rounds, sitting)
    ).state


def vote(at: Context, move: Vote) -> State:
    """A drawn member commits to its vote, once; when all have done so, they may disclose."""
    dispute = at.dispute(move.dispute)
    allow(at.time < dispute.deadline, "late", "the time to commit to a vote is over")
    seat = _seat(dispute, move.actor)
    allow(not dispute.rounds[-1].commitments[seat], "again", "this member has committed to a vote already")
    sitting = dispute.rounds[-1]
    sitting = replace(sitting, commitments=_placed(sitting.commitments, seat, move.commitment))
    if has_committed(sitting):
        return _sitting(at, move.dispute, sitting, Phase.REVEALING, at.time + at.rules.reveal_window)
    return _sitting(at, move.dispute, sitting, Phase.COMMITTING, dispute.deadline)


def disclose(at: Context, move: Disclose) -> State:
    """A member shows the vote that it committed to."""
    dispute = at.dispute(move.dispute)
    phase, deadline = dispute.phase, dispute.deadline
    if phase is Phase.COMMITTING:
        allow(at.time >= deadline, "early", "others can still commit to a vote")
        phase, deadline = Phase.REVEALING, deadline + at.rules.reveal_window
    allow(at.time < deadline, "late", "the time to disclose a vote is over")
    seat, sitting = _seat(dispute, move.actor), dispute.rounds[-1]
    allow(sitting.votes[seat] is None, "again", "this member has disclosed its vote already")
    expected = commitment(move.dispute, len(dispute.rounds) - 1, move.actor, move.vote, move.salt)
    allow(sitting.commitments[seat] == expected, "commitment", "this is not the vote that was committed to")
    return _sitting(at, move.dispute, replace(sitting, votes=_placed(sitting.votes, seat, move.vote)), phase, deadline)


def tally(at: Context, move: Tally) -> State:
    """The votes are counted and paid for; the finding can be appealed while larger committees are left."""
    dispute = at.dispute(move.dispute)
    sitting = dispute.rounds[-1]
    allow(_is_over(at, dispute, sitting), "early", "votes can still come in")
    finding = majority(sitting.votes)
    at = _paid_for(at, move.dispute, sitting)
    if len(dispute.rounds) > at.rules.appeals:
        return settled(at, move.dispute, finding)
    deadline = at.time + at.rules.appeal_window
    return at.change_dispute(move.dispute, phase=Phase.APPEALABLE, fault=finding, deadline=deadline).state


def appeal(at: Context, move: Appeal) -> State:
    """The party found at fault (either one, if nobody was) asks a committee of 2m + 1 members."""
    dispute = at.dispute(move.dispute)
    assert dispute.fault is not None  # set by `tally`
    allow(at.time < dispute.deadline, "late", "the time to appeal is over")
    _lost_by(at, dispute, move.actor)
    wanted = next_seats(dispute)
    allow(seats(at.state, dispute, wanted) == wanted, "pool", f"there are no {wanted} members to draw")
    return at.change_dispute(
        move.dispute,
        phase=Phase.DRAWING,
        seats=wanted,
        deadline=at.time + at.rules.vote_window,
        deposit=dispute.deposit + at.rules.vote_fee * wanted,
        appeals=(*dispute.appeals, Appealed(move.actor, dispute.fault, at.rules.appeal_bond)),
        fault=None,
    ).state


def settle(at: Context, move: Settle) -> State:
    """The finding takes effect when nobody has appealed in time."""
    dispute = at.dispute(move.dispute)
    assert dispute.fault is not None  # set by `tally`
    allow(at.time >= dispute.deadline, "early", "the finding can still be appealed")
    return settled(at, move.dispute, dispute.fault)


def unseal(at: Context, move: Unseal) -> State:
    """Members who voted against a planted answer lose their stake, and are not drawn again."""
    dispute = at.dispute(move.dispute)
    claim = at.claim(dispute.claim)
    allow(not dispute.is_unsealed, "again", "this dispute has been unsealed already")
    allow(claim.seal == seal(claim.prover, move.answer, move.salt), "seal", "this is not what was sealed")
    for sitting in dispute.rounds:
        for name, cast in zip(sitting.drawn, sitting.votes, strict=True):
            if cast not in (None, move.answer):
                at = _fined(at, name, at.state.members[name].stake)
    return at.change_dispute(move.dispute, is_unsealed=True).state


def next_seats(dispute: Dispute) -> int:
    """The number of members that an appeal draws: 2m + 1 after a committee of m."""
    return 2 * len(dispute.rounds[-1].drawn) + 1


def appeal_price(at: Context, dispute: Dispute) -> int:
    """What an appeal pays: its bond, and the fees of the larger committee."""
    return at.rules.appeal_bond + at.rules.vote_fee * next_seats(dispute)


def _lost_by(at: Context, dispute: Dispute, party: str) -> None:
    losers = {Fault.PROVER: at.claim(dispute.claim).prover, Fault.CHALLENGER: dispute.challenger}
    parties = tuple(losers.values()) if dispute.fault is Fault.NOBODY else (losers[dispute.fault or Fault.PROVER],)
    allow(party in parties, "actor", "the finding does not go against this party")


def _seat(dispute: Dispute, member: str) -> int:
    drawn = dispute.rounds[-1].drawn
    allow(member in drawn, "actor", "this member was not drawn")
    return drawn.index(member)


def _is_over(at: Context, dispute: Dispute, sitting: Round) -> bool:
    if dispute.phase is Phase.COMMITTING:
        return at.time >= dispute.deadline + at.rules.reveal_window
    return has_disclosed(sitting) or at.time >= dispute.deadline


def _paid_for(at: Context, number: int, sitting: Round) -> Context:
    """Pay the fee of each seat to the member that voted; if it did not, to the treasury, with a fine."""
    fee = at.rules.vote_fee
    for name, cast in zip(sitting.drawn, sitting.votes, strict=True):
        member = at.state.members[name]
        bound = at.time + at.rules.holding
        at = _with_member(at, name, replace(member, serving=member.serving - 1, bound_until=bound))
        at = at.with_state(credit(at.state, name if cast else at.rules.treasury, fee, at.now))
        if cast is None:
            at = _fined(at, name, fee)
    return at.change_dispute(number, deposit=at.dispute(number).deposit - fee * len(sitting.drawn))


def _fined(at: Context, name: str, fine: int) -> Context:
    """Move part of a stake to the treasury; a member whose stake cannot pay another fine is not drawn again."""
    member = at.state.members[name]
    taken = min(fine, member.stake)
    left = member.stake - taken
    active = member.is_active and left >= max(1, at.rules.vote_fee)
    at = _with_member(at, name, replace(member, stake=left, is_active=active))
    return at.with_state(credit(at.state, at.rules.treasury, taken, at.now))


def _with_member(at: Context, name: str, member: MemberStake) -> Context:
    return at.with_state(replace(at.state, members={**at.state.members, name: member}))


def _sitting(at: Context, number: int, sitting: Round, phase: Phase, deadline: int) -> State:
    rounds = (*at.dispute(number).rounds[:-1], sitting)
    return at.change_dispute(number, rounds=rounds, phase=phase, deadline=deadline).state


def _placed(entries: tuple[Entry, ...], place: int, entry: Entry) -> tuple[Entry, ...]:
    return (*entries[:place], entry, *entries[place + 1 :])
