"""Disputes as their parties would play them, move by move, on a deployed contract."""

from __future__ import annotations

import random
from typing import Any

from tallystick.core.digests import Digest
from tallystick.disputes.game import voting
from tallystick.disputes.game.moves import (
    Choose,
    Contest,
    Convene,
    Descend,
    Disclose,
    Draw,
    Enlist,
    Partition,
    Post,
    Reveal,
    Tally,
    Vote,
)
from tallystick.disputes.game.state import Dispute, Phase, bounds, cut_places
from tallystick.verdicts.verdict import Fault
from tests.disputes.coordinators.ethereum.deployed import Deployed
from tests.disputes.coordinators.ethereum.operator_trees import Tree, cut, root

NONCE = "00" * 32
SALT = "5a" * 32
PLANTED = Fault.PROVER


class Play:
    """A prover and a challenger who disagree about one leaf, on a contract."""

    def __init__(self, contract: Deployed, prover: str, challenger: str, seed: int = 5) -> None:
        self.contract = contract
        self.prover, self.challenger = prover, challenger
        self._rng = random.Random(seed)

    def post(self, tree: Tree, levels: int) -> int:
        """The number of a new claim; it is planted, with the prover at fault."""
        rules = self.contract.state.rules
        seal = voting.seal(self.prover, PLANTED, SALT)
        names: dict[str, Any] = {"root": root(tree), "size": tree.size, "statement": self.digest(), "seal": seal}
        self.contract.make(Post(actor=self.prover, value=rules.prover_bond, levels=levels, **names))
        return len(self.contract.state.claims) - 1

    def contest(self, claim: int) -> int:
        """The number of a new dispute about all of a claim."""
        rules, size = self.contract.state.rules, self.contract.state.claims[claim].size
        value = rules.challenger_bond + rules.deposit
        self.contract.make(Contest(actor=self.challenger, value=value, claim=claim, low=0, high=size))
        return len(self.contract.state.disputes) - 1

    def bisect(self, number: int, tree: Tree, place: int) -> None:
        """Cut and choose until one leaf is left, the one at `place`."""
        while self.dispute(number).phase is not Phase.LEAF:
            self.partition(number, tree)
            self.choose(number, place)

    def partition(self, number: int, tree: Tree) -> None:
        """The prover's next cuts."""
        dispute = self.dispute(number)
        places = cut_places(dispute.low, dispute.high, self.contract.state.rules.ways)
        cuts = tuple(cut(tree, each) for each in places)
        named: dict[str, Any] = {"dispute": number, "turn": dispute.turn, "data": self.digest()}
        self.contract.make(Partition(actor=self.prover, cuts=cuts, **named))

    def choose(self, number: int, place: int) -> None:
        """The challenger's choice: the child that holds the leaf at `place`."""
        dispute = self.dispute(number)
        ends = bounds(dispute.low, dispute.high, self.contract.state.rules.ways)
        child = sum(end <= place for end in ends) - 1
        self.contract.make(Choose(actor=self.challenger, dispute=number, turn=dispute.turn, child=child))

    def descend(self, number: int, tree: Tree, below: Tree) -> None:
        """From the one record that is left to the tree of its operators."""
        dispute = self.dispute(number)
        opened = cut(tree, dispute.low)
        named: dict[str, Any] = {"dispute": number, "turn": dispute.turn, "data": self.digest()}
        finer: dict[str, Any] = {"root": root(below), "size": below.size}
        self.contract.make(Descend(actor=self.prover, leaf=opened.leaf, proof=opened.proof, **finer, **named))

    def reveal(self, number: int, tree: Tree) -> None:
        """The prover's last move."""
        dispute = self.dispute(number)
        opened = cut(tree, dispute.low)
        named: dict[str, Any] = {"dispute": number, "turn": dispute.turn, "data": self.digest()}
        self.contract.make(Reveal(actor=self.prover, leaf=opened.leaf, proof=opened.proof, **named))

    def enlist(self) -> None:
        """Every member stakes."""
        for name in self.contract.state.rules.members:
            self.contract.make(Enlist(actor=name, value=self.contract.state.rules.stake))

    def convene(self, number: int) -> None:
        """A committee is called once the referee's window is over."""
        self.contract.chain.advance(self.contract.state.rules.referee_window)
        self.contract.make(Convene(actor=self.challenger, dispute=number))

    def draw(self, number: int) -> None:
        """The committee is drawn two blocks after it was called."""
        self.contract.chain.mine(2)
        self.contract.make(Draw(actor=self.challenger, dispute=number, nonce=NONCE))

    def vote(self, number: int, finding: Fault) -> None:
        """All who were drawn vote for one finding, disclose it, and the votes are counted."""
        this, drawn = len(self.dispute(number).rounds) - 1, self.dispute(number).rounds[-1].drawn
        for name in drawn:
            found = voting.commitment(number, this, name, finding, SALT)
            self.contract.make(Vote(actor=name, dispute=number, commitment=found))
        for name in drawn:
            self.contract.make(Disclose(actor=name, dispute=number, vote=finding, salt=SALT))
        self.contract.make(Tally(actor=self.challenger, dispute=number))

    def dispute(self, number: int) -> Dispute:
        """The dispute as the log tells it."""
        return self.contract.state.disputes[number]

    def digest(self) -> Digest:
        """A digest of something at the board."""
        return Digest("sha256:" + self._rng.randbytes(32).hex())
