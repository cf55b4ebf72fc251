"""What provers and challengers have in common: an answer each turn, early, late, botched or never."""

from __future__ import annotations

from random import Random

from tallystick.disputes.game.context import time_left
from tallystick.disputes.game.game import BISECTING
from tallystick.disputes.game.moves import Appeal, Choose, Concede, Descend, Move, Partition, Reveal
from tallystick.disputes.game.state import WAYS_MAX, Dispute, Phase, PostedClaim, Status
from tallystick.disputes.game.voting import next_seats, seats
from tallystick.verdicts.verdict import Fault
from tests.support.simulator.actors import Actor, WorldView
from tests.support.simulator.trees import FORGED


class Bisector(Actor):
    """A party of disputes; one that is not honest falls `silent` at some turn, or gives up."""

    finds: Fault

    def __init__(self, world: WorldView, name: str, is_honest: bool) -> None:
        super().__init__(world, name, is_honest)
        chance = world.chance
        self.is_slow = chance.random() < 0.3
        self.silent_from = 10**9 if is_honest or chance.random() < 0.6 else chance.randint(0, 6)
        self.gives_up = not is_honest and chance.random() < 0.06
        self.is_stubborn = not is_honest and chance.random() < 0.5

    def decide(self, number: int, dispute: Dispute, claim: PostedClaim) -> bool:
        """One answer a turn, at once or as late as it dares."""
        if claim.status is not Status.OPEN:
            return True
        if dispute.phase is Phase.APPEALABLE:
            return self._appeal(number, dispute)
        if dispute.turn >= self.silent_from:
            return self._too_late(number, dispute, claim)
        if self.gives_up and dispute.turn:
            self.world.send(Concede(actor=self.name, dispute=number))
            return True
        move = self.answer(number, dispute, claim)
        if move is not None:
            delay = self._delay(dispute)
            if not self.is_honest and self.world.chance.random() < 0.08:
                self.world.send(botched(move, self.world.chance), delay)
            self.world.send(move, delay)
        return True

    def answer(self, number: int, dispute: Dispute, claim: PostedClaim) -> Move | None:
        """The move of this turn, if it is this party's."""
        raise NotImplementedError

    def _delay(self, dispute: Dispute) -> int:
        delays = self.world.delays
        if self.is_slow and dispute.phase in BISECTING:
            return time_left(dispute, self.world.time) - (delays.answer if delays.is_chain else 1)
        return self.world.chance.randint(0, delays.patience)

    def _too_late(self, number: int, dispute: Dispute, claim: PostedClaim) -> bool:
        """Silent until the clock has run out, then an answer as if nothing had happened."""
        move = self.answer(number, dispute, claim)
        if move is not None and dispute.phase in BISECTING:
            left = time_left(dispute, self.world.time)
            self.world.send(move, left + self.world.chance.choice((0, 0, 1, 5)))
        return True

    def _appeal(self, number: int, dispute: Dispute) -> bool:
        world = self.world
        is_wrong = dispute.fault not in (self.finds, None) and world.truth.ruling(dispute) is self.finds
        wanted = next_seats(dispute)
        can_be_drawn = seats(world.view, dispute, wanted) == wanted
        if (is_wrong and can_be_drawn) or self.is_stubborn:
            price = world.rules.appeal_bond + world.rules.vote_fee * wanted
            delay = world.chance.randint(0, world.delays.patience)
            if self.is_stubborn and world.chance.random() < 0.3:
                delay = dispute.deadline - world.time + world.chance.choice((-1, 0, 0))
            world.send(Appeal(actor=self.name, dispute=number, value=price), delay)
        return True


def botched(move: Move, chance: Random) -> Move:
    """The same move with one thing wrong about it."""
    if isinstance(move, Choose) and chance.random() < 0.6:
        return move.model_copy(update={"child": WAYS_MAX - 1})
    if isinstance(move, Partition) and chance.random() < 0.8:
        others = ((*move.cuts, move.cuts[0]), move.cuts[1:] or move.cuts * 2, move.cuts[::-1], (FORGED, *move.cuts[1:]))
        return move.model_copy(update={"cuts": chance.choice(others)})
    if isinstance(move, Descend | Reveal) and chance.random() < 0.6:
        return move.model_copy(update={"proof": (*move.proof, "00" * 32)})
    changed = {"turn": move.turn + 1} if isinstance(move, Partition | Choose | Descend | Reveal) else {}
    return move.model_copy(update=changed)
