"""What every coordinator has to do alike: a world with named parties and a clock, and whole disputes played in it.

A coordinator takes part by a *founder*, `found(make_rules) -> ContextManager[World]`, which sets up a fresh one and
says under which names its parties go. `FOUNDERS` names the module that holds each; a founder that cannot run on this
machine calls `pytest.skip` with the reason. A module that does not exist is skipped as well, so that a coordinator
whose libraries are not installed costs nothing.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final, Protocol

import pytest

from tallystick.core.canonical_json import encode
from tallystick.core.digests import Digest, LeafHashes, leaf_hash, prove_inclusion, tree_root
from tallystick.core.errors import RuleError
from tallystick.disputes.coordinators.coordinator import Board, Coordinator, MoveEntry, replayed
from tallystick.disputes.game import voting
from tallystick.disputes.game.moves import (
    Choose,
    Contest,
    Cut,
    Descend,
    Enlist,
    Move,
    Partition,
    Post,
    Reveal,
    value_of,
)
from tallystick.disputes.game.state import Dispute, Phase, PostedClaim, Rules, State, broken, cut_places
from tallystick.verdicts.verdict import Fault

MEMBERS: Final = tuple(f"member{number}" for number in range(5))
NAMES: Final = ("prover", "challenger", "bystander", "referee", "guardian", "planter", "treasury", *MEMBERS)
SALT: Final = "5a" * 32
NO_SEAL: Final = "00" * 32


class World(Protocol):
    """One coordinator, its parties, who all have money, and its clock."""

    def party(self, name: str) -> str:
        """How the party of this name is called by the coordinator."""
        ...

    def connect(self, name: str) -> Coordinator:
        """The coordinator as this party sees it."""
        ...

    def board(self, name: str) -> Board:
        """The board as this party sees it."""
        ...

    def advance(self, seconds: int) -> None:
        """Let at least so much time pass; a chain adds a few seconds for its blocks."""
        ...


MakeRules = Callable[[Callable[[str], str]], Rules]
Founder = Callable[[MakeRules], AbstractContextManager[World]]

FOUNDERS: Final = {
    "reference": "tests.disputes.coordinators.reference",
    "sqlite": "tests.disputes.coordinators.local.founders.sqlite",
    "http": "tests.disputes.coordinators.local.founders.http",
    "postgresql": "tests.disputes.coordinators.local.founders.postgresql",
    "ethereum": "tests.disputes.coordinators.ethereum.founder",
}
"""Where each coordinator's `found` is."""


def founder(name: str) -> Founder:
    """The founder of a coordinator; skips the test where there is none."""
    try:
        found: Founder = importlib.import_module(FOUNDERS[name]).found
    except ModuleNotFoundError as error:
        pytest.skip(f"{name}: {error.name} is not there")
    return found


def usual_rules(party: Callable[[str], str], **changes: Any) -> Rules:
    """Long clocks, so that no block's timestamp matters, and small bonds."""
    given: dict[str, Any] = {
        "prover_bond": 100_000,
        "challenger_bond": 15_000,
        "appeal_bond": 10_000,
        "stake": 20_000,
        "vote_fee": 200,
        "challenge_window": 100_000,
        "clock": 10_000,
        "extension": 1_000,
        "referee_window": 2_000,
        "vote_window": 2_000,
        "reveal_window": 2_000,
        "appeal_window": 2_000,
        "withdrawal_delay": 3_000,
        "pause_max": 20_000,
        "pause_rest": 40_000,
        "ways": 3,
        "committee": 3,
        "appeals": 1,
        "members": tuple(map(party, MEMBERS)),
        "referee": party("referee"),
        "guardian": party("guardian"),
        "planter": party("planter"),
        "treasury": party("treasury"),
    }
    return Rules(**{**given, **changes})


@dataclass(frozen=True)
class Tree:
    """Leaves that a prover committed to."""

    leaves: tuple[bytes, ...]

    @classmethod
    def of(cls, size: int, tag: str = "") -> Tree:
        return cls(tuple(leaf_hash(f"{tag}{number}".encode()) for number in range(size)))

    @property
    def root(self) -> str:
        return tree_root(list(self.leaves)).hex()

    def cut(self, place: int) -> Cut:
        proof = prove_inclusion(LeafHashes(self.leaves), place, len(self.leaves))
        return Cut(leaf=self.leaves[place].hex(), proof=tuple(each.hex() for each in proof))


RECORDS: Final = Tree.of(10, "record")
OPERATORS: Final = Tree.of(7, "operator")


class Play:
    """A game in a world: what has happened, and short ways to go on."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rules = world.connect("bystander").rules
        self.data = self.publish("prover")

    @property
    def entries(self) -> Sequence[MoveEntry]:
        return self.world.connect("bystander").entries()

    @property
    def state(self) -> State:
        state = replayed(self.rules, self.entries)
        assert list(broken(state)) == []
        return state

    @property
    def now(self) -> int:
        return self.world.connect("bystander").now()

    def dispute(self, number: int = 0) -> Dispute:
        return self.state.disputes[number]

    def claim(self, number: int = 0) -> PostedClaim:
        return self.state.claims[number]

    def party(self, name: str) -> str:
        return self.world.party(name)

    def publish(self, name: str, files: dict[str, bytes] | None = None) -> Digest:
        """Put files and their manifest at the board."""
        board = self.world.board(name)
        names = {file: board.put(data) for file, data in (files or {"note.txt": b"nothing"}).items()}
        return board.put(encode({"files": dict(names), "kind": "manifest", "version": 1}))

    def make(self, name: str, kind: type[Any], **fields: Any) -> Move:
        """A move of this party; the turn, where it has one, is that of its dispute."""
        if "turn" in kind.model_fields and "turn" not in fields:
            fields["turn"] = self.dispute(fields["dispute"]).turn
        move: Move = kind(actor=self.party(name), **fields)
        return move

    def do(self, name: str, kind: type[Any], **fields: Any) -> State:
        """Make a move that is accepted, and return the state after it."""
        before = len(self.entries)
        move = self.make(name, kind, **fields)
        self.world.connect(name).submit(move)
        added = self.entries[before:]
        assert [(each.number, each.move) for each in added] == [(before, self._as_kept(move, added))]
        return self.state

    def refused(self, name: str, kind: type[Any], **fields: Any) -> str:
        """Make a move that is refused, see that it leaves no trace, and return the code."""
        before, move = list(self.entries), self.make(name, kind, **fields)
        with pytest.raises(RuleError) as caught:
            self.world.connect(name).submit(move)
        assert list(self.entries) == before
        return caught.value.code

    def post(self, tree: Tree = RECORDS, levels: int = 2, seal: str = NO_SEAL) -> State:
        """A claim of the prover."""
        size, bond = len(tree.leaves), self.rules.prover_bond
        fields = {"root": tree.root, "size": size, "levels": levels, "statement": self.data, "seal": seal}
        return self.do("prover", Post, value=bond, **fields)

    def contest(self, name: str = "challenger", claim: int = 0) -> State:
        """A dispute over all leaves of a claim."""
        size, value = self.claim(claim).size, self.rules.challenger_bond + self.rules.deposit
        return self.do(name, Contest, value=value, claim=claim, low=0, high=size)

    def partition(self, number: int = 0) -> State:
        """The prover's next cuts."""
        dispute = self.dispute(number)
        places = cut_places(dispute.low, dispute.high, self.rules.ways)
        cuts = tuple(self.tree_of(dispute).cut(place) for place in places)
        return self.do("prover", Partition, dispute=number, cuts=cuts, data=self.data)

    def choose(self, child: int = 1, number: int = 0, name: str = "challenger") -> State:
        """The challenger's choice."""
        return self.do(name, Choose, dispute=number, child=child)

    def open_leaf(self, number: int = 0) -> State:
        """The prover opens the leaf that is left: a record with its operators, or an operator."""
        dispute = self.dispute(number)
        cut = self.tree_of(dispute).cut(dispute.low)
        opened = {"dispute": number, "leaf": cut.leaf, "proof": cut.proof, "data": self.data}
        if dispute.level > 1:
            return self.do("prover", Descend, root=OPERATORS.root, size=len(OPERATORS.leaves), **opened)
        return self.do("prover", Reveal, **opened)

    def bisect(self, number: int = 0, name: str = "challenger") -> State:
        """From the first partition to the ruling."""
        answers = {
            Phase.PARTITION: lambda: self.partition(number),
            Phase.CHOOSE: lambda: self.choose(1, number, name),
            Phase.LEAF: lambda: self.open_leaf(number),
        }
        while (phase := self.dispute(number).phase) is not Phase.RULING:
            answers[phase]()
        return self.state

    def enlist_all(self) -> None:
        """Every member stakes."""
        for name in MEMBERS:
            self.do(name, Enlist, value=self.rules.stake)

    def drawn(self, number: int = 0) -> tuple[str, ...]:
        """The names of those who sit in the last committee."""
        names = {self.party(name): name for name in MEMBERS}
        return tuple(names[each] for each in self.dispute(number).rounds[-1].drawn)

    def commitment(self, name: str, vote: Fault, number: int = 0) -> str:
        """What a member publishes before its vote."""
        sitting = len(self.dispute(number).rounds) - 1
        return voting.commitment(number, sitting, self.party(name), vote, SALT)

    def owed(self, name: str) -> int:
        """What a party is owed, ripe or not."""
        return sum(each.amount for each in self.state.owed.get(self.party(name), ()))

    def tree_of(self, dispute: Dispute) -> Tree:
        return RECORDS if dispute.root == RECORDS.root else OPERATORS

    def _as_kept(self, move: Move, added: Sequence[MoveEntry]) -> Move:
        """The move as the coordinator keeps it: a chain draws the nonce itself."""
        return added[0].move if move.kind == "draw" and added else move


def paid_by(entries: Sequence[MoveEntry], party: str) -> int:
    """What a party's moves paid in."""
    return sum(value_of(entry.move) for entry in entries if entry.move.actor == party)
