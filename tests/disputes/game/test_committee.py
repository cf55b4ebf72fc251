"""Committees: who can be drawn, how a nonce draws, what a commitment binds, and what votes say."""

from __future__ import annotations

import hashlib
from collections import Counter
from itertools import product

import pytest
from hypothesis import given, strategies as st

from tallystick.disputes.game import moves
from tallystick.disputes.game.state import Appealed, Round
from tallystick.disputes.game.voting import (
    commitment,
    draw_members,
    eligible,
    has_committed,
    has_disclosed,
    majority,
    party_bytes,
    seal,
    seats,
    undrawn,
)
from tallystick.verdicts.verdict import Fault
from tests.disputes.playing import CHALLENGER, MEMBERS, NONCE, OTHER, PROVER, SALT, Play
from tests.disputes.refusals import planted, unseal

P, C, N = Fault.PROVER, Fault.CHALLENGER, Fault.NOBODY


@given(st.integers(1, 60), st.data())
def test_a_draw_is_without_repetition_and_out_of_the_pool(size: int, data: st.DataObject) -> None:
    pool = tuple(f"{place:064x}" for place in range(size))
    count = data.draw(st.integers(1, size))
    nonce = data.draw(st.binary(min_size=32, max_size=32)).hex()
    drawn = draw_members(pool, count, nonce, 7, 1)
    assert len(set(drawn)) == count
    assert set(drawn) <= set(pool)
    assert drawn == draw_members(pool, count, nonce, 7, 1)


def test_a_draw_is_the_shuffle_that_the_page_describes() -> None:
    pool = tuple("abcdefg")
    left = list(pool)
    for i in range(3):
        message = bytes.fromhex(NONCE) + (9).to_bytes(8) + (2).to_bytes(8) + i.to_bytes(8)
        word = int.from_bytes(hashlib.sha256(b"tallystick/draw/v1\n" + message).digest())
        j = i + word % (7 - i)
        left[i], left[j] = left[j], left[i]
    assert draw_members(pool, 3, NONCE, 9, 2) == tuple(left[:3])


def test_nonce_dispute_and_round_each_draw_another_committee() -> None:
    pool = tuple(f"{place:064x}" for place in range(200))
    drawn = {
        draw_members(pool, 9, nonce, dispute, number)
        for nonce, dispute, number in product((NONCE, SALT), (0, 1), (0, 1))
    }
    assert len(drawn) == 8


def test_every_member_is_drawn_about_equally_often() -> None:
    """10,000 draws of 3 out of 7: each expected 4,286 times, standard deviation 49; six of them are allowed."""
    counts = Counter(name for each in range(10_000) for name in draw_members(tuple("abcdefg"), 3, f"{each:064x}", 0, 0))
    assert all(abs(count - 30_000 / 7) < 6 * 50 for count in counts.values())
    assert len(counts) == 7


# ---- who can be drawn
def test_parties_strangers_and_retired_members_are_not_drawn() -> None:
    play = Play().enlisted(MEMBERS[:6]).claimed(actor=MEMBERS[0]).contested(actor=MEMBERS[1])
    play.do(moves.Retire(actor=MEMBERS[2]))
    assert eligible(play.state, play.dispute) == MEMBERS[3:6]


def test_a_member_that_was_found_out_is_not_drawn() -> None:
    play = planted().do(unseal())
    wrong = play.dispute.rounds[0].drawn[0]
    assert wrong not in eligible(play.state, play.dispute)
    assert set(play.dispute.rounds[0].drawn[1:]) <= set(eligible(play.state, play.dispute))


@pytest.mark.parametrize(
    ("pool", "wanted", "expected"), [(0, 3, 0), (1, 3, 1), (2, 3, 1), (3, 3, 3), (4, 3, 3), (6, 7, 5), (9, 4, 3)]
)
def test_a_committee_is_odd_and_no_larger_than_wanted(pool: int, wanted: int, expected: int) -> None:
    play = Play().enlisted(MEMBERS[:pool]).claimed().contested()
    assert seats(play.state, play.dispute, wanted) == expected


def test_what_stands_without_a_committee_is_the_last_finding() -> None:
    dispute = Play().claimed().contested().dispute
    assert undrawn(dispute) is Fault.NOBODY
    appeals = (Appealed(PROVER, Fault.PROVER, 1), Appealed(CHALLENGER, Fault.CHALLENGER, 1))
    assert undrawn(type(dispute)(**{**dispute.__dict__, "appeals": appeals})) is Fault.CHALLENGER


# ---- commitments and seals
def test_a_commitment_binds_dispute_round_member_vote_and_salt() -> None:
    given = (0, 1, MEMBERS[0], P, SALT)
    others = [
        *((1, 1, MEMBERS[0], P, SALT), (0, 0, MEMBERS[0], P, SALT), (0, 1, MEMBERS[1], P, SALT)),
        *((0, 1, MEMBERS[0], C, SALT), (0, 1, MEMBERS[0], N, SALT), (0, 1, MEMBERS[0], P, NONCE)),
    ]
    assert commitment(*given) == commitment(*given)
    assert len({commitment(*each) for each in [given, *others]}) == 7
    message = (0).to_bytes(8) + (1).to_bytes(8) + bytes.fromhex(MEMBERS[0]) + b"\x01" + bytes.fromhex(SALT)
    assert commitment(*given) == hashlib.sha256(b"tallystick/vote/v1\n" + message).hexdigest()


def test_a_seal_binds_prover_answer_and_salt() -> None:
    found = {seal(*each) for each in [(PROVER, P, SALT), (OTHER, P, SALT), (PROVER, C, SALT), (PROVER, P, NONCE)]}
    assert len(found) == 4
    message = bytes.fromhex(PROVER) + b"\x01" + bytes.fromhex(SALT)
    assert seal(PROVER, P, SALT) == hashlib.sha256(b"tallystick/seal/v1\n" + message).hexdigest()


def test_an_address_has_twenty_bytes_and_a_key_thirty_two() -> None:
    assert party_bytes("0x" + "ab" * 20) == b"\xab" * 20
    assert party_bytes("cd" * 32) == b"\xcd" * 32


# ---- votes
@pytest.mark.parametrize(
    ("votes", "found"),
    [
        ((P, P, C), P),
        ((P, C, None), N),
        ((P, P, None), P),
        ((P, None, None), N),
        ((None, None, None), N),
        ((P, C, N), N),
        ((N, N, P), N),
        ((C,), C),
        ((None,), N),
        ((P, P, P, C, C, C, None), N),
        ((P, P, P, P, C, C, C), P),
        ((C, C, C, C, None, None, None), C),
    ],
)
def test_more_than_half_of_those_drawn_decide(votes: tuple[Fault | None, ...], found: Fault) -> None:
    assert majority(votes) is found


@given(st.lists(st.sampled_from([P, C, N, None]), min_size=1, max_size=31))
def test_a_majority_does_not_depend_on_the_order_of_votes(votes: list[Fault | None]) -> None:
    found = majority(tuple(votes))
    assert found is majority(tuple(reversed(votes)))
    assert found is N or votes.count(found) * 2 > len(votes)


def test_a_committee_is_complete_when_all_have_committed_and_all_those_disclosed() -> None:
    assert not has_committed(Round(("a", "b"), ("x", ""), (None, None)))
    assert has_committed(Round(("a", "b"), ("x", "y"), (None, None)))
    assert not has_disclosed(Round(("a", "b"), ("x", "y"), (P, None)))
    assert has_disclosed(Round(("a", "b"), ("x", ""), (P, None)))
