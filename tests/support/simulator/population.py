"""Who there is in a simulated world, and what each of them is like."""

from __future__ import annotations

from random import Random
from typing import Final

from tallystick.disputes.game import voting
from tallystick.verdicts.verdict import Fault
from tests.support.simulator.actors import Actor, WorldView
from tests.support.simulator.challengers import Challenger
from tests.support.simulator.keeper import Keeper
from tests.support.simulator.members import Member
from tests.support.simulator.officials import Beacon, Guardian, Planter, Referee
from tests.support.simulator.provers import Prover
from tests.support.simulator.setting import BEACON, CHALLENGERS, GUARDIAN, KEEPER, PLANTER, PROVERS, REFEREE, party
from tests.support.simulator.trees import SIZES, Run

REFEREE_WAYS: Final = ("honest", "honest", "honest", "unsure", "absent", "lying")
MEMBER_WAYS: Final = ("honest",) * 8 + ("lying", "lying", "lazy", "absent", "mute", "copying", "hasty", "tardy", "late")
CHALLENGER_WAYS: Final = ("honest", "honest", "honest", "wrong", "careless")
CROWD: Final = 100
"""Sybil challengers of the one claim of a crowded world."""


class Population:
    """Everybody: one keeper and the officials, members, a prover for each claim, and challengers."""

    def __init__(self, world: WorldView) -> None:
        self._world, chance = world, world.chance
        self.keeper = Keeper(world, party(KEEPER))
        self.referee = Referee(world, party(REFEREE))
        self.referee.way = chance.choice(REFEREE_WAYS)
        self.beacon = Beacon(world, party(BEACON), is_honest=chance.random() < 0.8)
        self.planter = Planter(world, party(PLANTER))
        self.guardian = Guardian(world, party(GUARDIAN), is_honest=False)
        self.members = [self._member(name) for name in world.rules.members]
        self.provers, self.challengers = list[Prover](), list[Challenger]()
        is_crowd = chance.random() < 0.02
        self.claims = 1 if is_crowd else chance.choice((1, 1, 2, 3, 4))
        for place in range(self.claims):
            self._add_claim(place)
        for _ in range(CROWD if is_crowd else chance.choice((0, 1, 2, 3, 4))):
            self._add_challenger("wrong" if is_crowd else chance.choice(CHALLENGER_WAYS), is_crowd)
        everybody: list[Actor] = [*self.members, *self.provers, *self.challengers]
        self.actors = {each.name: each for each in everybody}
        self.honest = frozenset(each.name for each in everybody if each.is_honest)

    def _member(self, name: str) -> Member:
        way = self._world.chance.choice(MEMBER_WAYS)
        member = Member(self._world, name, is_honest=way == "honest")
        member.way = way
        return member

    def _add_claim(self, place: int) -> None:
        world, chance = self._world, self._world.chance
        run = draw_run(chance)
        world.learn(run)
        is_planted = world.rules.planter is not None and chance.random() < 0.4
        is_plain = is_planted or chance.random() < 0.8
        way = "plain" if is_plain else chance.choice(("hollow", "severed", "shallow", "deep"))
        prover = Prover(world, party(PROVERS[0] + place), run, way)
        self.provers.append(prover)
        seal = self._plant(prover, run) if is_planted else f"{chance.getrandbits(256):064x}"
        world.send(prover.claim(seal), chance.randint(1, 3 * world.delays.answer))

    def _plant(self, prover: Prover, run: Run) -> str:
        """The seal of a claim whose answer the planter knows, with an accomplice who will contest it."""
        answer = Fault.CHALLENGER if run.fault is None else Fault.PROVER
        seal = voting.seal(prover.name, answer, self.planter.salt)
        accomplice = self._add_challenger("wrong" if run.fault is None else "honest", is_keen=False)
        accomplice.tries = 0.0
        self.planter.planted[seal] = (accomplice.name, answer)
        return seal

    def _add_challenger(self, way: str, is_keen: bool) -> Challenger:
        challenger = Challenger(self._world, party(CHALLENGERS[0] + len(self.challengers)), way)
        challenger.tries = 1.0 if is_keen else challenger.tries
        self.challengers.append(challenger)
        return challenger


def draw_run(chance: Random) -> Run:
    """A run of some size, wrong at some place more often than not."""
    steps, width, levels = chance.choice(SIZES), chance.choice(SIZES), chance.choice((1, 2, 2))
    fault = None
    if chance.random() < 0.55:
        fault = (_place_in(chance, steps), _place_in(chance, width) if levels == 2 else 0)
    return Run(chance.randrange(2), steps, width, levels, fault, is_edge=chance.random() < 0.4)


def _place_in(chance: Random, size: int) -> int:
    """The first, the second, a middle or the last place."""
    return chance.choice((0, min(1, size - 1), size // 2, size - 1))
