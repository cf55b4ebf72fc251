"""A committee's life: called, drawn, committing, disclosing, counted, appealed, found out."""

from __future__ import annotations

import pytest

from tallystick.disputes.game import moves, voting
from tallystick.disputes.game.state import Phase
from tallystick.verdicts.verdict import Fault
from tests.disputes.playing import (
    BEACON,
    CHALLENGER,
    MEMBERS,
    NONCE,
    OTHER,
    PROVER,
    REFEREE,
    RULES,
    SALT,
    TREASURY,
    Play,
)
from tests.disputes.refusals import convene, planted, revealing, settle, tally, timeout, unseal

P, C, N = Fault.PROVER, Fault.CHALLENGER, Fault.NOBODY
FEE = RULES.vote_fee


def test_votes_are_hidden_until_all_have_committed() -> None:
    play = Play().committing()
    for place, member in enumerate(play.sitting):
        assert play.dispute.phase is Phase.COMMITTING
        play.do(play.vote(member, P))
        assert play.dispute.rounds[0].votes == (None,) * 3
        assert [bool(each) for each in play.dispute.rounds[0].commitments] == [n <= place for n in range(3)]
    assert play.dispute.phase is Phase.REVEALING
    assert play.dispute.deadline == play.time + RULES.reveal_window


def test_where_one_stays_away_the_others_disclose_after_the_time_to_commit() -> None:
    play = Play().committing()
    for member in play.sitting[:2]:
        play.do(play.vote(member, P))
    end = play.dispute.deadline
    play.wait(end - play.now)
    assert play.refused(play.vote(play.sitting[2], P)) == "late"
    play.do(play.disclose(play.sitting[0], P))
    assert (play.dispute.phase, play.dispute.deadline) == (Phase.REVEALING, end + RULES.reveal_window)
    play.do(play.disclose(play.sitting[1], P)).do(tally())
    assert play.dispute.fault is P


def test_where_nobody_comes_nobody_is_at_fault() -> None:
    play = Play().committing()
    assert play.wait(RULES.vote_window + RULES.reveal_window - 1).refused(tally()) == "early"
    play.wait(1).do(tally())
    assert play.dispute.fault is N
    assert play.owed(TREASURY) == 2 * 3 * FEE
    assert all(play.state.members[name].stake == RULES.stake - FEE for name in play.sitting)


@pytest.mark.parametrize("is_committed", [True, False])
def test_an_absent_member_is_fined_and_its_fee_is_not_paid_to_it(is_committed: bool) -> None:
    play = Play().committing()
    absent, *others = play.sitting
    for member in play.sitting if is_committed else others:
        play.do(play.vote(member, P))
    if not is_committed:
        play.wait(RULES.vote_window)
    for member in others:
        play.do(play.disclose(member, P))
    play.wait(RULES.reveal_window).do(tally())
    assert play.owed(absent) == 0
    assert play.owed(TREASURY) == 2 * FEE
    assert play.state.members[absent].stake == RULES.stake - FEE
    assert [play.owed(member) for member in others] == [FEE, FEE]
    assert [play.state.members[member].stake for member in others] == [RULES.stake] * 2


def test_a_member_whose_stake_cannot_pay_another_fine_is_drawn_no_more() -> None:
    play = Play(stake=2 * FEE - 1).committing()
    play.wait(RULES.vote_window + RULES.reveal_window).do(tally())
    assert {play.state.members[name].is_active for name in play.sitting} == {False}
    twin = Play(stake=2 * FEE).committing()
    twin.wait(RULES.vote_window + RULES.reveal_window).do(tally())
    assert {twin.state.members[name].is_active for name in twin.sitting} == {True}


def test_a_member_sits_in_many_committees_and_is_free_when_all_are_counted() -> None:
    play = Play().enlisted(MEMBERS[:3]).claimed()
    for number in range(2):
        play.contested(actor=f"{900 + number:064x}").until(Phase.RULING, number=number)
        play.do(moves.Convene(actor=REFEREE, dispute=number)).do(moves.Draw(actor=BEACON, dispute=number, nonce=NONCE))
    assert {play.state.members[name].serving for name in MEMBERS[:3]} == {2}
    play.wait(RULES.vote_window + RULES.reveal_window).do(tally())
    assert {play.state.members[name].serving for name in MEMBERS[:3]} == {1}
    assert play.refused(moves.Retire(actor=MEMBERS[0])) == "serving"


# ---- what is drawn
def test_without_members_nothing_can_be_decided() -> None:
    play = Play().claimed().contested().until(Phase.RULING).do(convene(REFEREE))
    assert (play.dispute.phase, play.dispute.fault) == (Phase.SETTLED, N)
    assert play.owed(CHALLENGER) == RULES.challenger_bond + RULES.deposit


def test_members_that_leave_between_call_and_draw_are_not_drawn() -> None:
    play = Play().enlisted(MEMBERS[:3]).claimed().contested().until(Phase.RULING).do(convene(REFEREE))
    play.do(moves.Retire(actor=MEMBERS[0])).do(moves.Retire(actor=MEMBERS[1])).drawn()
    assert play.sitting == (MEMBERS[2],)


def test_where_all_have_left_the_draw_ends_the_dispute() -> None:
    play = Play().enlisted(MEMBERS[:1]).claimed().contested().until(Phase.RULING).do(convene(REFEREE))
    play.do(moves.Retire(actor=MEMBERS[0])).drawn()
    assert (play.dispute.phase, play.dispute.fault) == (Phase.SETTLED, N)


def test_a_nonce_that_does_not_come_ends_a_dispute_as_if_there_were_nobody() -> None:
    play = Play().drawing().wait(RULES.vote_window)
    assert play.refused(moves.Draw(actor=BEACON, dispute=0, nonce=NONCE)) == "accepted"
    play.do(timeout())
    assert (play.dispute.phase, play.dispute.fault) == (Phase.SETTLED, N)


def test_without_a_nonce_for_an_appeal_the_finding_before_it_stands() -> None:
    play = Play().committing().counted(P)
    play.do(play.appeal(PROVER)).wait(RULES.vote_window).do(timeout())
    assert play.dispute.fault is P


# ---- appeals
def test_an_appeal_asks_twice_as_many_and_one_more() -> None:
    play = Play(committee=3).committing().counted(P)
    assert len(play.sitting) == 3
    play.do(play.appeal(PROVER)).drawn()
    assert len(play.sitting) == 7
    play.counted(P).do(play.appeal(PROVER)).drawn()
    assert len(play.sitting) == 15
    play.counted(C)
    assert (play.dispute.phase, play.dispute.fault) == (Phase.SETTLED, C)


@pytest.mark.parametrize("appeals", [0, 1, 2])
def test_the_last_committee_cannot_be_appealed_against(appeals: int) -> None:
    play = Play(appeals=appeals, committee=1).committing()
    for _ in range(appeals):
        play.counted(P)
        play.do(play.appeal(PROVER)).drawn()
    assert play.counted(P).dispute.phase is Phase.SETTLED


@pytest.mark.parametrize(
    ("finding", "able"), [(P, [PROVER]), (C, [CHALLENGER]), (N, [PROVER, CHALLENGER])], ids=["p", "c", "n"]
)
def test_only_who_lost_can_appeal(finding: Fault, able: list[str]) -> None:
    play = Play().committing().counted(finding)
    for party in (PROVER, CHALLENGER, OTHER):
        assert play.refused(play.appeal(party)) == ("accepted" if party in able else "actor")


def test_a_finding_takes_effect_when_nobody_appeals() -> None:
    play = Play().committing().counted(P).wait(RULES.appeal_window)
    assert play.refused(play.appeal(PROVER)) == "late"
    assert play.do(settle()).dispute.fault is P


# ---- planted answers (G5)
def test_who_voted_against_a_planted_answer_loses_its_stake_and_the_others_keep_theirs() -> None:
    play = planted()
    before = play.owed(TREASURY)
    play.do(unseal())
    wrong, *right = play.dispute.rounds[0].drawn
    assert play.state.members[wrong].stake == 0
    assert [play.state.members[name].stake for name in right] == [RULES.stake] * 2
    assert play.owed(TREASURY) == before + RULES.stake
    assert play.dispute.is_unsealed


def test_an_absent_member_has_not_voted_against_anything() -> None:
    seal = voting.seal(PROVER, P, SALT)
    play = Play().enlisted().claimed(seal=seal).contested().until(Phase.RULING).do(convene(REFEREE)).drawn()
    play.wait(RULES.vote_window + RULES.reveal_window).do(tally()).settled().do(unseal())
    assert {play.state.members[name].stake for name in play.sitting} == {RULES.stake - FEE}


def test_the_votes_of_every_round_are_compared_with_a_planted_answer() -> None:
    seal = voting.seal(PROVER, C, SALT)
    play = Play().enlisted().claimed(seal=seal).contested().until(Phase.RULING).do(convene(REFEREE)).drawn()
    play.counted(P)
    first = set(play.sitting)
    play.do(play.appeal(PROVER)).drawn().counted(C).settled().do(unseal(C))
    assert {name for name, member in play.state.members.items() if not member.stake} == first


@pytest.mark.parametrize("appeals", [0, 1, 2])
def test_a_member_cannot_leave_before_its_vote_can_be_found_out(appeals: int) -> None:
    """It is bound for as long as every appeal may take, with everybody as late as can be, and one delay more."""
    seal = voting.seal(PROVER, C, SALT)
    play = Play(appeals=appeals, committee=1).enlisted().claimed(seal=seal).contested().until(Phase.RULING)
    play.do(convene(REFEREE)).drawn().counted(P)
    lazy = play.dispute.rounds[0].drawn[0]
    for finding in [P] * (appeals - 1) + [C] * (appeals > 0):
        play.wait(RULES.appeal_window - 1)
        play.do(play.appeal(PROVER)).wait(RULES.vote_window - 1).drawn().wait(RULES.vote_window - 1)
        for member in play.sitting:
            play.do(play.vote(member, finding))
        play.wait(RULES.reveal_window - 1)
        for member in play.sitting:
            play.do(play.disclose(member, finding))
        play.do(tally())
    if play.dispute.phase is Phase.APPEALABLE:
        play.settled()
    assert play.refused(moves.Retire(actor=lazy)) == "early"
    assert play.do(unseal(C)).state.members[lazy].stake == 0


def test_a_member_that_lost_its_stake_can_stake_again() -> None:
    play = planted()
    wrong = play.dispute.rounds[0].drawn[0]
    play.do(unseal())
    assert play.refused(moves.Retire(actor=wrong)) == "actor"
    play.do(moves.Enlist(actor=wrong, value=RULES.stake))
    assert play.state.members[wrong].is_active


def test_a_copied_commitment_cannot_be_disclosed() -> None:
    play = Play().committing()
    first, copier, third = play.sitting
    play.do(play.vote(first, P))
    play.do(moves.Vote(actor=copier, dispute=0, commitment=play.dispute.rounds[0].commitments[0]))
    play.do(play.vote(third, P)).do(play.disclose(first, P))
    assert play.refused(play.disclose(copier, P)) == "commitment"
    assert play.refused(play.disclose(third, P)) == "accepted"


def test_votes_belong_to_their_own_dispute_and_round() -> None:
    play = revealing()
    first = play.sitting[0]
    other_round = moves.Disclose(actor=first, dispute=0, vote=P, salt=NONCE)
    assert play.refused(other_round) == "commitment"
    assert play.refused(play.disclose(first, P)) == "accepted"
