"""Reorganised chains: whatever block is undone, each move is made once, in time, and the dispute ends as it would."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tallystick.disputes.coordinators.ethereum.client import ReorganisedError
from tallystick.disputes.game.moves import Move, Pause, value_of
from tallystick.disputes.game.state import State, Status
from tallystick.verdicts.verdict import Fault
from tests.disputes.coordinators.ethereum.chain_game import SMALL, ChainGame, is_settled
from tests.disputes.coordinators.ethereum.chains import KEYS, QUICK, Chain, claim, contest, running_chain
from tests.support.toy_game import CountingJudge

RULED = ["post", "contest", "partition", "choose", "descend", "partition", "choose", "partition", "choose", "reveal"]
VOTED = ["convene", "draw", *["vote"] * 3, *["disclose"] * 3, "tally", "settle"]


@pytest.fixture
def chain(tmp_path: Path) -> Iterator[Chain]:
    with running_chain(tmp_path) as found:
        yield found


def kinds(chain: Chain) -> list[str]:
    return [entry.move.kind for entry in chain.anew("treasury").entries()]


def check_each_move_was_made_once(chain: Chain) -> None:
    """As many transactions stand in blocks as moves were made, and none was refused."""
    made = Counter(entry.move.actor for entry in chain.anew("treasury").entries())
    for role in ("prover", "challenger", "referee"):
        deployed = role == "prover"
        assert chain.transactions(role) == made[KEYS[role].address] + deployed


def check_the_bond_moved(state: State, chain: Chain) -> None:
    """The cheating prover lost its bond; all money is accounted for, on chain as in the game."""
    assert state.claims[0].status is Status.SLASHED
    assert [dispute.fault for dispute in state.disputes] == [Fault.PROVER]
    paid = sum(value_of(entry.move) for entry in chain.anew("treasury").entries())
    held = int(chain.node.ask("eth_getBalance", chain.place.contract, "latest"), 16)
    assert held == state.balance * 10**9 == (paid - state.paid_out) * 10**9


def play_with_reorgs(tmp_path: Path, depth: int) -> None:
    """A whole dispute in which the last `depth` blocks are undone after each move."""
    undone = []

    def reorganise(move: Move) -> None:
        chain.node.ask("anvil_reorg", depth, [])
        undone.append(move.kind)

    with running_chain(tmp_path, settings=replace(QUICK, depth=depth + 1)) as chain:
        game = ChainGame(chain, after=reorganise)
        state = game.play(game.prover(SMALL), game.challenger(), game.referee(), until=is_settled)
        assert kinds(chain) == undone == [*RULED, "rule"]
        check_the_bond_moved(state, chain)
        check_each_move_was_made_once(chain)


@pytest.mark.parametrize("depth", [1, 7, 64])
def test_a_dispute_with_a_reorganisation_after_each_move_ends_as_without(tmp_path: Path, depth: int) -> None:
    play_with_reorgs(tmp_path, depth)


@pytest.mark.slow
@pytest.mark.parametrize("depth", [2, 3, 4, 5, 6])
def test_a_dispute_with_a_reorganisation_of_any_depth_after_each_move_ends_as_without(
    tmp_path: Path, depth: int
) -> None:
    play_with_reorgs(tmp_path, depth)


def test_a_committee_votes_through_reorganisations(tmp_path: Path) -> None:
    """Each move of the committee is undone once; the draw may fall on others after that, as another block's hash."""

    def reorganise(move: Move) -> None:
        chain.node.ask("anvil_reorg", 2, [])

    with running_chain(tmp_path, settings=replace(QUICK, depth=3), referee=None) as chain:
        game = ChainGame(chain, after=reorganise)
        players = [game.prover(SMALL), game.challenger(), *game.members(3)]
        state = game.play(*players, until=is_settled)
        assert [kind for kind in kinds(chain) if kind not in ("enlist", "withdraw")] == [*RULED, *VOTED]
        check_the_bond_moved(state, chain)
        check_each_move_was_made_once(chain)


def test_without_a_reorganisation_the_same_moves_are_made(chain: Chain) -> None:
    game = ChainGame(chain)
    state = game.play(game.prover(SMALL), game.challenger(), game.referee(), until=is_settled)
    assert kinds(chain) == [*RULED, "rule"]
    check_the_bond_moved(state, chain)
    check_each_move_was_made_once(chain)


def test_a_move_that_the_rules_refuse_after_a_reorganisation_is_dropped(
    chain: Chain, caplog: pytest.LogCaptureFixture
) -> None:
    chain.at("prover").submit(claim(chain))
    chain.final()
    before = chain.node.snapshot()
    chain.at("challenger").submit(contest(chain))
    chain.node.revert(before)
    chain.at("guardian").submit(Pause(actor=KEYS["guardian"].address))
    with caplog.at_level(logging.WARNING):
        chain.at("challenger").entries()
    assert "given up: the contract refuses this move: paused" in caplog.text
    chain.final()
    assert kinds(chain) == ["post", "pause"]
    assert chain.pool() == []
    assert chain.transactions("challenger") == 0


def test_a_move_that_is_still_allowed_after_a_reorganisation_is_made_again(chain: Chain) -> None:
    chain.at("prover").submit(claim(chain))
    chain.final()
    before = chain.node.snapshot()
    chain.at("challenger").submit(contest(chain))
    chain.node.revert(before)
    chain.at("challenger").entries()
    chain.final()
    assert kinds(chain) == ["post", "contest"]


def test_nothing_is_handed_out_that_a_reorganisation_undoes(tmp_path: Path) -> None:
    with running_chain(tmp_path, settings=replace(QUICK, depth=8)) as chain:
        chain.at("prover").submit(claim(chain))
        chain.node.mine(6)
        assert chain.at("challenger").entries() == ()
        chain.node.ask("anvil_reorg", 7, [])
        chain.node.mine(8)
        assert chain.at("challenger").entries() == ()
        chain.at("prover").entries()
        chain.final()
        assert [entry.move.kind for entry in chain.at("challenger").entries()] == ["post"]


def test_a_chain_that_undoes_final_blocks_is_noticed_and_read_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with running_chain(tmp_path, settings=replace(QUICK, depth=2)) as chain:
        chain.node.mine(8)
        chain.at("prover").submit(claim(chain))
        chain.node.mine(2)
        reader = chain.at("challenger")
        assert [entry.move.kind for entry in reader.entries()] == ["post"]
        chain.node.ask("anvil_reorg", 7, [])
        chain.node.mine(1)
        with pytest.raises(ReorganisedError):
            reader.entries(1)
        assert reader.entries() == ()
        assert reader.entries(0) == ()
        assert "taken for final, is another one now" in caplog.text
        chain.at("prover").entries()  # its transaction was not closed yet: it is sent again
        chain.final()
        assert [entry.move.kind for entry in reader.entries(0)] == ["post"]


def test_a_dispute_that_nobody_can_decide_ends_through_reorganisations(tmp_path: Path) -> None:
    """The referee cannot tell and convenes; nobody has enlisted, so that nothing is decided, and bonds go back."""

    def reorganise(move: Move) -> None:
        chain.node.ask("anvil_reorg", 1, [])

    with running_chain(tmp_path, settings=replace(QUICK, depth=2)) as chain:
        game = ChainGame(chain, after=reorganise)
        blind = CountingJudge(is_blind=True)
        state = game.play(game.prover(SMALL), game.challenger(), game.referee(blind), until=is_settled)
        assert state.disputes[0].fault is Fault.NOBODY
        assert kinds(chain) == [*RULED, "convene"]
        check_each_move_was_made_once(chain)
