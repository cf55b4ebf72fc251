"""What holds after every move: each invariant can be broken, and no sequence of moves breaks one."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tallystick.core.errors import RuleError
from tallystick.disputes.game import moves
from tallystick.disputes.game.game import apply, next_moves
from tallystick.disputes.game.state import Credit, Phase, State, Status, broken, held
from tallystick.verdicts.verdict import Fault
from tests.disputes.playing import (
    BEACON,
    CHALLENGER,
    GUARDIAN,
    MEMBERS,
    OTHER,
    PLANTER,
    PROVER,
    REFEREE,
    WRONG,
    Play,
)
from tests.support.simulator.laws.every_move import broken_by
from tests.support.simulator.random_moves import RandomMover
from tests.support.simulator.trees import Truth


def settled() -> State:
    return Play().opened().do(moves.Concede(actor=CHALLENGER, dispute=0)).state


def first(state: State, **changes: Any) -> State:
    """The state with its first dispute changed."""
    return replace(state, disputes=(replace(state.disputes[0], **changes), *state.disputes[1:]))


def claim(state: State, **changes: Any) -> State:
    """The state with its first claim changed."""
    return replace(state, claims=(replace(state.claims[0], **changes), *state.claims[1:]))


def member(state: State, **changes: Any) -> State:
    """The state with its first member changed."""
    name = MEMBERS[0]
    return replace(state, members={**state.members, name: replace(state.members[name], **changes)})


@pytest.mark.parametrize(
    ("spoil", "line"),
    [
        (lambda s: replace(s, balance=s.balance + 1), "the balance is"),
        (lambda s: replace(s, owed={**s.owed, OTHER: (Credit(1, 0),)}), "the balance is"),
        (lambda s: claim(s, bond=1), "claim 0 is open and holds 1"),
        (lambda s: claim(s, status=Status.SLASHED), "claim 0 is slashed and holds"),
        (lambda s: claim(s, disputes=2), "claim 0 counts 2 disputes, and 1 are open"),
        (lambda s: claim(s, status=Status.FINAL, bond=0), "claim 0 is final with open disputes"),
        (lambda s: first(s, phase=Phase.SETTLED), "dispute 0 is settled and holds"),
        (lambda s: first(s, deposit=-1), "dispute 0 stands at"),
        (lambda s: first(s, high=10), "dispute 0 stands at"),
        (lambda s: first(s, low=9), "dispute 0 stands at"),
        (lambda s: member(s, stake=-1), "has -1"),
        (lambda s: member(s, serving=1), "serves in 1"),
    ],
)
def test_a_broken_state_is_seen(spoil: Any, line: str) -> None:
    state = Play().opened().state
    assert list(broken(state)) == []
    assert any(line in each for each in broken(spoil(state)))


def test_a_settled_dispute_says_who_was_at_fault() -> None:
    state = settled()
    assert list(broken(state)) == []
    assert "dispute 0 is settled" in next(iter(broken(first(state, fault=None))))


def test_what_is_held_is_the_sum_of_bonds_stakes_and_credits() -> None:
    play = Play().opened()
    rules = play.rules
    assert held(play.state) == 16 * rules.stake + rules.prover_bond + rules.challenger_bond + rules.deposit
    play.do(moves.Concede(actor=PROVER, dispute=0))
    assert held(play.state) == play.state.balance


class Game(RuleBasedStateMachine):
    """Anybody does anything: right answers, wrong ones, and time."""

    @initialize(ways=st.sampled_from([2, 4, 16]), appeals=st.integers(0, 2), seed=st.integers(0, 2**32))
    def begin(self, ways: int, appeals: int, seed: int) -> None:
        self.play = Play(ways=ways, appeals=appeals).enlisted(MEMBERS[:9]).claimed().claimed(actor=OTHER)
        truth = Truth()
        truth.learn([WRONG.top(), *(WRONG.below(step) for step in range(9))])
        everybody = (PROVER, CHALLENGER, OTHER, REFEREE, BEACON, PLANTER, GUARDIAN, *MEMBERS[:9])
        self.mover = RandomMover(Random(seed), truth, everybody)

    def try_(self, move: moves.Move) -> bool:
        before = self.play.state
        try:
            after = apply(before, move, self.play.now)
        except RuleError:
            return False
        assert list(broken_by(before, move, self.play.now, after)) == []
        self.play.state = after
        return True

    @rule(actor=st.sampled_from([CHALLENGER, OTHER, MEMBERS[0]]), low=st.integers(0, 8), claim=st.integers(0, 1))
    def contest(self, actor: str, low: int, claim: int) -> None:
        self.try_(self.play.contest(actor=actor, claim=claim, low=low))

    @precondition(lambda self: self.play.state.disputes)
    @rule(data=st.data(), turns=st.integers(1, 6))
    def answer(self, data: st.DataObject, turns: int) -> None:
        number = data.draw(st.integers(0, len(self.play.state.disputes) - 1))
        for _ in range(turns):
            dispute = self.play.state.disputes[number]
            is_moot = self.play.state.claims[dispute.claim].status is not Status.OPEN
            if dispute.phase not in (Phase.PARTITION, Phase.CHOOSE, Phase.LEAF) or is_moot:
                return
            if self.mover.truth.tree_of(dispute) is None or not self.try_(self.play.answer(number)):
                return

    @precondition(lambda self: self.play.state.disputes)
    @rule(data=st.data(), vote=st.sampled_from(Fault), count=st.integers(1, 7))
    def votes(self, data: st.DataObject, vote: Fault, count: int) -> None:
        number = data.draw(st.integers(0, len(self.play.state.disputes) - 1))
        self.try_(moves.Convene(actor=REFEREE, dispute=number))
        self.try_(moves.Draw(actor=BEACON, dispute=number, nonce=f"{count:064x}"))
        dispute = self.play.state.disputes[number]
        for name in dispute.rounds[-1].drawn[:count] if dispute.rounds else ():
            self.try_(self.play.vote(name, vote, number))
        for name in dispute.rounds[-1].drawn[:count] if dispute.rounds else ():
            self.try_(self.play.disclose(name, vote, number))

    @rule(count=st.integers(1, 20))
    def move_at_random(self, count: int) -> None:
        for _ in range(count):
            move = self.mover.move(self.play.state)
            if isinstance(move, moves.Descend):
                continue  # into a tree that nobody has; the others go on from there
            self.try_(move)

    @rule(seconds=st.sampled_from([1, 600, 3600, 86_399, 86_400, 200_000]))
    def wait(self, seconds: int) -> None:
        self.play.wait(seconds)

    @invariant()
    def nothing_is_broken(self) -> None:
        if hasattr(self, "play"):
            assert list(broken(self.play.state)) == []

    @invariant()
    def what_is_offered_in_a_bisection_is_not_refused_for_its_phase(self) -> None:
        if not hasattr(self, "play"):
            return
        for option in next_moves(self.play.state, OTHER, self.play.now):
            if option.kind == "timeout":
                assert self.play.refused(moves.Timeout(actor=OTHER, dispute=option.dispute)) == "accepted"
            if option.kind == "dismiss":
                assert self.play.refused(moves.Dismiss(actor=OTHER, dispute=option.dispute)) == "accepted"


TestGame = Game.TestCase
TestGame.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
