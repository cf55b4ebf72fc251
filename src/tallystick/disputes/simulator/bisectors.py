"""Provers and challengers, honest and not."""

from __future__ import annotations

from random import Random
from typing import Final

from tallystick.disputes.committee import seats
from tallystick.disputes.context import time_left
from tallystick.disputes.fault import Fault
from tallystick.disputes.moves import (
    Appeal,
    Choose,
    Concede,
    Contest,
    Cut,
    Descend,
    Move,
    Partition,
    Post,
    Protest,
    Prove,
    Reveal,
)
from tallystick.disputes.partition import bounds, cut_places
from tallystick.disputes.rules import LEAVES_MAX, WAYS_MAX
from tallystick.disputes.simulator.actors import Actor, Surroundings
from tallystick.disputes.simulator.trees import NOTHING, Run, Tree
from tallystick.disputes.state import Claim, Dispute, Phase, Status
from tallystick.disputes.voting import next_seats

FORGED: Final = Cut(leaf="ab" * 32, proof=("cd" * 32,) * 64)


class Bisector(Actor):
    """A party of disputes; one that is not honest falls `silent` at some turn, or gives up."""

    finds: Fault

    def __init__(self, world: Surroundings, name: str, is_honest: bool) -> None:
        super().__init__(world, name, is_honest)
        chance = world.chance
        self.is_slow = chance.random() < 0.3
        self.silent_from = 10**9 if is_honest or chance.random() < 0.6 else chance.randint(0, 6)
        self.gives_up = not is_honest and chance.random() < 0.06
        self.is_stubborn = not is_honest and chance.random() < 0.5

    def decide(self, number: int, dispute: Dispute, claim: Claim) -> bool:
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

    def answer(self, number: int, dispute: Dispute, claim: Claim) -> Move | None:
        """The move of this turn, if it is this party's."""
        raise NotImplementedError

    def _delay(self, dispute: Dispute) -> int:
        delays = self.world.delays
        if self.is_slow and dispute.phase is not Phase.RULING:
            return time_left(dispute, self.world.time) - (delays.answer if delays.is_chain else 1)
        return self.world.chance.randint(0, delays.patience)

    def _too_late(self, number: int, dispute: Dispute, claim: Claim) -> bool:
        """Silent until the clock has run out, then an answer as if nothing had happened."""
        move = self.answer(number, dispute, claim)
        if move is not None and dispute.phase is not Phase.RULING:
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


class Prover(Bisector):
    """Answers for one run; `way` is how it cheats beyond the run itself."""

    finds = Fault.CHALLENGER

    def __init__(self, world: Surroundings, name: str, run: Run, way: str) -> None:
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

    def answer(self, number: int, dispute: Dispute, claim: Claim) -> Move | None:
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


class Challenger(Bisector):
    """Contests claims; one that is honest only those that are wrong, and finds where."""

    finds = Fault.PROVER

    def __init__(self, world: Surroundings, name: str, way: str) -> None:
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

    def answer(self, number: int, dispute: Dispute, claim: Claim) -> Move | None:
        """A choice; the honest one where the first wrong leaf lies."""
        tree = self.world.truth.tree_of(dispute)
        if dispute.phase is Phase.RULING:
            return self._proof(number, dispute, tree)
        if dispute.phase is not Phase.CHOOSE:
            return None
        chance, turn = self.world.chance, dispute.turn
        ends = bounds(dispute.low, dispute.high, self.world.rules.ways)
        if self.is_honest and tree is not None and not tree.is_joined:
            return Protest(actor=self.name, dispute=number, turn=turn, ground="structure")
        if not self.is_honest and chance.random() < 0.04:
            ground = "budget" if chance.random() < 0.5 else "structure"
            return Protest(actor=self.name, dispute=number, turn=turn, ground=ground)
        chosen = chance.randrange(len(ends) - 1)
        if self.is_honest and tree is not None and tree.faulty is not None:
            faulty = tree.faulty
            chosen = next(place for place, end in enumerate(ends[1:]) if faulty < end)
        return Choose(actor=self.name, dispute=number, turn=turn, child=chosen)

    def _proof(self, number: int, dispute: Dispute, tree: Tree | None) -> Prove | None:
        """Evidence that anybody can check, where there is some; others try it where there is none."""
        if dispute.ground != "leaf" or dispute.level > 1 or tree is None or not dispute.low:
            return None
        is_shown = tree.is_edge and dispute.low == tree.faulty
        if is_shown if self.is_honest else self.world.chance.random() < 0.3:
            return Prove(actor=self.name, dispute=number, evidence=tree.evidence(dispute.low))
        return None

    def _range(self, claim: Claim, run: Run | None) -> tuple[int, int]:
        chance = self.world.chance
        if run is not None and self.way == "honest" and run.fault is not None:
            place = run.fault[0]
            return chance.choice(((0, claim.size), (place, place + 1), (0, place + 1)))
        low = chance.randrange(claim.size)
        return chance.choice(((0, claim.size), (low, chance.randint(low + 1, claim.size))))


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
