"""Provers, honest and not."""

from __future__ import annotations

from tallystick.disputes.game.moves import Cut, Descend, Move, Partition, Post, Reveal
from tallystick.disputes.game.state import LEAVES_MAX, Dispute, Phase, PostedClaim, cut_places
from tallystick.verdicts.verdict import Fault
from tests.support.simulator.actors import WorldView
from tests.support.simulator.bisectors import Bisector
from tests.support.simulator.trees import FORGED, NOTHING, Run


class Prover(Bisector):
    """Answers for one run; `way` is how it cheats beyond the run itself."""

    finds = Fault.CHALLENGER

    def __init__(self, world: WorldView, name: str, run: Run, way: str) -> None:
        super().__init__(world, name, is_honest=run.fault is None and way == "plain")
        self.run, self.way = run, way

    def claim(self, seal: str) -> Post:
        """The claim for its run; a hollow one is for a tree that nobody has."""
        root, size = self.run.top().root, self.run.steps
        if self.way == "hollow":
            root, size = f"{self.world.chance.getrandbits(256):064x}", self.world.chance.choice((1, 7, LEAVES_MAX))
        return Post(
            actor=self.name,
            value=self.world.rules.prover_bond,
            root=root,
            size=size,
            levels=2 if self.run.levels == 2 else 1,
            statement=NOTHING,
            seal=seal,
        )

    def answer(self, number: int, dispute: Dispute, claim: PostedClaim) -> Move | None:
        """Cuts, a descent or the leaf."""
        tree = self.world.truth.tree_of(dispute)
        turn = dispute.turn
        if dispute.phase is Phase.PARTITION:
            places = cut_places(dispute.low, dispute.high, self.world.rules.ways)
            cuts = tuple(FORGED if tree is None else tree.cut(place) for place in places)
            return Partition(actor=self.name, dispute=number, turn=turn, cuts=cuts, data=NOTHING)
        if dispute.phase is not Phase.LEAF:
            return None
        cut = FORGED if tree is None else tree.cut(dispute.low)
        if (dispute.level > 1 and self.way != "shallow") or self.way == "deep":
            return self._descent(number, dispute, cut)
        return Reveal(actor=self.name, dispute=number, turn=turn, leaf=cut.leaf, proof=cut.proof, data=NOTHING)

    def _descent(self, number: int, dispute: Dispute, cut: Cut) -> Descend:
        below = self.run.severed(dispute.low) if self.way == "severed" else self.run.below(dispute.low)
        return Descend(
            actor=self.name,
            dispute=number,
            turn=dispute.turn,
            leaf=cut.leaf,
            proof=cut.proof,
            root=below.root,
            size=below.size,
            data=NOTHING,
        )
