"""Disputes played from a script: a fault lies at one place, and both parties know it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache

from tallystick.core.digests import LeafHashes, digest, leaf_hash, prove_inclusion, tree_root
from tallystick.disputes.game.game import apply
from tallystick.disputes.game.moves import Choose, Contest, Cut, Descend, Move, Partition, Post, Reveal
from tallystick.disputes.game.state import Dispute, Phase, Rules, State, bounds, cut_places

RECORDS = 1024
WAYS = (2, 4, 8, 16, 24, 32)
SIZES = (100, 1_000, 10_000)
START = 1_000_000


@dataclass(frozen=True)
class Tree:
    """A tree of made-up records, `seed` telling trees apart."""

    seed: int
    size: int

    @property
    def root(self) -> str:
        """The root in hexadecimal digits."""
        return _root(self).hex()

    def cut(self, place: int) -> Cut:
        """A leaf with its proof."""
        return _cut(self, place)


@cache
def _leaves(tree: Tree) -> LeafHashes:
    return LeafHashes([leaf_hash(f"{tree.seed} {place}".encode()) for place in range(tree.size)])


@cache
def _root(tree: Tree) -> bytes:
    return tree_root(list(_leaves(tree).leaves))


@cache
def _cut(tree: Tree, place: int) -> Cut:
    proof = prove_inclusion(_leaves(tree), place, tree.size)
    return Cut(leaf=_leaves(tree).leaves[place].hex(), proof=tuple(each.hex() for each in proof))


@dataclass
class Script:
    """One claim over 1,024 records; a record is contested, and operator `fault` of the `size` below it is wrong."""

    rules: Rules
    prover: str
    challenger: str
    size: int
    fault: int
    record: int = 700
    seed: int = 0
    state: State = field(init=False)
    made: list[Move] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.state = State(self.rules)
        self.records, self.operators = Tree(self.seed, RECORDS), Tree(self.seed + 1, self.size)

    @property
    def dispute(self) -> Dispute:
        """The dispute as it stands."""
        return self.state.disputes[-1]

    def moves(self, claim: int = 0, dispute: int = 0) -> Iterator[Move]:
        """All moves until somebody has to rule, by the numbers that a coordinator gives to claim and dispute.

        Each is applied to the game as dispute 0 before it is given.
        """
        rules = self.rules
        seal, statement = f"{self.seed:064x}", digest("blob", f"statement {self.seed}".encode())
        yield self._made(
            Post(
                actor=self.prover,
                value=rules.prover_bond,
                root=self.records.root,
                size=RECORDS,
                statement=statement,
                seal=seal,
            )
        )
        price, record = rules.challenger_bond + rules.deposit, self.record
        contest = Contest(actor=self.challenger, value=price, claim=0, low=record, high=record + 1)
        yield self._made(contest).model_copy(update={"claim": claim})
        while self.dispute.phase is not Phase.RULING:
            yield self._made(self._next()).model_copy(update={"dispute": dispute})

    def _made(self, move: Move) -> Move:
        self.state = apply(self.state, move, START + len(self.made))
        self.made.append(move)
        return move

    def _next(self) -> Move:
        dispute = self.dispute
        if dispute.phase is Phase.CHOOSE:
            ends = bounds(dispute.low, dispute.high, self.rules.ways)
            child = next(number for number, end in enumerate(ends[1:]) if self.fault < end)
            return Choose(actor=self.challenger, dispute=0, turn=dispute.turn, child=child)
        data = digest("blob", f"data {self.seed} {dispute.turn}".encode())
        if dispute.phase is Phase.PARTITION:
            places = cut_places(dispute.low, dispute.high, self.rules.ways)
            cuts = tuple(map(self.operators.cut, places))
            return Partition(actor=self.prover, dispute=0, turn=dispute.turn, cuts=cuts, data=data)
        if dispute.level > 1:
            cut, tree = self.records.cut(self.record), self.operators
            named = {"root": tree.root, "size": tree.size, "data": data}
            return Descend.model_validate(
                {
                    "actor": self.prover,
                    "dispute": 0,
                    "turn": dispute.turn,
                    "leaf": cut.leaf,
                    "proof": cut.proof,
                    **named,
                }
            )
        cut = self.operators.cut(self.fault)
        return Reveal(actor=self.prover, dispute=0, turn=dispute.turn, leaf=cut.leaf, proof=cut.proof, data=data)
