"""The two sides move by move, driven by Hypothesis, which shrinks a difference to the few moves that make it."""

from __future__ import annotations

from typing import ClassVar

import pytest
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from tallystick.disputes.game.state import broken
from tests.disputes.coordinators.ethereum.agreement import Expected, Tally, difference, end
from tests.disputes.coordinators.ethereum.picture import picture
from tests.disputes.coordinators.ethereum.side import ContractSide, Step
from tests.disputes.coordinators.ethereum.walk import KINDS, Walk
from tests.support.ethereum_node import LocalNode

SEEDS = st.integers(0, 2**32)


class Sides(RuleBasedStateMachine):
    """A game in Python and one in a contract, which hear the same moves."""

    node: ClassVar[LocalNode]
    tally: ClassVar[Tally]

    @initialize(seed=SEEDS)
    def begin(self, seed: int) -> None:
        self.seed, self.walk = seed, Walk(seed)
        self.contract = ContractSide(self.node, self.walk.rules)

    @rule(seconds=st.integers(0, 30))
    def wait(self, seconds: int) -> None:
        self.walk.now += seconds

    @rule(seed=SEEDS)
    def wait_for_a_boundary(self, seed: int) -> None:
        self.walk.rng.seed(seed)
        self.walk.pass_to_a_boundary()

    @rule(kind=st.sampled_from(KINDS), seed=SEEDS, is_spoiled=st.sampled_from([False, False, False, True]))
    def move(self, kind: str, seed: int, is_spoiled: bool) -> None:
        self.walk.rng.seed(seed)
        step = self.walk.step_of(kind, is_spoiled)
        if step is not None:
            self._both_take(step)

    @rule(count=st.integers(1, 30), seed=SEEDS)
    def walk_on(self, count: int, seed: int) -> None:
        self.walk.rng.seed(seed)
        for _ in range(count):
            self._both_take(self.walk.step())

    def teardown(self) -> None:
        if hasattr(self, "contract"):
            end(self.contract, self.walk, self.tally, self.seed)

    def _both_take(self, step: Step) -> None:
        code = self.walk.take(step)
        assert list(broken(self.walk.state)) == []
        shown = picture(self.walk.state, self.walk.moves, step.claim, step.dispute, self.walk.parties)
        [outcome] = self.contract.play([step], self.walk.parties)
        assert difference(Expected(step, code, shown), outcome) is None
        (self.tally.refused if code else self.tally.accepted)[code or step.move.kind] += 1


def test_any_sequence_of_moves_agrees(free_anvil: LocalNode) -> None:
    Sides.node, Sides.tally = free_anvil, Tally()
    run_state_machine_as_test(
        Sides,
        settings=settings(
            max_examples=12,
            stateful_step_count=30,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    assert Sides.tally.moves > 400
    assert len(Sides.tally.accepted) > 18


@pytest.mark.slow
def test_many_sequences_of_moves_agree(free_anvil: LocalNode) -> None:
    Sides.node, Sides.tally = free_anvil, Tally()
    run_state_machine_as_test(
        Sides, settings=settings(max_examples=300, stateful_step_count=60, deadline=None, database=None)
    )
