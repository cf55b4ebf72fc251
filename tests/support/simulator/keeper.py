"""The keeper: somebody who makes every move that anybody may make."""

from __future__ import annotations

from tallystick.disputes.game import voting
from tallystick.disputes.game.context import mover, time_left
from tallystick.disputes.game.moves import Convene, Dismiss, Draw, Finalise, Move, Settle, Tally, Timeout
from tallystick.disputes.game.state import Dispute, Phase, PostedClaim, Status
from tests.support.simulator.actors import Actor, WorldView


class Keeper(Actor):
    """Makes each move that is due, soon after it is due, and tries some of them too early."""

    def __init__(self, world: WorldView, name: str, is_honest: bool = True) -> None:
        super().__init__(world, name, is_honest)
        self._closing: dict[int, int] = {}

    def decide(self, number: int, dispute: Dispute, claim: PostedClaim) -> bool:
        """The move that is due, or another look when it will be."""
        world = self.world
        if claim.status is not Status.OPEN:
            world.send(Dismiss(actor=self.name, dispute=number))
            return True
        due, move = self._due(number, dispute, claim)
        left = due - world.time
        if left > 0:
            if world.chance.random() < 0.1:
                world.send(move, world.chance.choice((0, left - 1)))
            return self.again(number, left)
        world.send(move)
        return self.again(number, world.delays.answer)

    def close(self, number: int) -> None:
        """Finalise a claim once its window is over and nobody disputes it."""
        world, claim = self.world, self.world.view.claims[number]
        if claim.status is not Status.OPEN or claim.disputes:
            return
        left = max(claim.deadline - world.time, world.pause_left())
        if left > 0 and world.chance.random() < 0.3:
            world.send(Finalise(actor=self.name, claim=number), left - 1)
        if left <= 0:
            world.send(Finalise(actor=self.name, claim=number))
        self._close_again(number, left if left > 0 else world.delays.answer)

    def _close_again(self, number: int, seconds: int) -> None:
        alarm = self._closing[number] = self._closing.get(number, 0) + 1

        def ring() -> None:
            if self._closing[number] == alarm:
                self.close(number)

        self.world.after(seconds, ring)

    def _due(self, number: int, dispute: Dispute, claim: PostedClaim) -> tuple[int, Move]:
        world = self.world
        if mover(claim, dispute) is not None:
            return world.time + time_left(dispute, world.time), Timeout(actor=self.name, dispute=number)
        if dispute.phase is Phase.RULING:
            return dispute.deadline, Convene(actor=self.name, dispute=number)
        if dispute.phase is Phase.DRAWING:
            nonce = f"{world.chance.getrandbits(256):064x}"
            drawn = Draw(actor=self.name, dispute=number, nonce=nonce)
            return (
                (world.time, drawn)
                if world.rules.beacon is None
                else (dispute.deadline, Timeout(actor=self.name, dispute=number))
            )
        if dispute.phase is Phase.APPEALABLE:
            return dispute.deadline, Settle(actor=self.name, dispute=number)
        return self._counting(dispute), Tally(actor=self.name, dispute=number)

    def _counting(self, dispute: Dispute) -> int:
        if dispute.phase is Phase.COMMITTING:
            return dispute.deadline + self.world.rules.reveal_window
        return self.world.time if voting.has_disclosed(dispute.rounds[-1]) else dispute.deadline
