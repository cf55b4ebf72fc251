"""What the harness shows of a contract's state, from a state in Python: numbers of 8 bytes, one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tallystick.disputes.game.state import Credit, Dispute, MemberStake, Phase, PostedClaim, Round, State, Status
from tallystick.disputes.game.voting import VOTE_CODES
from tallystick.verdicts.verdict import Fault

PHASES = list(Phase)
STATUSES = list(Status)
GROUNDS = ["", "structure", "budget", "leaf"]
NOTHING = "00" * 32


def picture(state: State, moves: int, claim: int, dispute: int, parties: Sequence[str]) -> bytes:
    """Everything that a move over `dispute` or `claim` can touch, after so many moves (`Harness.touched`)."""
    return b"".join(_pieces(state, moves, claim, dispute, parties))


def _pieces(state: State, moves: int, claim: int, dispute: int, parties: Sequence[str]) -> Iterator[bytes]:
    pausing = state.pausing
    yield _numbers(moves, state.balance, len(state.claims), len(state.disputes))
    yield bytes([pausing.since is not None])
    yield _numbers(pausing.since or 0, pausing.total, pausing.allowed_from)
    for name in state.rules.members:
        member = state.members.get(name, MemberStake(stake=0, is_active=False))
        yield _numbers(member.stake) + bytes([member.is_active]) + _numbers(member.serving, member.bound_until)
    if claim < len(state.claims):
        yield _claim(state.claims[claim])
    if dispute < len(state.disputes):
        yield from _dispute(state.disputes[dispute])
    for party in parties:
        yield _owed(state.owed.get(party, ()))


def _claim(claim: PostedClaim) -> bytes:
    who = _party(claim.prover) + _numbers(claim.deadline) + bytes([STATUSES.index(claim.status), claim.levels])
    return who + _numbers(claim.bond, claim.size, claim.disputes) + bytes.fromhex(claim.root + claim.seal)


def _dispute(each: Dispute) -> Iterator[bytes]:
    yield _party(each.challenger) + _numbers(each.claim) + bytes([PHASES.index(each.phase), _fault(each.fault)])
    yield bytes([GROUNDS.index(each.ground), each.level, each.is_unsealed])
    yield bytes.fromhex(each.root + (each.leaf or NOTHING))
    yield _numbers(each.size, each.low, each.high, each.turn) + bytes([each.seats])
    yield _numbers(each.clocks.prover, each.clocks.challenger, each.clocks.since, each.deadline)
    yield _numbers(each.bond, each.deposit)
    for sitting in each.rounds:
        yield _round(sitting)
    for appeal in each.appeals:
        yield _party(appeal.party) + bytes([_fault(appeal.against)]) + _numbers(appeal.bond)


def _round(sitting: Round) -> bytes:
    seats = zip(sitting.drawn, sitting.commitments, sitting.votes, strict=True)
    return b"".join(
        _party(name) + bytes([bool(commitment)]) + bytes.fromhex(commitment or NOTHING) + bytes([_fault(vote)])
        for name, commitment, vote in seats
    )


def _owed(credits: Sequence[Credit]) -> bytes:
    return _numbers(len(credits)) + b"".join(_numbers(each.amount, each.ripe) for each in credits)


def _fault(fault: Fault | None) -> int:
    return VOTE_CODES[fault][0] if fault else 0


def _party(name: str) -> bytes:
    return bytes.fromhex(name.removeprefix("0x"))


def _numbers(*values: int) -> bytes:
    return b"".join(value.to_bytes(8) for value in values)
