"""Members of committees, of every kind."""

from __future__ import annotations

import hashlib

from tallystick.disputes.game import voting
from tallystick.disputes.game.moves import Disclose, Vote
from tallystick.disputes.game.state import Dispute, Phase, PostedClaim, Status
from tallystick.verdicts.verdict import Fault
from tests.support.simulator.actors import Actor, WorldView


class Member(Actor):
    """Votes what it found, unless it lies, does not look, is absent, mute, hasty, tardy or late, or copies."""

    way = "honest"

    def __init__(self, world: WorldView, name: str, is_honest: bool = True) -> None:
        super().__init__(world, name, is_honest)
        self._voted: set[tuple[int, int]] = set()

    def decide(self, number: int, dispute: Dispute, claim: PostedClaim) -> bool:
        """A commitment, and the vote once it can be disclosed."""
        is_asked = dispute.phase in (Phase.COMMITTING, Phase.REVEALING) and self.name in dispute.rounds[-1].drawn
        if claim.status is not Status.OPEN or not is_asked or self.way == "absent":
            return True
        if dispute.phase is Phase.REVEALING:
            self._disclose(number, dispute)
            return True
        if (number, len(dispute.rounds)) not in self._voted and not self._is_waiting(dispute):
            self._voted.add((number, len(dispute.rounds)))
            self._vote(number, dispute)
        return self._later(number, dispute)

    def forget(self) -> None:
        """Start again, without memory."""
        super().forget()
        self._voted.clear()

    def vote_on(self, dispute: Dispute) -> Fault:
        """What this member votes."""
        found = self.world.truth.ruling(dispute)
        if self.way not in ("lazy", "lying"):
            return found
        if self.way == "lazy":
            return Fault.CHALLENGER
        return Fault.PROVER if found is Fault.CHALLENGER else Fault.CHALLENGER

    def _later(self, number: int, dispute: Dispute) -> bool:
        """Where others stay away, votes can be disclosed once the time to commit is over."""
        world = self.world
        left = dispute.deadline - world.time
        if left <= 0:
            self._disclose(number, dispute)
            return True
        if self.way == "hasty":
            self._disclose(number, dispute, world.chance.choice((0, left - 1)))
        return self.again(number, left)

    def _vote(self, number: int, dispute: Dispute) -> None:
        world, sitting = self.world, dispute.rounds[-1]
        copied = next((each for each in sitting.commitments if each), None) if self.way == "copying" else None
        own = voting.commitment(
            number, len(dispute.rounds) - 1, self.name, self.vote_on(dispute), self._salt(number, dispute)
        )
        delay = world.chance.randint(0, world.delays.patience)
        world.send(Vote(actor=self.name, dispute=number, commitment=copied or own), delay)
        if not self.is_honest and world.chance.random() < 0.2:
            world.send(Vote(actor=self.name, dispute=number, commitment="00" * 32), delay)

    def _is_waiting(self, dispute: Dispute) -> bool:
        """A late member commits when it is too late, in the hope that nobody looks at a clock."""
        return self.way == "late" and dispute.deadline > self.world.time

    def _disclose(self, number: int, dispute: Dispute, delay: int = 0) -> None:
        if self.way == "tardy" and dispute.phase is Phase.REVEALING:
            delay = dispute.deadline - self.world.time
        if self.way != "mute":
            salt = self._salt(number, dispute)
            self.world.send(Disclose(actor=self.name, dispute=number, vote=self.vote_on(dispute), salt=salt), delay)

    def _salt(self, number: int, dispute: Dispute) -> str:
        return hashlib.sha256(f"{self.name} {number} {len(dispute.rounds)}".encode()).hexdigest()
