"""Challengers, honest and not."""

from __future__ import annotations

from tallystick.disputes.game.moves import Choose, Contest, Move, Pinpoint, Protest, Prove
from tallystick.disputes.game.protocols import Ground
from tallystick.disputes.game.state import Dispute, Phase, PostedClaim, bounds
from tallystick.verdicts.verdict import Fault
from tests.support.simulator.actors import WorldView
from tests.support.simulator.bisectors import Bisector
from tests.support.simulator.trees import BAD, ELEMENTS, Run, Tree


class Challenger(Bisector):
    """Contests claims; one that is honest only those that are wrong, and finds where."""

    finds = Fault.PROVER

    def __init__(self, world: WorldView, name: str, way: str) -> None:
        super().__init__(world, name, is_honest=way == "honest")
        self.way, self.tries = way, 1.0 if way == "honest" else 0.7

    def is_keen(self) -> bool:
        """Whether it looks at a new claim at all."""
        return self.world.chance.random() < self.tries

    def consider(self, number: int) -> None:
        """Contest a claim, or not; never twice."""
        claim = self.world.view.claims[number]
        run = self.world.runs.get(claim.root)
        is_wrong = run is None or run.fault is not None
        if claim.prover == self.name or (self.way in ("honest", "careless") and not is_wrong):
            return
        low, high = self._range(claim, run)
        value = self.world.rules.challenger_bond + self.world.rules.deposit
        move = Contest(actor=self.name, value=value, claim=number, low=low, high=high)
        self.world.send(move, self.world.chance.randint(0, self.world.delays.patience))

    def answer(self, number: int, dispute: Dispute, claim: PostedClaim) -> Move | None:
        """A choice; the honest one where the first wrong leaf lies."""
        tree = self.world.truth.tree_of(dispute)
        if dispute.phase is Phase.RULING and (proof := self._proof(number, dispute, tree)):
            return proof
        if dispute.phase in (Phase.RULING, Phase.DRAWING, Phase.COMMITTING):
            return self._pinpoint(number, dispute, tree)
        if dispute.phase is not Phase.CHOOSE:
            return None
        chance, turn = self.world.chance, dispute.turn
        ends = bounds(dispute.low, dispute.high, self.world.rules.ways)
        if self.is_honest and tree is not None and not tree.is_joined:
            return Protest(actor=self.name, dispute=number, turn=turn, ground="structure")
        if not self.is_honest and chance.random() < 0.04:
            ground: Ground = "budget" if chance.random() < 0.5 else "structure"
            return Protest(actor=self.name, dispute=number, turn=turn, ground=ground)
        chosen = chance.randrange(len(ends) - 1)
        if self.is_honest and tree is not None and tree.faulty is not None:
            faulty = tree.faulty
            chosen = next(place for place, end in enumerate(ends[1:]) if faulty < end)
        return Choose(actor=self.name, dispute=number, turn=turn, child=chosen)

    def _proof(self, number: int, dispute: Dispute, tree: Tree | None) -> Prove | None:
        """Evidence that anybody can check, where there is some; others try it where there is none."""
        if not _is_operator(dispute) or tree is None or not dispute.low:
            return None
        is_shown = tree.is_edge and dispute.low == tree.faulty
        if is_shown if self.is_honest else self.world.chance.random() < 0.3:
            return Prove(actor=self.name, dispute=number, evidence=tree.evidence(dispute.low))
        return None

    def _pinpoint(self, number: int, dispute: Dispute, tree: Tree | None) -> Pinpoint | None:
        """The wrong element, where there is one; others name any, and when it is too late as well."""
        chance = self.world.chance
        named = BAD if self.is_honest else (chance.randrange(2), chance.randrange(2 * ELEMENTS))
        is_open = dispute.phase is not Phase.COMMITTING
        is_seen = is_open and _is_operator(dispute) and tree is not None and dispute.low == tree.faulty
        if chance.random() < 0.4 and (is_seen or not self.is_honest):
            return Pinpoint(actor=self.name, dispute=number, result=named[0], element=named[1])
        return None

    def _range(self, claim: PostedClaim, run: Run | None) -> tuple[int, int]:
        chance = self.world.chance
        if run is not None and self.way == "honest" and run.fault is not None:
            place = run.fault[0]
            return chance.choice(((0, claim.size), (place, place + 1), (0, place + 1)))
        low = chance.randrange(claim.size)
        return chance.choice(((0, claim.size), (low, chance.randint(low + 1, claim.size))))


def _is_operator(dispute: Dispute) -> bool:
    return dispute.level == 1 and dispute.ground == "leaf"
