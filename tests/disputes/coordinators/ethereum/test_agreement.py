"""The contract and the game in Python agree: on random walks, at their ends, and on the command's longer record."""

from __future__ import annotations

import json
from collections import Counter
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tallystick.disputes.coordinators.ethereum.encoding import ARTEFACT
from tallystick.disputes.game.game import TRANSITIONS
from tests.disputes.coordinators.ethereum import agreement
from tests.disputes.coordinators.ethereum.agreement import Tally, play_game, spread
from tests.disputes.coordinators.ethereum.walk import Walk
from tests.support.ethereum_node import LocalNode

RECORD = Path(__file__).parents[4] / "docs" / "data" / "agreement.json"
SEEDS = range(7_000, 7_008)
MOVES = 220


def test_random_walks_agree(free_anvil: LocalNode) -> None:
    tally = play_games(free_anvil)
    assert tally.moves > len(SEEDS) * MOVES
    assert tally.games == len(SEEDS)
    assert len(tally.accepted) > 20
    assert len(tally.refused) > 15


@pytest.mark.parametrize(
    "change",
    [{"challenger_bond": 7}, {"reward": 17}, {"extension": 61}, {"ways": 5}, {"withdrawal_delay": 9}],
    ids=["bond", "reward", "extension", "ways", "delay"],
)
def test_a_contract_with_another_rule_is_noticed(
    free_anvil: LocalNode, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:
    real = agreement.ContractSide
    monkeypatch.setattr(agreement, "ContractSide", lambda node, rules: real(node, rules.model_copy(update=change)))
    with pytest.raises(AssertionError, match=r"refused by the contract|another state"):
        play_games(free_anvil)


def test_a_seed_is_one_walk() -> None:
    assert taken(Walk(5), 60) == taken(Walk(5), 60) != taken(Walk(6), 60)


def test_the_record_is_about_this_contract() -> None:
    """`python -m research.agreement_run` writes it; the contract that was played is the one that is deployed."""
    record, artefact = json.loads(RECORD.read_bytes()), json.loads(ARTEFACT.read_bytes())
    assert record["contract"] == sha256(bytes.fromhex(artefact["bytecode"])).hexdigest()
    assert record["moves"] == sum(record["accepted"].values()) + sum(record["refused"].values()) >= 100_000
    assert record["differences"] == 0
    assert record["accepted"].keys() == TRANSITIONS.keys()


@pytest.mark.slow
def test_a_hundred_thousand_moves_agree(free_anvil: LocalNode) -> None:
    tally = Tally()
    for seed in spread(100_000):
        play_game(free_anvil, seed, agreement.MOVES_A_GAME, tally)
    assert tally.moves >= 100_000
    assert tally.accepted.keys() == TRANSITIONS.keys()


def play_games(node: LocalNode) -> Tally:
    tally = Tally()
    for seed in SEEDS:
        play_game(node, seed, MOVES, tally)
    return tally


def taken(walk: Walk, count: int) -> Counter[str]:
    found: Counter[str] = Counter()
    for _ in range(count):
        step = walk.step()
        found[f"{step.now} {step.move!r} {walk.take(step)}"] += 1
    return found
