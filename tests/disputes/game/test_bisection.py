"""The bisection: from a run to one operator, under clocks that a last second does not empty."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tallystick.core.digests import LeafHashes, node_hash, prove_inclusion
from tallystick.disputes.game import moves
from tallystick.disputes.game.moves import Cut
from tallystick.disputes.game.state import LEAVES_MAX, Phase
from tallystick.verdicts.verdict import Fault
from tests.disputes.playing import CHALLENGER, OTHER, PROVER, RULES, WRONG, Play
from tests.support.simulator.limits import bisection_moves
from tests.support.simulator.trees import NOTHING, Run

SIZES = [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65]


@pytest.mark.parametrize("ways", [2, 3, 4, 16, 32])
@pytest.mark.parametrize("size", SIZES)
def test_a_fault_anywhere_is_found_in_as_many_rounds_as_the_logarithm_says(size: int, ways: int) -> None:
    for faulty in sorted({0, size // 2, size - 1}):
        run = Run(1, steps=size, width=1, levels=1, fault=(faulty, 0))
        play = Play(run=run, ways=ways).claimed().contested().until(Phase.RULING)
        assert (play.dispute.low, play.dispute.level) == (faulty, 1)
        assert play.dispute.leaf == run.top().leaves[faulty].hex()
        assert play.dispute.turn <= bisection_moves(play.rules, (size,))
        assert play.dispute.turn <= 2 * math.ceil(math.log(size, ways) - 1e-9) + 1


@pytest.mark.parametrize(("steps", "width"), [(1, 1), (1, 9), (9, 1), (33, 65), (64, 31)])
def test_a_run_is_halved_in_time_and_then_inside_the_step(steps: int, width: int) -> None:
    run = Run(2, steps=steps, width=width, fault=(steps // 2, width // 3))
    play = Play(run=run).claimed().contested().until(Phase.RULING)
    assert (play.dispute.level, play.dispute.low) == (1, width // 3)
    assert play.dispute.root == run.below(steps // 2).root
    assert play.dispute.turn <= bisection_moves(play.rules, (steps, width))


def test_a_tree_of_the_largest_size_is_cut_to_a_leaf() -> None:
    """All leaves alike, so that the whole tree is known from 33 hashes: proofs of maximal depth."""
    subtrees = [bytes.fromhex("11" * 32)]
    for _ in range(32):
        subtrees.append(node_hash(subtrees[-1], subtrees[-1]))
    cut = Cut(leaf="11" * 32, proof=tuple(each.hex() for each in subtrees[:32]))
    play = Play(ways=2).claimed(root=subtrees[32].hex(), size=LEAVES_MAX).contested(high=LEAVES_MAX)
    for turn in range(0, 64, 2):
        play.do(moves.Partition(actor=PROVER, dispute=0, turn=turn, cuts=(cut,), data=NOTHING))
        child = (turn // 2) % 2
        play.do(moves.Choose(actor=CHALLENGER, dispute=0, turn=turn + 1, child=child))
    assert play.dispute.phase is Phase.LEAF
    assert play.dispute.low == int("01" * 16, 2)
    play.do(moves.Reveal(actor=PROVER, dispute=0, turn=64, leaf=cut.leaf, proof=cut.proof, data=NOTHING))
    assert play.dispute.turn == bisection_moves(play.rules, (LEAVES_MAX,))


# ---- proofs
@pytest.mark.parametrize(
    "spoil",
    [
        lambda cut: cut.model_copy(update={"leaf": "00" * 32}),
        lambda cut: cut.model_copy(update={"proof": cut.proof[:-1]}),
        lambda cut: cut.model_copy(update={"proof": (*cut.proof, "00" * 32)}),
        lambda cut: cut.model_copy(update={"proof": cut.proof[::-1]}),
        lambda cut: cut.model_copy(update={"proof": ()}),
        lambda cut: cut.model_copy(update={"proof": ("00" * 32,) * 64}),
    ],
    ids=["another leaf", "too short", "too long", "out of order", "empty", "sixty-four"],
)
@pytest.mark.parametrize("phase", [Phase.PARTITION, Phase.LEAF], ids=str)
def test_a_proof_that_proves_something_else_is_refused_and_the_clock_goes_on(spoil: object, phase: Phase) -> None:
    play = Play().opened().until(phase)
    move = play.answer()
    if phase is Phase.PARTITION:
        bad = move.model_copy(update={"cuts": (*move.cuts[:-1], spoil(move.cuts[-1]))})  # type: ignore[operator]
    else:
        cut = spoil(Cut(leaf=move.leaf, proof=move.proof))  # type: ignore[operator]
        bad = move.model_copy(update={"leaf": cut.leaf, "proof": cut.proof})
    assert play.wait(100).refused(bad) == "proof"
    assert play.left() == (RULES.clock if phase is Phase.PARTITION else play.dispute.clocks.prover) - 100
    assert play.refused(move) == "accepted"


def test_the_right_leaf_at_another_place_is_refused() -> None:
    play = Play().opened()
    shifted = tuple(play.run.top().cut(place) for place in (2, 4, 6))
    assert play.refused(play.answer().model_copy(update={"cuts": shifted})) == "proof"
    assert play.refused(play.answer()) == "accepted"


def test_the_leaf_of_another_tree_is_refused() -> None:
    play = Play().opened()
    other = replace(WRONG, name=1).top()
    assert play.refused(play.answer().model_copy(update={"cuts": tuple(other.cut(p) for p in (1, 3, 5))})) == "proof"


def test_a_descent_has_to_open_the_record_that_is_left_and_no_other() -> None:
    play = Play().opened().until(Phase.LEAF)
    other = play.run.top().cut(4)
    move = play.answer()
    assert play.refused(move.model_copy(update={"leaf": other.leaf, "proof": other.proof})) == "proof"
    assert play.refused(move) == "accepted"


def test_proofs_are_those_of_the_tree_that_was_descended_into() -> None:
    play = Play().opened().until(Phase.LEAF)
    play.do(play.answer())
    assert (play.dispute.level, play.dispute.low, play.dispute.high) == (1, 0, 7)
    above = play.run.top()
    proof = tuple(each.hex() for each in prove_inclusion(LeafHashes(above.leaves), 1, 9))
    foreign = Cut(leaf=above.leaves[1].hex(), proof=proof)
    move = play.answer()
    assert play.refused(move.model_copy(update={"cuts": (foreign, *move.cuts[1:])})) == "proof"
    assert play.refused(move) == "accepted"


# ---- clocks (D-04, D-05, D-10)
def test_thinking_is_charged_to_who_thinks() -> None:
    play = Play().opened().wait(1000).do(Play().opened().answer())
    clocks = play.dispute.clocks
    assert (clocks.prover, clocks.challenger, clocks.since) == (RULES.clock - 1000, RULES.clock, play.now)
    play.wait(500).do(play.answer())
    assert (play.dispute.clocks.prover, play.dispute.clocks.challenger) == (RULES.clock - 1000, RULES.clock - 500)


@pytest.mark.parametrize("phase", [Phase.PARTITION, Phase.CHOOSE, Phase.LEAF], ids=str)
def test_a_move_in_the_last_second_counts_and_gives_both_the_extension(phase: Phase) -> None:
    play = Play().opened().until(phase)
    play.wait(play.left() - 1)
    assert play.refused(moves.Timeout(actor=OTHER, dispute=0)) == "early"
    play.do(play.answer())
    clocks = play.dispute.clocks
    assert min(clocks.prover, clocks.challenger) >= RULES.extension
    assert (clocks.challenger if phase is Phase.CHOOSE else clocks.prover) == RULES.extension
    assert play.left() >= RULES.extension


@pytest.mark.parametrize("phase", [Phase.PARTITION, Phase.CHOOSE, Phase.LEAF], ids=str)
def test_when_the_clock_has_run_out_a_move_is_refused_and_the_timeout_is_taken(phase: Phase) -> None:
    play = Play().opened().until(phase)
    play.wait(play.left())
    assert play.refused(play.answer()) == "late"
    loser = Fault.CHALLENGER if phase is Phase.CHOOSE else Fault.PROVER
    assert play.do(moves.Timeout(actor=OTHER, dispute=0)).dispute.fault is loser


def test_a_party_can_use_its_last_second_every_time_and_still_comes_to_an_end() -> None:
    play = Play(run=Run(0, 65, 33, fault=(40, 20)), ways=2).claimed().contested()
    began = play.now
    while play.dispute.phase is not Phase.RULING:
        play.wait(play.left() - 1).do(play.answer())
    count = bisection_moves(play.rules, (65, 33))
    assert play.now - began <= 2 * RULES.clock + count * RULES.extension


def test_an_extension_longer_than_the_clock_is_had_from_the_first_move_on() -> None:
    play = Play(clock=10, extension=100).claimed().contested().wait(9)
    play.do(play.answer())
    assert (play.dispute.clocks.prover, play.dispute.clocks.challenger) == (100, 100)


# ---- other ends
@pytest.mark.parametrize("ground", ["structure", "budget"])
def test_a_protest_goes_to_ruling_with_its_ground(ground: str) -> None:
    play = Play().opened().until(Phase.CHOOSE).wait(5)
    turn = play.dispute.turn
    play.do(moves.Protest(actor=CHALLENGER, dispute=0, turn=turn, ground=ground))  # type: ignore[arg-type]
    assert (play.dispute.phase, play.dispute.ground) == (Phase.RULING, ground)
    assert play.dispute.deadline == play.time + RULES.referee_window


def test_a_record_without_operators_is_revealed_instead_of_descended() -> None:
    play = Play().opened().until(Phase.LEAF)
    cut = play.run.top().cut(5)
    who = {"actor": PROVER, "dispute": 0, "turn": play.dispute.turn}
    play.do(moves.Reveal(**who, leaf=cut.leaf, proof=cut.proof, data=NOTHING))
    assert (play.dispute.phase, play.dispute.level, play.dispute.ground) == (Phase.RULING, 2, "leaf")


def test_a_move_that_is_repeated_is_refused() -> None:
    play = Play().opened()
    move = play.answer()
    play.do(move)
    assert play.refused(move) == "phase"
    play.do(play.answer())
    assert play.dispute.phase is Phase.PARTITION
    assert play.refused(move) == "turn"


@pytest.mark.parametrize(("actor", "fault"), [(PROVER, Fault.PROVER), (CHALLENGER, Fault.CHALLENGER)])
@pytest.mark.parametrize("phase", [Phase.PARTITION, Phase.CHOOSE, Phase.LEAF, Phase.RULING], ids=str)
def test_whoever_gives_up_loses_whenever_it_does(actor: str, fault: Fault, phase: Phase) -> None:
    play = Play().opened().until(phase).do(moves.Concede(actor=actor, dispute=0))
    assert play.dispute.fault is fault
