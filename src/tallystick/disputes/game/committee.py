"""Committees: who can be drawn, which members a nonce draws, how votes are committed to and counted."""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import Final

from tallystick.disputes.game.state import Dispute, Round, State
from tallystick.judging.fault import Fault

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
    found = min(wanted, len(eligible(state, dispute)))
    return found if found % 2 else max(found - 1, 0)


def draw(pool: tuple[str, ...], count: int, nonce: str, dispute: int, number: int) -> tuple[str, ...]:
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
    found, count = Counter(vote for vote in votes if vote is not None).most_common(1)[0] if any(votes) else (None, 0)
    return found if found is not None and 2 * count > len(votes) else Fault.NOBODY


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
