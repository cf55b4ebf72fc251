"""Whole games between programs: who is found at fault, and what everybody has earned when all money is out."""

from __future__ import annotations

from pathlib import Path

import pytest

from tallystick.disputes.game.state import Status
from tallystick.verdicts.verdict import Fault
from tests.disputes.parties.in_memory_game import (
    CHALLENGER,
    CHEAT,
    MEMBERS,
    PROVER,
    REFEREE,
    TREASURY,
    Accuser,
    InMemoryGame,
    party,
    rules,
)
from tests.support.in_memory import InMemoryCoordinator
from tests.support.toy_game import Counting, CountingJudge

HONEST, CHEATING = Counting(), Counting(cheat=CHEAT)
REWARD, BOND = 500_000, 150_000


def new_game(folder: Path, referee: str | None = REFEREE, **changes: object) -> InMemoryGame:
    return InMemoryGame(folder, InMemoryCoordinator(rules(referee=referee, **changes)))


@pytest.mark.parametrize("levels", [1, 2])
def test_a_cheating_prover_is_found_at_its_addition_and_pays(tmp_path: Path, levels: int) -> None:
    game = new_game(tmp_path)
    game.play(game.prover(CHEATING, levels), game.challenger(), game.referee())
    (dispute,) = game.coordinator.state.disputes
    place = CHEAT.operator if levels == 2 else CHEAT.step * CHEATING.width + CHEAT.operator
    assert (dispute.level, dispute.low, dispute.high, dispute.fault) == (1, place, place + 1, Fault.PROVER)
    assert game.coordinator.state.claims[0].status is Status.SLASHED
    assert (game.paid(PROVER), game.paid(CHALLENGER)) == (-2 * REWARD, REWARD)
    assert game.coordinator.state.owed[TREASURY][0].amount == REWARD
    assert game.said == []


@pytest.mark.parametrize("levels", [1, 2])
def test_an_honest_prover_keeps_its_bond_and_gets_the_accusers(tmp_path: Path, levels: int) -> None:
    game = new_game(tmp_path)
    game.play(game.prover(HONEST, levels), game.challenger(Accuser()), game.referee())
    assert game.coordinator.state.disputes[0].fault is Fault.CHALLENGER
    assert game.coordinator.state.claims[0].status is Status.FINAL
    assert (game.paid(PROVER), game.paid(CHALLENGER)) == (BOND, -BOND)


def test_an_honest_claim_is_looked_at_once_and_becomes_final(tmp_path: Path) -> None:
    game = new_game(tmp_path)
    game.play(game.prover(HONEST), game.challenger(), game.referee())
    assert [entry.move.kind for entry in game.coordinator.entries] == ["post", "finalise", "withdraw"]
    assert game.paid(PROVER) == 0


@pytest.mark.parametrize(("lying", "winner"), [(3, Fault.PROVER), (4, Fault.CHALLENGER)])
def test_the_majority_of_a_committee_decides(tmp_path: Path, lying: int, winner: Fault) -> None:
    game = new_game(tmp_path, referee=None, committee=7, appeals=0, members=MEMBERS[:7])
    game.play(game.prover(CHEATING), game.challenger(), game.beacon(), *game.members(lying, of=7))
    assert game.coordinator.state.disputes[0].fault is winner
    assert sum(vote is Fault.CHALLENGER for vote in game.coordinator.state.disputes[0].rounds[0].votes) == lying


def test_an_appeal_to_a_larger_committee_undoes_a_bribed_one(tmp_path: Path) -> None:
    """Two of the three first drawn lie, and three of all seven; the challenger appeals by itself, and is paid."""
    game = new_game(tmp_path, referee=None, members=MEMBERS[:7])
    bribed = CountingJudge(bribed=Fault.CHALLENGER)
    nonces = (f"{number:064x}" for number in range(100))
    beacon = game.beacon(nonce=lambda: next(nonces))
    members = [game.member(name, bribed if i in (1, 5, 6) else None) for i, name in enumerate(MEMBERS[:7])]
    game.play(game.prover(CHEATING), game.challenger(), beacon, *members)
    (dispute,) = game.coordinator.state.disputes
    assert [sitting.votes.count(Fault.CHALLENGER) for sitting in dispute.rounds] == [2, 3]
    assert dispute.fault is Fault.PROVER
    assert game.paid(CHALLENGER) > 0


def test_a_challenger_that_finds_itself_wrong_saves_the_fees_of_a_committee(tmp_path: Path) -> None:
    asking, conceding = (
        new_game(tmp_path / name, referee=None, members=MEMBERS[:3]) for name in ("asking", "conceding")
    )
    asking.play(asking.prover(HONEST), asking.challenger(Accuser()), asking.beacon(), *asking.members(of=3))
    judge = CountingJudge()
    conceding.play(
        conceding.prover(HONEST), conceding.challenger(Accuser(), judge), conceding.beacon(), *conceding.members(of=3)
    )
    kinds = [entry.move.kind for entry in conceding.coordinator.entries]
    assert "concede" in kinds
    assert "convene" not in kinds
    assert conceding.paid(CHALLENGER) == -BOND
    assert asking.paid(CHALLENGER) == -BOND - 3 * asking.coordinator.rules.vote_fee


def test_a_challenger_that_is_right_does_not_concede(tmp_path: Path) -> None:
    game = new_game(tmp_path, referee=None, members=MEMBERS[:3], appeals=0)
    game.play(game.prover(CHEATING), game.challenger(judge=CountingJudge()), game.beacon(), *game.members(of=3))
    assert game.coordinator.state.disputes[0].fault is Fault.PROVER


def test_where_nobody_can_tell_both_bonds_come_back(tmp_path: Path) -> None:
    game = new_game(tmp_path, referee=None, members=MEMBERS[:3], appeals=0)
    blind = [game.member(name, CountingJudge(is_blind=True)) for name in MEMBERS[:3]]
    game.play(game.prover(CHEATING), game.challenger(), game.beacon(), *blind)
    assert game.coordinator.state.disputes[0].fault is Fault.NOBODY
    assert (game.paid(PROVER), game.paid(CHALLENGER)) == (0, -3 * game.coordinator.rules.vote_fee)


def test_a_referee_that_cannot_tell_convenes_a_committee(tmp_path: Path) -> None:
    game = new_game(tmp_path, members=MEMBERS[:3], appeals=0)
    game.play(
        game.prover(CHEATING),
        game.challenger(),
        game.referee(CountingJudge(is_blind=True)),
        game.beacon(),
        *game.members(of=3),
    )
    kinds = [entry.move.kind for entry in game.coordinator.entries]
    assert "rule" not in kinds
    assert kinds.count("disclose") == 3
    assert game.coordinator.state.disputes[0].fault is Fault.PROVER


def test_many_challengers_of_one_cheat_all_play_and_one_is_paid(tmp_path: Path) -> None:
    game = new_game(tmp_path)
    names = [party(1000 + number) for number in range(8)]
    game.play(game.prover(CHEATING), game.referee(), *(game.challenger(name=name) for name in names))
    earned = [game.paid(name) for name in names]
    assert sorted(earned) == [0] * 7 + [REWARD]
    assert {dispute.fault for dispute in game.coordinator.state.disputes} == {Fault.PROVER, Fault.NOBODY}


def test_a_challenger_that_points_at_the_wrong_place_loses_to_a_cheat(tmp_path: Path) -> None:
    """It points past the fault, at an addition that is right after a wrong beginning."""

    class Late(Accuser):
        def choose(self, answered: object, children: object) -> int:
            return len(children) - 1  # type: ignore[arg-type]

    game = new_game(tmp_path)
    game.play(game.prover(CHEATING), game.challenger(Late()), game.referee())
    assert game.coordinator.state.disputes[0].fault is Fault.CHALLENGER
    assert game.coordinator.state.claims[0].status is Status.FINAL  # nobody who was right contested it
