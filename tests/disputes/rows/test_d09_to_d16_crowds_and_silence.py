"""D-09 Sybils, D-10 silence, D-11 crashes, D-14 bad committees, D-15 copies, D-16 sizes; with G2, G4, G5, G6.

D-12 (reorganisations) and D-13 (censorship) are simulated in `simulator.places.Chain`; on a real chain they are in
`coordinators/ethereum/test_reorgs.py` and `test_sender.py`. `docs/disputes.md` has the table of all rows.
"""

from __future__ import annotations

import pytest

from tallystick.disputes.coordinators.coordinator import MoveEntry, replayed
from tallystick.disputes.economics.costs import ClaimKind
from tallystick.disputes.game import moves, voting as committee
from tallystick.disputes.game.state import Phase, State, Status
from tallystick.verdicts.verdict import Fault
from tests.disputes.playing import (
    CHALLENGER,
    HONEST,
    MEMBERS,
    OTHER,
    PROVER,
    REFEREE,
    RULES,
    SALT,
    Play,
    party,
)
from tests.disputes.refusals import convene, finalise, tally, timeout, unseal
from tests.support.simulator.trees import NOTHING, Run

P, C, N = Fault.PROVER, Fault.CHALLENGER, Fault.NOBODY
SYBILS = [party(10_000 + number) for number in range(100)]
ANSWERING = ClaimKind().answering
"""What all answers of one dispute cost a prover, as `docs/economics.md` assumes it."""


# ---- D-09, G2
@pytest.mark.parametrize("way", ["silent", "to the end"])
def test_d09_g2_a_hundred_sybils_pay_an_honest_prover_for_answering_them(way: str) -> None:
    play = Play(run=HONEST).enlisted().claimed()
    for sybil in SYBILS:
        play.contested(actor=sybil)
    answers = 0
    for number in range(100):
        while play.state.disputes[number].phase is not Phase.RULING:
            is_provers = play.state.disputes[number].phase is not Phase.CHOOSE
            if way == "silent" and not is_provers:
                break
            answers += is_provers
            play.do(play.answer(number))
    play.wait(RULES.clock)
    for number in range(100):
        is_silent = play.state.disputes[number].phase is Phase.CHOOSE
        ruling = moves.Rule(actor=REFEREE, dispute=number, fault=C, reason=NOTHING)
        play.do(timeout(number) if is_silent else ruling)
    play.wait(RULES.challenge_window).do(finalise())
    assert play.owed(PROVER) == RULES.prover_bond + 100 * RULES.challenger_bond
    assert play.owed(PROVER) - RULES.prover_bond >= 1.5 * 100 * ANSWERING
    assert answers == (100 if way == "silent" else 100 * 6)
    assert sum(play.owed(sybil) for sybil in SYBILS) == 100 * RULES.deposit


def test_d09_twin_a_hundred_honest_challengers_of_a_cheat_lose_nothing_and_one_is_paid() -> None:
    play = Play().enlisted().claimed()
    for sybil in SYBILS:
        play.contested(actor=sybil)
    play.until(Phase.RULING, number=41).do(moves.Rule(actor=REFEREE, dispute=41, fault=P, reason=NOTHING))
    for number in range(100):
        if number != 41:
            play.do(moves.Dismiss(actor=OTHER, dispute=number))
    paid = RULES.challenger_bond + RULES.deposit
    gains = [play.owed(sybil) - paid for sybil in SYBILS]
    assert sum(gain > 0 for gain in gains) == 1
    assert min(gains) == 0


def test_g2_challenges_run_beside_each_other_and_delay_a_claim_by_one_dispute() -> None:
    play = Play(run=HONEST).claimed().wait(RULES.challenge_window - 1)
    for sybil in SYBILS:
        play.contested(actor=sybil)
    for number in range(100):
        play.do(play.answer(number))
    play.wait(RULES.clock)
    for number in range(100):
        play.do(timeout(number))
    assert play.do(finalise()).state.claims[0].status is Status.FINAL
    assert play.now - play.state.claims[0].deadline <= RULES.clock


# ---- D-10
@pytest.mark.parametrize(
    ("phase", "silent"), [(Phase.PARTITION, PROVER), (Phase.CHOOSE, CHALLENGER), (Phase.LEAF, PROVER)]
)
def test_d10_a_silent_party_loses(phase: Phase, silent: str) -> None:
    play = Play().opened().until(phase)
    play.wait(play.left()).do(timeout())
    assert play.dispute.fault is (P if silent == PROVER else C)
    other = CHALLENGER if silent == PROVER else PROVER
    assert play.owed(other) >= RULES.challenger_bond


def test_d10_twin_a_slow_party_that_answers_in_time_loses_nothing() -> None:
    play = Play(run=HONEST).opened()
    while play.dispute.phase is not Phase.RULING:
        play.wait(play.left() - 1 if play.dispute.phase is not Phase.CHOOSE else 60).do(play.answer())
    play.do(moves.Rule(actor=REFEREE, dispute=0, fault=C, reason=NOTHING))
    assert play.dispute.fault is C


def test_d10_silent_members_a_silent_referee_and_a_silent_beacon_stop_nothing() -> None:
    play = Play().ruling().wait(RULES.referee_window).do(convene()).wait(RULES.vote_window).do(timeout())
    assert play.dispute.fault is N
    voting = Play().committing().wait(RULES.vote_window + RULES.reveal_window).do(tally()).settled()
    assert voting.dispute.fault is N


# ---- D-11
def test_d11_a_coordinator_killed_at_each_transition_comes_to_the_same_verdict_and_bonds() -> None:
    play = Play()
    log: list[MoveEntry] = []

    def do(move: moves.Move) -> None:
        """Make a move at a coordinator that has just been started again from its log."""
        play.state = replayed(RULES, log)
        play.do(move)
        log.append(MoveEntry(len(log), play.now, move))

    for member in MEMBERS:
        do(moves.Enlist(actor=member, value=RULES.stake))
    do(play.post())
    do(play.contest())
    while play.dispute.phase is not Phase.RULING:
        do(play.wait(60).answer())
    straight = Play().ruling()
    do(moves.Rule(actor=REFEREE, dispute=0, fault=P, reason=NOTHING))
    straight.do(moves.Rule(actor=REFEREE, dispute=0, fault=P, reason=NOTHING))
    assert (play.state, play.now) == (straight.state, straight.now)


# ---- D-14, G4
@pytest.mark.parametrize("liars", range(8))
def test_d14_g4_a_committee_of_seven_decides_by_its_majority_and_four_liars_are_the_limit_of_trust(liars: int) -> None:
    play = Play(run=HONEST, committee=7, appeals=0, vote_fee=100).ruling().do(convene(REFEREE)).drawn()
    assert len(play.sitting) == 7
    play.counted(*[P] * liars, *[C] * (7 - liars))
    honest_wins = liars <= 3
    assert play.dispute.fault is (C if honest_wins else P)
    assert (play.state.claims[0].status is Status.OPEN) == honest_wins


def test_d14_an_appeal_undoes_four_liars_where_the_larger_committee_is_honest() -> None:
    play = Play(run=HONEST, committee=7, appeals=1, vote_fee=100).ruling().do(convene(REFEREE)).drawn()
    play.counted(*[P] * 4, *[C] * 3)
    play.do(play.appeal(PROVER)).drawn().counted(*[P] * 4, *[C] * 11)
    assert (play.dispute.phase, play.dispute.fault) == (Phase.SETTLED, C)
    assert play.owed(PROVER) == RULES.challenger_bond + RULES.appeal_bond


def test_d14_liars_and_absent_members_together_reach_no_verdict_without_a_majority() -> None:
    """3 lie, 2 are absent, 2 are honest: nobody has four votes, and both bonds go back."""
    play = Play(run=HONEST, committee=7, appeals=0, vote_fee=100).ruling().do(convene(REFEREE)).drawn()
    for member, vote in zip(play.sitting[:5], [P, P, P, C, C], strict=True):
        play.do(play.vote(member, vote))
    play.wait(RULES.vote_window)
    for member, vote in zip(play.sitting[:5], [P, P, P, C, C], strict=True):
        play.do(play.disclose(member, vote))
    assert play.do(tally()).dispute.fault is N
    assert play.owed(CHALLENGER) == RULES.challenger_bond


def test_g4_nobody_chooses_the_committee_that_a_dispute_gets() -> None:
    """It is drawn by a nonce from after the call: another nonce, another committee, and parties are never in it."""
    drawn = set()
    for nonce in range(50):
        play = Play().enlisted().claimed(actor=MEMBERS[3]).contested(actor=MEMBERS[5])
        play.until(Phase.RULING).do(convene(REFEREE)).drawn(f"{nonce:064x}")
        assert not {MEMBERS[3], MEMBERS[5]} & set(play.sitting)
        drawn.add(frozenset(play.sitting))
    assert len(drawn) > 40


# ---- G5
def test_g5_members_that_vote_without_looking_are_caught_by_planted_answers() -> None:
    seal = committee.seal(PROVER, P, SALT)
    play = Play().enlisted().claimed(seal=seal).contested().until(Phase.RULING).do(convene(REFEREE)).drawn()
    lazy, *honest = play.sitting
    play.counted(C, P, P).settled().do(unseal(P))
    assert play.state.members[lazy].stake == 0
    assert [play.state.members[name].stake for name in honest] == [RULES.stake] * 2


def test_g5_a_copied_vote_cannot_be_disclosed_and_costs_its_copier() -> None:
    play = Play().committing()
    first, copier, third = play.sitting
    copied = play.vote(first, P).commitment
    play.do(play.vote(first, P)).do(moves.Vote(actor=copier, dispute=0, commitment=copied)).do(play.vote(third, P))
    play.do(play.disclose(first, P)).do(play.disclose(third, P))
    assert play.refused(play.disclose(copier, P)) == "commitment"
    play.wait(RULES.reveal_window).do(tally())
    assert play.owed(copier) == 0
    assert play.state.members[copier].stake == RULES.stake - RULES.vote_fee
    assert play.dispute.fault is P


def test_g5_a_seal_looks_like_any_other_and_cannot_be_opened_twice_or_by_others() -> None:
    seal = committee.seal(PROVER, P, SALT)
    assert len(seal) == len(SALT) == 64
    play = Play().enlisted().claimed(seal=seal).contested().do(moves.Concede(actor=CHALLENGER, dispute=0))
    assert play.refused(unseal(P).model_copy(update={"actor": OTHER})) == "actor"
    assert play.refused(unseal(N)) == "seal"
    assert play.do(unseal(P)).refused(unseal(P)) == "again"


# ---- G6, D-13
def test_g6_d13_a_move_that_is_held_up_for_the_whole_extension_but_one_second_still_arrives() -> None:
    play = Play(run=HONEST).opened()
    play.wait(play.left() - 1).do(play.answer()).wait(60).do(play.answer())
    while play.dispute.phase not in (Phase.RULING, Phase.CHOOSE):
        assert play.left() == RULES.extension
        play.wait(RULES.extension - 1).do(play.answer())
    assert play.dispute.phase in (Phase.RULING, Phase.CHOOSE)


def test_g6_windows_are_days() -> None:
    day = 86_400
    assert min(RULES.clock, RULES.challenge_window, RULES.vote_window, RULES.reveal_window, RULES.appeal_window) >= day
    assert RULES.clock >= 2 * day


# ---- D-15
def test_d15_a_move_names_its_dispute_and_turn_and_counts_nowhere_else() -> None:
    play = Play().enlisted().claimed().contested().contested(actor=OTHER)
    move = play.answer(0)
    play.do(move)
    assert play.refused(move) == "phase"
    assert play.refused(move.model_copy(update={"dispute": 1})) == "accepted"
    assert move.digest_as("move") != move.model_copy(update={"dispute": 1}).digest_as("move")


def test_d15_a_vote_counts_in_its_dispute_its_round_and_for_its_member_alone() -> None:
    given = (0, 0, MEMBERS[0], P, SALT)
    for other in [(1, 0, MEMBERS[0]), (0, 1, MEMBERS[0]), (0, 0, MEMBERS[1])]:
        assert committee.commitment(*other, P, SALT) != committee.commitment(*given)


def test_d15_rules_that_differ_in_anything_have_another_identity_which_signed_moves_name() -> None:
    others = [RULES.model_copy(update=change) for change in ({"clock": 1}, {"treasury": OTHER}, {"members": ()})]
    assert len({RULES.identity, *(each.identity for each in others)}) == 4


# ---- D-16
@pytest.mark.parametrize("size", sorted({1, 2, 3, *(2**k + d for k in range(2, 9) for d in (-1, 0, 1))}))
@pytest.mark.parametrize("ways", [2, 3, 32])
def test_d16_trees_of_any_size_come_down_to_the_leaf_at_fault(size: int, ways: int) -> None:
    for faulty in sorted({0, size // 2, size - 1}):
        run = Run(0, steps=size, width=1, levels=1, fault=(faulty, 0))
        play = Play(run=run, ways=ways).claimed().contested().until(Phase.RULING)
        assert play.dispute.low == faulty
        honest = Play(run=Run(0, steps=size, width=1, levels=1), ways=ways).claimed()
        assert honest.contested(low=faulty).until(Phase.RULING).dispute.low == size - 1


def test_d16_a_claim_of_no_leaves_is_no_claim() -> None:
    assert State(RULES).claims == ()
    with pytest.raises(ValueError, match="size"):
        Play().post(size=0)
    assert Play().post(size=1).size == 1
