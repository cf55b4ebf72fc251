"""The table of moves, read both ways: each refusal is got and has a twin, and each check is needed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings, strategies as st

from tallystick.disputes.coordinators.coordinator import replayed
from tallystick.disputes.game import moves
from tallystick.disputes.game.game import DISPUTE_MOVES, TRANSITIONS, Who, next_moves
from tallystick.disputes.game.moves import Move
from tallystick.disputes.game.state import Phase, cut_places
from tallystick.verdicts.verdict import Fault
from tests.disputes.playing import (
    BEACON,
    CHALLENGER,
    GUARDIAN,
    MEMBERS,
    NONCE,
    OTHER,
    PLANTER,
    PROVER,
    REFEREE,
    RULES,
    SALT,
    Play,
)
from tests.disputes.refusals import CASES, Case, planted, revealing, slashed_twice_disputed
from tests.disputes.simulator.mutants import Check, checks, without
from tests.support.simulator.trees import NOTHING, Run
from tests.support.simulator.world import World

NAMES = [case.name for case in CASES]


@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_a_move_against_a_rule_is_refused_by_its_code_and_its_twin_is_accepted(case: Case) -> None:
    play, move = case.refused()
    assert play.refused(move) == case.check.code
    play, move = case.twin()
    assert play.refused(move) == "accepted"


@pytest.mark.parametrize("check", checks(), ids=str)
def test_each_check_is_needed(check: Check) -> None:
    """Without it, some move that it refuses is accepted, refused for another reason, or does not make sense."""
    cases = [case for case in CASES if case.check == check]
    assert cases
    for case in cases:
        play, move = case.refused()
        with without(check):
            assert _outcome(play, move) != check.code


def _outcome(play: Play, move: Move) -> str:
    try:
        return play.refused(move)
    except (LookupError, ValueError, AssertionError) as error:
        return repr(error)


def test_no_two_cases_have_one_name() -> None:
    assert len(set(NAMES)) == len(NAMES)
    assert len(TRANSITIONS) == 27


# ---- the table itself
REACHED: dict[Phase, Callable[[], Play]] = {
    Phase.PARTITION: lambda: Play().opened(),
    Phase.CHOOSE: lambda: Play().opened().until(Phase.CHOOSE),
    Phase.LEAF: lambda: Play().opened().until(Phase.LEAF),
    Phase.RULING: lambda: Play().ruling(),
    Phase.DRAWING: lambda: Play().drawing(),
    Phase.COMMITTING: lambda: Play().committing(),
    Phase.REVEALING: revealing,
    Phase.APPEALABLE: lambda: Play().committing().counted(Fault.PROVER),
    Phase.SETTLED: lambda: planted(Fault.CHALLENGER),
}
DUE = {"timeout", "tally", "settle"}


def right_move(play: Play, kind: str) -> Move:
    """The move of this kind that would be accepted if there is one in this phase."""
    dispute, first = play.dispute, (play.sitting[0] if play.dispute.rounds else MEMBERS[0])
    who = {"dispute": 0}
    if kind in ("partition", "choose", "descend", "reveal", "protest"):
        return _bisecting(play, kind)
    made: dict[str, Callable[[], Move]] = {
        "pinpoint": lambda: moves.Pinpoint(actor=CHALLENGER, result=0, element=0, **who),
        "concede": lambda: moves.Concede(actor=CHALLENGER, **who),
        "timeout": lambda: moves.Timeout(actor=OTHER, **who),
        "rule": lambda: moves.Rule(actor=REFEREE, fault=Fault.NOBODY, reason=NOTHING, **who),
        "prove": lambda: moves.Prove(actor=OTHER, evidence=play.run.below(5).evidence(3), **who),
        "convene": lambda: moves.Convene(actor=REFEREE, **who),
        "draw": lambda: moves.Draw(actor=BEACON, nonce=NONCE, **who),
        "vote": lambda: moves.Vote(actor=first, commitment=NONCE, **who),
        "disclose": lambda: play.disclose(first, Fault.PROVER),
        "tally": lambda: moves.Tally(actor=OTHER, **who),
        "appeal": lambda: moves.Appeal(actor=PROVER, value=play.rules.appeal_bond + 7 * play.rules.vote_fee, **who),
        "settle": lambda: moves.Settle(actor=OTHER, **who),
        "unseal": lambda: moves.Unseal(actor=PLANTER, answer=Fault.CHALLENGER, salt=SALT, **who),
        "dismiss": lambda: moves.Dismiss(actor=OTHER, **who),
    }
    if kind in DUE and dispute.phase in (Phase.PARTITION, Phase.CHOOSE, Phase.LEAF):
        play.wait(play.left())
    elif kind in DUE:
        play.wait(dispute.deadline + play.rules.reveal_window - play.now)
    elif kind == "disclose" and dispute.phase is Phase.COMMITTING:
        play.do(play.vote(first, Fault.PROVER)).wait(dispute.deadline - play.now)
    return made[kind]()


def _bisecting(play: Play, kind: str) -> Move:
    who = {"dispute": 0, "turn": play.dispute.turn}
    cut = play.run.top().cut(5)
    opened = {"leaf": cut.leaf, "proof": cut.proof, "data": NOTHING}
    made: dict[str, Callable[[], Move]] = {
        "partition": lambda: moves.Partition(
            actor=PROVER, cuts=tuple(play.run.top().cut(place) for place in cut_places(0, 9, 4)), data=NOTHING, **who
        ),
        "choose": lambda: moves.Choose(actor=CHALLENGER, child=0, **who),
        "protest": lambda: moves.Protest(actor=CHALLENGER, **who),
        "descend": lambda: moves.Descend(actor=PROVER, root=NONCE, size=3, **opened, **who),
        "reveal": lambda: moves.Reveal(actor=PROVER, **opened, **who),
    }
    return made[kind]()


@pytest.mark.parametrize("phase", REACHED, ids=str)
@pytest.mark.parametrize("kind", [*DISPUTE_MOVES, "unseal"])
def test_a_move_is_accepted_in_the_phases_of_the_table_and_in_no_other(phase: Phase, kind: str) -> None:
    play = REACHED[phase]()
    if kind == "prove":
        play.run = Run(0, steps=9, width=7, fault=(5, 3), is_edge=True)
    assert play.dispute.phase is phase
    code = play.refused(right_move(play, kind))
    if phase in TRANSITIONS[kind].phases:
        assert code == ("evidence" if kind == "prove" else "accepted")  # this run's fault is not one of an edge
    else:
        assert code == ("settled" if phase is Phase.SETTLED else "phase")


EVERYBODY = {
    "the prover": PROVER,
    "the challenger": CHALLENGER,
    "the referee": REFEREE,
    "the beacon": BEACON,
    "the planter": PLANTER,
    "the guardian": GUARDIAN,
    "a member": MEMBERS[0],
    "somebody": OTHER,
}
ALLOWED = {
    Who.ANYBODY: set(EVERYBODY),
    Who.PARTY: {"the prover", "the challenger"},
    **{who: {f"the {who.value}"} for who in Who if who not in (Who.ANYBODY, Who.PARTY)},
}


@pytest.mark.parametrize("kind", [*DISPUTE_MOVES, "unseal"])
def test_a_move_is_accepted_from_those_of_the_table_and_from_nobody_else(kind: str) -> None:
    phase = next(phase for phase in REACHED if phase in TRANSITIONS[kind].phases)
    play = REACHED[phase]()
    move = right_move(play, kind)
    if kind in ("vote", "disclose"):
        return  # who was drawn is said by the committee: `refusals`
    accepted = {
        name for name, actor in EVERYBODY.items() if play.refused(move.model_copy(update={"actor": actor})) != "actor"
    }
    expected = ALLOWED[TRANSITIONS[kind].who]
    assert accepted == ({"the prover"} if kind == "appeal" else expected)


def test_where_the_rules_name_no_beacon_anybody_brings_the_nonce() -> None:
    play = Play(beacon=None).drawing()
    assert play.refused(moves.Draw(actor=OTHER, dispute=0, nonce=NONCE)) == "accepted"


@pytest.mark.parametrize(
    ("official", "kind", "phase"), [("referee", "rule", Phase.RULING), ("planter", "unseal", Phase.SETTLED)]
)
def test_nobody_has_an_office_that_the_rules_do_not_fill(official: str, kind: str, phase: Phase) -> None:
    play = REACHED[phase]()
    move = right_move(play, kind)
    assert play.refused(move) == "accepted"
    play.state = replace(play.state, rules=play.rules.model_copy(update={official: None}))
    assert play.refused(move) == "actor"


def test_nobody_pauses_where_the_rules_name_no_guardian() -> None:
    assert Play().refused(moves.Pause(actor=GUARDIAN)) == "accepted"
    assert Play(guardian=None).refused(moves.Pause(actor=GUARDIAN)) == "actor"


@pytest.mark.parametrize("phase", [phase for phase in REACHED if phase is not Phase.SETTLED], ids=str)
@pytest.mark.parametrize("name", EVERYBODY)
def test_next_moves_offers_what_the_table_allows(phase: Phase, name: str) -> None:
    play = REACHED[phase]()
    found = [option.kind for option in next_moves(play.state, EVERYBODY[name], play.now)]
    is_timed = phase in (Phase.PARTITION, Phase.CHOOSE, Phase.LEAF)
    expected = [
        kind
        for kind, line in DISPUTE_MOVES.items()
        if phase in line.phases and name in ALLOWED[line.who] and kind != "timeout"
    ]
    assert found == expected
    late = [option.kind for option in next_moves(play.state, EVERYBODY[name], play.now + 10**8)]
    timeout = is_timed or phase is Phase.DRAWING
    assert ("timeout" in late) == timeout
    assert not (is_timed and {"partition", "choose", "protest", "descend", "reveal"} & set(late))


def test_next_moves_says_how_long_a_clock_runs_and_offers_nothing_in_a_pause() -> None:
    play = Play().opened().wait(100)
    (option, *_) = next_moves(play.state, PROVER, play.now)
    assert (option.kind, option.dispute, option.seconds) == ("partition", 0, play.rules.clock - 100)
    play.do(moves.Pause(actor=GUARDIAN))
    assert next_moves(play.state, PROVER, play.now + 5) == ()
    assert next_moves(play.state, PROVER, play.now + play.rules.pause_max)[0].seconds == play.rules.clock - 100


def test_a_moot_dispute_can_only_be_dismissed() -> None:
    play = slashed_twice_disputed()
    assert [option.kind for option in next_moves(play.state, OTHER, play.now)] == ["dismiss"]


def test_a_refused_move_changes_nothing_even_when_a_pause_has_run_out() -> None:
    play = Play().opened().do(moves.Pause(actor=GUARDIAN)).wait(RULES.pause_max)
    before = play.state
    assert play.refused(moves.Settle(actor=OTHER, dispute=0)) == "phase"
    assert play.state == before
    assert play.do(play.answer()).state.pausing.total == RULES.pause_max


@given(st.integers(0, 2**32))
@settings(max_examples=30, deadline=None)
def test_apply_depends_on_nothing_but_its_arguments(seed: int) -> None:
    world = World(f"determinism {seed}")
    world.run()
    entries = world.place.entries()
    assert replayed(world.rules, entries) == replayed(world.rules, entries) == world.place.head
