"""Every coordinator plays the same game: each test here runs against each of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tallystick.core.digests import digest
from tallystick.core.errors import RuleError, UnavailableError
from tallystick.disputes.game.moves import (
    Appeal,
    Choose,
    Concede,
    Contest,
    Convene,
    Descend,
    Disclose,
    Dismiss,
    Draw,
    Enlist,
    Finalise,
    Partition,
    Pause,
    Pinpoint,
    Post,
    Protest,
    Resume,
    Retire,
    Reveal,
    Rule,
    Settle,
    Tally,
    Timeout,
    Unseal,
    Vote,
    Withdraw,
)
from tallystick.disputes.game.state import ELEMENT_MAX, Phase, Status, cut_places
from tallystick.disputes.game.voting import seal
from tallystick.verdicts.verdict import Fault
from tests.disputes.coordinators.conformance import (
    FOUNDERS,
    MEMBERS,
    NAMES,
    NO_SEAL,
    OPERATORS,
    RECORDS,
    SALT,
    Play,
    Tree,
    founder,
    usual_rules,
)

REASON = digest("blob", b"reason")


@pytest.fixture(params=FOUNDERS)
def play(request: pytest.FixtureRequest) -> Iterator[Play]:
    with founder(request.param)(usual_rules) as world:
        yield Play(world)


def test_every_party_sees_the_same_rules_and_its_own_name(play: Play) -> None:
    expected = usual_rules(play.party, beacon=play.rules.beacon)  # a chain draws itself
    for name in NAMES:
        place = play.world.connect(name)
        assert (place.rules, place.party) == (expected, play.party(name))


def test_moves_are_numbered_in_order_and_seen_by_everybody(play: Play) -> None:
    assert list(play.entries) == []
    for _ in range(3):
        play.post()
        play.world.advance(5)
    seen = play.entries
    assert [entry.number for entry in seen] == [0, 1, 2]
    assert seen[0].time + 5 <= seen[1].time <= seen[2].time - 5 <= play.now
    assert list(play.world.connect("challenger").entries(1)) == list(seen[1:])
    assert list(play.world.connect("prover").entries(3)) == []


def test_time_does_not_go_back(play: Play) -> None:
    times = [play.now for _ in range(3)]
    play.world.advance(100)
    assert times == sorted(times)
    assert play.now >= times[-1] + 100


def test_the_board_gives_back_what_was_put_there_and_nothing_else(play: Play) -> None:
    name = play.world.board("prover").put(b"\x00data")
    assert name == digest("blob", b"\x00data") == play.world.board("challenger").put(b"\x00data")
    assert play.world.board("bystander").get(name) == b"\x00data"
    with pytest.raises(UnavailableError):
        play.world.board("bystander").get(digest("blob", b"never put there"))


def test_a_claim_that_nobody_contests_is_final_after_its_window_and_the_bond_goes_back(play: Play) -> None:
    play.post()
    assert play.refused("bystander", Finalise, claim=0) == "early"
    play.world.advance(play.rules.challenge_window)
    play.do("bystander", Finalise, claim=0)
    assert play.claim().status is Status.FINAL
    assert play.owed("prover") == play.rules.prover_bond


def test_a_dispute_goes_through_two_levels_to_the_referee_and_pays_the_challenger(play: Play) -> None:
    play.post()
    play.contest()
    play.bisect()
    assert play.dispute().level == 1
    assert play.refused("challenger", Rule, dispute=0, fault=Fault.PROVER, reason=REASON) == "actor"
    play.do("referee", Rule, dispute=0, fault=Fault.PROVER, reason=REASON)
    reward = play.rules.prover_bond * play.rules.reward // 1000
    assert play.claim().status is Status.SLASHED
    assert play.owed("challenger") == play.rules.challenger_bond + play.rules.deposit + reward
    assert play.owed("treasury") == play.rules.prover_bond - reward


def test_an_element_of_an_opened_operator_is_named_by_the_challenger_and_the_last_one_counts(play: Play) -> None:
    named: dict[str, int] = {"dispute": 0, "result": 1, "element": ELEMENT_MAX}
    play.post()
    play.contest()
    assert play.refused("challenger", Pinpoint, **named) == "phase"
    play.bisect()
    assert play.refused("prover", Pinpoint, **named) == "actor"
    assert play.do("challenger", Pinpoint, **named).disputes[0].element == (1, ELEMENT_MAX)
    assert play.do("challenger", Pinpoint, **{**named, "element": 0}).disputes[0].element == (1, 0)
    play.do("referee", Rule, dispute=0, fault=Fault.PROVER, reason=REASON)
    assert play.refused("challenger", Pinpoint, **named) == "settled"


def test_a_record_and_a_protest_have_no_elements(play: Play) -> None:
    play.post()
    play.contest()
    play.partition()
    play.do("challenger", Protest, dispute=0)
    assert play.refused("challenger", Pinpoint, dispute=0, result=0, element=0) == "level"


def test_in_one_round_mode_the_leaves_are_operators_already(play: Play) -> None:
    play.post(OPERATORS, levels=1)
    play.contest()
    play.bisect()
    play.do("referee", Rule, dispute=0, fault=Fault.CHALLENGER, reason=REASON)
    play.world.advance(play.rules.challenge_window)
    play.do("prover", Finalise, claim=0)
    assert play.owed("prover") == play.rules.prover_bond + play.rules.challenger_bond


def test_trees_of_any_size_are_cut_down_to_one_leaf(play: Play) -> None:
    trees = [Tree.of(size) for size in (1, 2, 4, 5, 9)]
    play.tree_of = lambda dispute: trees[dispute.claim] if dispute.level == 2 else OPERATORS  # type: ignore[method-assign]
    for number, tree in enumerate(trees):
        play.post(tree)
        play.contest(claim=number)
        play.bisect(number)
        play.do("challenger", Concede, dispute=number)
        assert play.dispute(number).fault is Fault.CHALLENGER


def test_money_rests_and_is_taken_out_once(play: Play) -> None:
    play.post()
    play.contest()
    play.do("challenger", Concede, dispute=0)
    assert play.refused("prover", Withdraw) == "nothing"
    play.world.advance(play.rules.withdrawal_delay)
    before = play.state.balance
    state = play.do("prover", Withdraw)
    assert (before - state.balance, state.paid_out) == (play.rules.challenger_bond,) * 2
    assert play.refused("prover", Withdraw) == "nothing"


@pytest.mark.parametrize("silent", ["prover", "challenger"])
def test_a_silent_party_loses_when_its_clock_has_run_out(play: Play, silent: str) -> None:
    play.post()
    play.contest()
    if silent == "challenger":
        play.partition()
    assert play.refused("bystander", Timeout, dispute=0) == "early"
    play.world.advance(play.rules.clock)
    late = {"prover": late_partition, "challenger": late_choice}[silent]
    assert late(play) == "late"
    play.do("bystander", Timeout, dispute=0)
    assert play.dispute().fault is Fault(silent)


def late_partition(play: Play) -> str:
    cuts = tuple(RECORDS.cut(place) for place in cut_places(0, 10, play.rules.ways))
    return play.refused("prover", Partition, dispute=0, cuts=cuts, data=play.data)


def late_choice(play: Play) -> str:
    return play.refused("challenger", Choose, dispute=0, child=1)


def test_wrong_claims_and_contests_are_refused_and_right_ones_accepted(play: Play) -> None:
    fields = {"root": RECORDS.root, "size": 10, "statement": play.data, "seal": NO_SEAL}
    assert play.refused("prover", Post, value=play.rules.prover_bond - 1, **fields) == "value"
    assert play.refused("challenger", Contest, value=1, claim=0, low=0, high=10) == "value"
    bond = play.rules.challenger_bond + play.rules.deposit
    assert play.refused("challenger", Contest, value=bond, claim=0, low=0, high=10) == "unknown"
    play.post()
    assert play.refused("prover", Contest, value=bond, claim=0, low=0, high=10) == "self"
    for low, high in ((0, 11), (3, 3), (5, 4)):
        assert play.refused("challenger", Contest, value=bond, claim=0, low=low, high=high) == "range"
    play.do("challenger", Contest, value=bond, claim=0, low=2, high=7)
    assert (play.dispute().low, play.dispute().high) == (2, 7)
    play.world.advance(play.rules.challenge_window)
    assert play.refused("challenger", Contest, value=bond, claim=0, low=0, high=10) == "window"
    assert play.refused("prover", Finalise, claim=0) == "disputed"


def test_wrong_cuts_are_refused_and_right_ones_accepted(play: Play) -> None:
    play.post()
    play.contest()
    places = cut_places(0, 10, play.rules.ways)
    right = tuple(RECORDS.cut(place) for place in places)
    assert play.refused("prover", Partition, dispute=0, cuts=right[:1], data=play.data) == "cuts"
    for wrong in wrong_proofs(right):
        assert play.refused("prover", Partition, dispute=0, cuts=wrong, data=play.data) == "proof"
    assert play.refused("prover", Partition, dispute=0, cuts=right, data=play.data, turn=1) == "turn"
    assert play.refused("challenger", Partition, dispute=0, cuts=right, data=play.data) == "actor"
    assert play.refused("prover", Partition, dispute=1, cuts=right, data=play.data, turn=0) == "unknown"
    assert play.refused("challenger", Choose, dispute=0, child=0) == "phase"
    play.do("prover", Partition, dispute=0, cuts=right, data=play.data)


def wrong_proofs(right: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """The cuts with the first proof too short, too long, of another leaf, and for another place."""
    first, rest = right[0], right[1:]
    changes = [
        {"proof": first.proof[:-1]},
        {"proof": (*first.proof, first.proof[-1])},
        {"leaf": rest[0].leaf},
        {"proof": rest[0].proof},
    ]
    return [(first.model_copy(update=change), *rest) for change in changes]


def test_wrong_choices_are_refused_and_a_right_one_accepted(play: Play) -> None:
    play.post()
    play.contest()
    play.partition()
    assert play.refused("challenger", Choose, dispute=0, child=3) == "child"
    assert play.refused("prover", Choose, dispute=0, child=0) == "actor"
    assert play.refused("challenger", Choose, dispute=0, child=0, turn=0) == "turn"
    play.choose(2)


def test_an_operator_is_revealed_and_has_nothing_below_it(play: Play) -> None:
    play.post(OPERATORS, levels=1)
    play.contest()
    while play.dispute().phase is not Phase.LEAF:
        play.partition() if play.dispute().phase is Phase.PARTITION else play.choose()
    cut, other = OPERATORS.cut(play.dispute().low), OPERATORS.cut(play.dispute().low + 1)
    named = {"dispute": 0, "leaf": cut.leaf, "proof": cut.proof, "data": play.data}
    assert play.refused("prover", Descend, root=RECORDS.root, size=10, **named) == "level"
    assert play.refused("prover", Reveal, **{**named, "leaf": other.leaf, "proof": other.proof}) == "proof"
    play.do("prover", Reveal, **named)
    assert play.dispute().phase is Phase.RULING


def test_nothing_moves_after_a_dispute_is_settled(play: Play) -> None:
    play.post()
    play.contest()
    play.do("challenger", Concede, dispute=0)
    assert play.refused("challenger", Concede, dispute=0) == "settled"
    assert play.refused("bystander", Timeout, dispute=0) == "settled"
    assert play.refused("referee", Rule, dispute=0, fault=Fault.PROVER, reason=REASON) == "settled"


def test_a_second_dispute_over_a_slashed_claim_is_dismissed_and_its_challenger_made_whole(play: Play) -> None:
    play.post()
    play.contest()
    play.contest("bystander")
    assert play.refused("bystander", Dismiss, dispute=1) == "open"
    play.do("prover", Concede, dispute=0)
    assert play.refused("bystander", Timeout, dispute=1) == "moot"
    play.do("treasury", Dismiss, dispute=1)
    assert play.owed("bystander") == play.rules.challenger_bond + play.rules.deposit


def test_a_committee_is_drawn_votes_and_its_finding_takes_effect(play: Play) -> None:
    play.enlist_all()
    play.post()
    play.contest()
    play.bisect()
    assert play.refused("bystander", Convene, dispute=0) == "early"
    convened(play)
    drawn = play.drawn()
    assert len(set(drawn)) == 3
    outsider = next(name for name in MEMBERS if name not in drawn)
    assert play.refused(outsider, Vote, dispute=0, commitment=play.commitment(outsider, Fault.PROVER)) == "actor"
    for name in drawn:
        play.do(name, Vote, dispute=0, commitment=play.commitment(name, Fault.PROVER))
    assert play.refused(drawn[0], Disclose, dispute=0, vote=Fault.NOBODY, salt=SALT) == "commitment"
    assert play.refused("bystander", Tally, dispute=0) == "early"
    for name in drawn:
        play.do(name, Disclose, dispute=0, vote=Fault.PROVER, salt=SALT)
    play.do("bystander", Tally, dispute=0)
    assert play.refused("bystander", Settle, dispute=0) == "early"
    play.world.advance(play.rules.appeal_window)
    play.do("bystander", Settle, dispute=0)
    assert play.dispute().fault is Fault.PROVER
    assert [play.owed(name) for name in drawn] == [play.rules.vote_fee] * 3


def convened(play: Play) -> None:
    play.do("referee", Convene, dispute=0)
    play.do("bystander", Draw, dispute=0, nonce="0d" * 32)


def test_an_appeal_draws_a_larger_committee_and_the_absent_are_fined(play: Play) -> None:
    play.enlist_all()
    play.post()
    play.contest()
    play.bisect()
    convened(play)
    play.world.advance(play.rules.vote_window + play.rules.reveal_window)
    play.do("bystander", Tally, dispute=0)
    assert play.dispute().fault is Fault.NOBODY
    price = play.rules.appeal_bond + 7 * play.rules.vote_fee
    assert play.refused("challenger", Appeal, dispute=0, value=price) == "pool"
    assert play.refused("challenger", Appeal, dispute=0, value=price - 1) == "value"
    play.world.advance(play.rules.appeal_window)
    play.do("bystander", Settle, dispute=0)
    assert play.owed("treasury") == 2 * 3 * play.rules.vote_fee
    assert play.owed("challenger") == play.rules.challenger_bond


def test_a_planted_case_costs_the_members_who_voted_against_its_answer_their_stake(play: Play) -> None:
    play.enlist_all()
    play.post(seal=seal(play.party("prover"), Fault.CHALLENGER, SALT))
    play.contest()
    play.bisect()
    convened(play)
    liar, *others = play.drawn()
    votes = {liar: Fault.PROVER} | dict.fromkeys(others, Fault.CHALLENGER)
    for name, vote in votes.items():
        play.do(name, Vote, dispute=0, commitment=play.commitment(name, vote))
    for name, vote in votes.items():
        play.do(name, Disclose, dispute=0, vote=vote, salt=SALT)
    play.do("bystander", Tally, dispute=0)
    play.world.advance(play.rules.appeal_window)
    play.do("bystander", Settle, dispute=0)
    assert play.refused("planter", Unseal, dispute=0, answer=Fault.PROVER, salt=SALT) == "seal"
    state = play.do("planter", Unseal, dispute=0, answer=Fault.CHALLENGER, salt=SALT)
    stakes = {name: state.members[play.party(name)].stake for name in play.drawn()}
    assert stakes == {liar: 0} | dict.fromkeys(others, play.rules.stake)


def test_members_stake_and_retire(play: Play) -> None:
    assert play.refused("bystander", Enlist, value=play.rules.stake) == "actor"
    assert play.refused(MEMBERS[0], Retire) == "actor"
    play.do(MEMBERS[0], Enlist, value=play.rules.stake)
    assert play.refused(MEMBERS[0], Enlist, value=play.rules.stake) == "enlisted"
    play.do(MEMBERS[0], Retire)
    assert play.owed(MEMBERS[0]) == play.rules.stake


def test_a_pause_stops_clocks_and_never_a_withdrawal(play: Play) -> None:
    play.post()
    play.contest()
    play.contest("bystander")
    play.do("bystander", Concede, dispute=1)
    play.world.advance(play.rules.withdrawal_delay)
    assert play.refused("prover", Pause) == "actor"
    play.do("guardian", Pause)
    assert play.refused("bystander", Timeout, dispute=0) == "paused"
    play.do("prover", Withdraw)
    play.world.advance(play.rules.clock)
    play.do("guardian", Resume)
    assert play.refused("bystander", Timeout, dispute=0) == "early"
    assert play.refused("guardian", Pause) == "rest"
    play.partition()


def test_a_protest_asks_for_a_ruling_at_once(play: Play) -> None:
    play.post()
    play.contest()
    play.partition()
    play.do("challenger", Protest, dispute=0, ground="structure")
    play.do("referee", Rule, dispute=0, fault=Fault.NOBODY, reason=REASON)
    assert play.owed("challenger") == play.rules.challenger_bond + play.rules.deposit


def test_nobody_moves_for_another(play: Play) -> None:
    play.post()
    play.contest()
    move = play.make("challenger", Concede, dispute=0)
    with pytest.raises(RuleError):
        play.world.connect("prover").submit(move)
    assert play.dispute().fault is None
    play.world.connect("challenger").submit(move)
    assert play.dispute().fault is Fault.CHALLENGER
