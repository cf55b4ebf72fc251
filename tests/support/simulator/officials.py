"""Referee, beacon, planter and guardian, good and bad."""

from __future__ import annotations

from typing import Final

from tallystick.disputes.game.moves import Convene, Draw, Move, Pause, Resume, Rule, Unseal
from tallystick.disputes.game.state import Dispute, Phase, PostedClaim, Status
from tallystick.verdicts.verdict import Fault
from tests.support.simulator.actors import Actor, WorldView
from tests.support.simulator.trees import NOTHING

FINDINGS: Final = (Fault.PROVER, Fault.CHALLENGER, Fault.NOBODY)


class Referee(Actor):
    """Rules at once (`honest`), calls a committee (`unsure`), says nothing (`absent`), or lies (`lying`)."""

    way = "honest"

    def decide(self, number: int, dispute: Dispute, claim: PostedClaim) -> bool:
        """A ruling, while a ruling is asked."""
        if dispute.phase is Phase.RULING and claim.status is Status.OPEN and self.way != "absent":
            self.world.send(self._move(number, dispute), self.world.chance.randint(0, self.world.delays.patience))
        return True

    def _move(self, number: int, dispute: Dispute) -> Move:
        if self.way == "unsure":
            return Convene(actor=self.name, dispute=number)
        found = self.world.truth.ruling(dispute)
        if self.way == "lying":
            found = self.world.chance.choice([each for each in FINDINGS if each is not found])
        return Rule(actor=self.name, dispute=number, fault=found, reason=NOTHING)


class Beacon(Actor):
    """Brings nonces; one that is not honest does not always."""

    def decide(self, number: int, dispute: Dispute, claim: PostedClaim) -> bool:
        """A nonce, once a committee is called."""
        world = self.world
        if dispute.phase is Phase.DRAWING and claim.status is Status.OPEN:
            nonce = f"{world.chance.getrandbits(256):064x}"
            if self.is_honest or world.chance.random() < 0.5:
                move = Draw(actor=self.name, dispute=number, nonce=nonce)
                world.send(move, world.chance.randint(0, world.delays.patience))
        return True


class Planter(Actor):
    """Shows the answers of planted claims, of the disputes that its own accomplice opened."""

    salt = "5a" * 32

    def __init__(self, world: WorldView, name: str, is_honest: bool = True) -> None:
        super().__init__(world, name, is_honest)
        self.planted: dict[str, tuple[str, Fault]] = {}

    def settled(self, number: int) -> None:
        """Unseal a dispute that is over, if it is one of its own."""
        dispute = self.world.view.disputes[number]
        claim = self.world.view.claims[dispute.claim]
        accomplice, answer = self.planted.get(claim.seal, ("", Fault.NOBODY))
        if accomplice == dispute.challenger and dispute.rounds and not dispute.is_unsealed:
            for each in (answer, self.world.chance.choice((answer, *FINDINGS)))[:: self.world.chance.choice((1, -1))]:
                self.world.send(Unseal(actor=self.name, dispute=number, answer=each, salt=self.salt))

    def decide(self, number: int, dispute: Dispute, claim: PostedClaim) -> bool:
        """Nothing while a dispute goes on."""
        return True


class Guardian(Actor):
    """Pauses now and then, and more often than it may."""

    def roam(self, left: int) -> None:
        """Pause, perhaps resume, and come again."""
        world = self.world
        world.send(Pause(actor=self.name))
        if world.chance.random() < 0.5:
            world.send(Resume(actor=self.name), world.chance.randint(1, world.rules.pause_max + 1))
        if left:
            again = world.chance.choice((1, world.rules.pause_max, world.rules.pause_max + world.rules.pause_rest))
            world.after(again, lambda: self.roam(left - 1))

    def decide(self, number: int, dispute: Dispute, claim: PostedClaim) -> bool:
        """Nothing about single disputes."""
        return True
