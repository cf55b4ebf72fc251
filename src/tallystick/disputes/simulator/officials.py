"""Referee, beacon, committee members, planter, guardian, and the keeper who makes every move that anybody may make."""

from __future__ import annotations

import hashlib
from typing import Final

from tallystick.disputes import committee
from tallystick.disputes.context import mover, time_left
from tallystick.disputes.fault import Fault
from tallystick.disputes.moves import (
    Convene,
    Disclose,
    Dismiss,
    Draw,
    Finalise,
    Move,
    Pause,
    Resume,
    Rule,
    Settle,
    Tally,
    Timeout,
    Unseal,
    Vote,
)
from tallystick.disputes.simulator.actors import Actor, Surroundings
from tallystick.disputes.simulator.trees import NOTHING
from tallystick.disputes.state import Claim, Dispute, Phase, Status

FINDINGS: Final = (Fault.PROVER, Fault.CHALLENGER, Fault.NOBODY)


class Referee(Actor):
    """Rules at once (`honest`), calls a committee (`unsure`), says nothing (`absent`), or lies (`lying`)."""

    way = "honest"

    def decide(self, number: int, dispute: Dispute, claim: Claim) -> bool:
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

    def decide(self, number: int, dispute: Dispute, claim: Claim) -> bool:
        """A nonce, once a committee is called."""
        world = self.world
        if dispute.phase is Phase.DRAWING and claim.status is Status.OPEN:
            nonce = f"{world.chance.getrandbits(256):064x}"
            if self.is_honest or world.chance.random() < 0.5:
                move = Draw(actor=self.name, dispute=number, nonce=nonce)
                world.send(move, world.chance.randint(0, world.delays.patience))
        return True


class Member(Actor):
    """Votes what it found, or: lies, votes without looking, is absent, never discloses, copies, is hasty, or late."""

    way = "honest"

    def __init__(self, world: Surroundings, name: str, is_honest: bool = True) -> None:
        super().__init__(world, name, is_honest)
        self._voted: set[tuple[int, int]] = set()

    def decide(self, number: int, dispute: Dispute, claim: Claim) -> bool:
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
        if self.way in ("honest", "hasty", "tardy", "mute", "copying"):
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
        own = committee.commitment(
            number, len(dispute.rounds) - 1, self.name, self.vote_on(dispute), self._salt(number, dispute)
        )
        world.send(
            Vote(actor=self.name, dispute=number, commitment=copied or own),
            world.chance.randint(0, world.delays.patience),
        )

    def _is_waiting(self, dispute: Dispute) -> bool:
        """A tardy member commits when it is too late, in the hope that nobody looks at a clock."""
        return self.way == "tardy" and dispute.deadline > self.world.time

    def _disclose(self, number: int, dispute: Dispute, delay: int = 0) -> None:
        if self.way == "tardy" and dispute.phase is Phase.REVEALING:
            delay = dispute.deadline - self.world.time
        if self.way != "mute":
            salt = self._salt(number, dispute)
            self.world.send(Disclose(actor=self.name, dispute=number, vote=self.vote_on(dispute), salt=salt), delay)

    def _salt(self, number: int, dispute: Dispute) -> str:
        return hashlib.sha256(f"{self.name} {number} {len(dispute.rounds)}".encode()).hexdigest()


class Planter(Actor):
    """Shows the answers of planted claims, of the disputes that its own accomplice opened."""

    salt = "5a" * 32

    def __init__(self, world: Surroundings, name: str, is_honest: bool = True) -> None:
        super().__init__(world, name, is_honest)
        self.planted: dict[str, tuple[str, Fault]] = {}

    def settled(self, number: int) -> None:
        """Unseal a dispute that is over, if it is one of its own."""
        dispute = self.world.view.disputes[number]
        claim = self.world.view.claims[dispute.claim]
        accomplice, answer = self.planted.get(claim.seal, ("", Fault.NOBODY))
        if accomplice == dispute.challenger and dispute.rounds and not dispute.is_unsealed:
            shown = self.world.chance.choice((answer, answer, answer, *FINDINGS))
            for each in dict.fromkeys((shown, answer)):
                self.world.send(Unseal(actor=self.name, dispute=number, answer=each, salt=self.salt))

    def decide(self, number: int, dispute: Dispute, claim: Claim) -> bool:
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

    def decide(self, number: int, dispute: Dispute, claim: Claim) -> bool:
        """Nothing about single disputes."""
        return True


class Keeper(Actor):
    """Makes each move that is due, soon after it is due, and tries some of them too early."""

    def __init__(self, world: Surroundings, name: str, is_honest: bool = True) -> None:
        super().__init__(world, name, is_honest)
        self._closing: dict[int, int] = {}

    def decide(self, number: int, dispute: Dispute, claim: Claim) -> bool:
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

    def _due(self, number: int, dispute: Dispute, claim: Claim) -> tuple[int, Move]:
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
        return self.world.time if committee.has_disclosed(dispute.rounds[-1]) else dispute.deadline

