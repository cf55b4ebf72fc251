"""What simulated parties fight about: runs whose truth is known, as trees of real leaves with real proofs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final

from tallystick.core.digests import Digest, Hash, LeafHashes, digest, leaf_hash, prove_inclusion, tree_root
from tallystick.disputes.game.game import record_bytes
from tallystick.disputes.game.moves import Cut, Evidence, RecordForm, ValueWriter
from tallystick.disputes.game.state import Dispute
from tallystick.verdicts.verdict import Fault

SIZES: Final = (1, 1, 2, 2, 3, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 65)
"""Sizes of trees: around powers of two, the small ones twice as often."""
NOTHING: Final = digest("blob", b"")
ELEMENTS: Final = 8
"""How many numbers the one result of every operator has."""
BAD: Final = (0, 5)
"""The element that is wrong of an operator that is wrong."""
FORGED: Final = Cut(leaf="ab" * 32, proof=("cd" * 32,) * 64)


@dataclass(frozen=True)
class Tree:
    """Operators in a row, each reading what the one before gave.

    From place `faulty` on they are not what honest work gives; `is_joined` where they hang together with the record
    above. Where the fault is an edge, anybody can prove it; else it takes a judge.
    """

    name: str
    size: int
    faulty: int | None = None
    is_joined: bool = True
    is_edge: bool = False

    @cached_property
    def leaves(self) -> tuple[Hash, ...]:
        """The hashes of the leaves."""
        return tuple(leaf_hash(record_bytes(self.form(place))) for place in range(self.size))

    @cached_property
    def root(self) -> str:
        """The root, as moves write it."""
        return tree_root(self.leaves).hex()

    @cached_property
    def _cuts(self) -> dict[int, Cut]:
        return {}

    def cut(self, place: int) -> Cut:
        """A leaf with the proof of its place."""
        if place not in self._cuts:
            proof = prove_inclusion(LeafHashes(self.leaves), place, self.size)
            self._cuts[place] = Cut(leaf=self.leaves[place].hex(), proof=tuple(each.hex() for each in proof))
        return self._cuts[place]

    def form(self, place: int) -> RecordForm:
        """The operator at a place."""
        is_broken = self.is_edge and place == self.faulty
        read = _value(self.name, place - 1, "another" if is_broken else self._course(place - 1))
        given = _value(self.name, place, self._course(place))
        return RecordForm(
            node=place,
            operator="aten.add.Tensor",
            inputs=((f"v{place - 1}", read),) if place else (),
            outputs=((f"v{place}", given),),
        )

    def evidence(self, place: int) -> Evidence:
        """That the operator at `place` read something other than the one before it gave; honest ones did not."""
        writer = ValueWriter(record=self.form(place - 1), index=place - 1, proof=self.cut(place - 1).proof)
        return Evidence(ground="edge", record=self.form(place), writer=writer)

    def _course(self, place: int) -> str:
        return "right" if self.faulty is None or place < self.faulty else "wrong"


@lru_cache(maxsize=1 << 14)
def tree(name: str, size: int, faulty: int | None = None, is_joined: bool = True, is_edge: bool = False) -> Tree:
    """A tree, made once for all worlds."""
    return Tree(name, size, faulty, is_joined, is_edge and faulty is not None and faulty > 0)


@dataclass(frozen=True)
class Run:
    """A claimed run of `steps` records with `width` operators each, wrong from operator `fault` = (step, place) on.

    In one-round mode (`levels` 1) its records are operators already.
    """

    name: int
    steps: int
    width: int
    levels: int = 2
    fault: tuple[int, int] | None = None
    is_edge: bool = False

    def top(self) -> Tree:
        """The tree of the claim."""
        faulty = None if self.fault is None else self.fault[0]
        return tree(f"run {self.name}", self.steps, faulty, is_edge=self.is_edge and self.levels == 1)

    def below(self, step: int) -> Tree:
        """The operators of one step."""
        faulty = self.fault[1] if self.fault is not None and self.fault[0] == step else None
        return tree(f"run {self.name} step {step % 2}", self.width, faulty, is_edge=self.is_edge)

    def severed(self, step: int) -> Tree:
        """Operators that do not hang together with the record of that step."""
        return tree(f"run {self.name} severed {step % 2}", self.width, is_joined=False)


class Truth:
    """Who is right, known from the trees that are in play."""

    def __init__(self) -> None:
        self._trees: dict[str, Tree] = {}

    def learn(self, trees: Iterable[Tree]) -> None:
        """Know these trees by their roots."""
        self._trees.update((each.root, each) for each in trees)

    def tree_of(self, dispute: Dispute) -> Tree | None:
        """The tree that is being cut; `None` where nobody has one under this root."""
        return self._trees.get(dispute.root)

    def ruling(self, dispute: Dispute) -> Fault:
        """What a judge finds who looks; at one element only, where one was named and the edges are right."""
        found = self.tree_of(dispute)
        if found is None or not found.is_joined:
            return Fault.PROVER
        is_seen = found.is_edge or dispute.element in (None, BAD)
        is_wrong = dispute.ground == "leaf" and dispute.low == found.faulty
        return Fault.PROVER if is_wrong and is_seen else Fault.CHALLENGER


def _value(name: str, place: int, course: str) -> Digest:
    return digest("blob", f"{name} {place} {course}".encode())
