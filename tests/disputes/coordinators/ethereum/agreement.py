"""The same moves through the game in Python and through the contract: refusals, states and money must be equal."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice

from tallystick.disputes.game.state import broken
from tests.disputes.coordinators.ethereum.picture import picture
from tests.disputes.coordinators.ethereum.side import ContractSide, Outcome, Step
from tests.disputes.coordinators.ethereum.walk import Walk
from tests.support.ethereum_node import LocalNode

BATCH = 50
MOVES_A_GAME = 700
MOVES_TO_END = 40
"""More moves than this per claim, dispute and party, and a game does not end."""


@dataclass
class Tally:
    """How many moves were made, which were accepted, and by which codes the others were refused."""

    accepted: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    games: int = 0

    @property
    def moves(self) -> int:
        """All of them."""
        return self.accepted.total() + self.refused.total()


def spread(moves: int, first: int = 0) -> range:
    """The seeds of as many games as it takes to make so many moves."""
    return range(first, first + -(-moves // MOVES_A_GAME))


@dataclass(frozen=True)
class Expected:
    """What Python says about a step: the refusal's code, and the digest of the picture after it."""

    step: Step
    code: str | None
    picture: bytes


def play_game(node: LocalNode, seed: int, moves: int, tally: Tally) -> None:
    """Walk through one game on both sides and to its end; fails at the first difference."""
    walk = Walk(seed)
    contract = ContractSide(node, walk.rules)
    for start in range(0, moves, BATCH):
        steps = (walk.step() for _ in range(min(BATCH, moves - start)))
        _agree(contract, walk, steps, tally, seed)
    end(contract, walk, tally, seed)
    tally.games += 1


def end(contract: ContractSide, walk: Walk, tally: Tally, seed: int) -> None:
    """Everything ends by moves that anybody can make, and all the money goes out to whom it belongs."""
    state = walk.state
    most = MOVES_TO_END * (len(state.claims) + len(state.disputes) + len(walk.parties))
    _agree(contract, walk, islice(walk.ending(), most), tally, seed)
    assert walk.state.balance == 0, f"seed {seed}: after {most} moves the game is not over"
    for number, dispute in enumerate(walk.state.disputes):
        shown = contract.picture(dispute.claim, number, walk.parties)
        assert shown == picture(walk.state, walk.moves, dispute.claim, number, walk.parties), f"seed {seed}: the end"


def _agree(contract: ContractSide, walk: Walk, steps: Iterable[Step], tally: Tally, seed: int) -> None:
    expected = [_taken(walk, step) for step in steps]
    outcomes = contract.play([each.step for each in expected], walk.parties)
    for number, (wanted, found) in enumerate(zip(expected, outcomes, strict=True)):
        problem = difference(wanted, found)
        assert not problem, f"seed {seed}, {number} of batch, {wanted.step.move!r} at {wanted.step.now}: {problem}"
        (tally.refused if wanted.code else tally.accepted)[wanted.code or wanted.step.move.kind] += 1


def _taken(walk: Walk, step: Step) -> Expected:
    code = walk.take(step)
    assert not list(broken(walk.state)), f"after {step.move!r}: {list(broken(walk.state))}"
    return Expected(step, code, picture(walk.state, walk.moves, step.claim, step.dispute, walk.parties))


def difference(wanted: Expected, found: Outcome) -> str | None:
    """What the contract did otherwise than Python."""
    if found.code != wanted.code:
        return f"refused by the contract with {found.code}, by Python with {wanted.code}"
    if wanted.code is None and found.logged != wanted.step.move:
        return f"the log says {found.logged!r}"
    if found.state != hashlib.sha256(wanted.picture).digest():
        return "another state"
    return None
