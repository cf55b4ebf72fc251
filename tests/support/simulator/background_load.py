"""What goes on beside disputes: stakes, pauses, members that try to get away, and moves at random."""

from __future__ import annotations

from typing import Protocol

from tallystick.disputes.game.context import game_time
from tallystick.disputes.game.moves import Enlist, Retire
from tallystick.disputes.game.state import Phase
from tests.support.simulator.actors import WorldView
from tests.support.simulator.event_queue import EventQueue
from tests.support.simulator.invariant_checker import Place
from tests.support.simulator.members import Member
from tests.support.simulator.population import Population
from tests.support.simulator.random_moves import RandomMover, seconds_to_due
from tests.support.simulator.setting import RANDOM_MOVERS, party


class SimulatedWorld(WorldView, Protocol):
    """The world as a whole, which parties do not see."""

    place: Place
    queue: EventQueue
    is_closing: bool


class BackgroundLoad:
    """Starts everything that needs no dispute."""

    def __init__(self, world: SimulatedWorld, people: Population) -> None:
        self._world, chance = world, world.chance
        for name in world.rules.members:
            if chance.random() < 0.93:
                world.send(Enlist(actor=name, value=world.rules.stake), chance.randint(0, 2))
        if world.rules.guardian and chance.random() < 0.7:
            tries = chance.randint(0, 3)
            world.after(chance.randint(1, 20 * world.delays.answer), lambda: people.guardian.roam(tries))
        rogues = [name for name, each in people.actors.items() if not each.is_honest]
        self._mover = RandomMover(chance, world.truth, [party(each) for each in RANDOM_MOVERS] + rogues)
        self._move_at_random(chance.choice((0, 20, 60, 120)))
        self._get_away([each for each in people.members if not each.is_honest])

    def _move_at_random(self, left: int) -> None:
        world = self._world
        if not left or world.is_closing:
            return
        state = world.place.head
        if state.disputes or world.chance.random() < 0.1:
            world.place.submit(self._mover.move(state))
        open_ones = [each for each in state.disputes if each.phase is not Phase.SETTLED]
        wait = world.chance.randint(0, world.delays.answer)
        if open_ones and world.chance.random() < 0.5:
            due = seconds_to_due(state, world.chance.choice(open_ones), game_time(state, world.queue.now))
            wait = max(0, due + world.chance.choice((-1, 0, 0, 1)))
        world.after(wait, lambda: self._move_at_random(left - 1))

    def _get_away(self, rogues: list[Member], left: int = 8) -> None:
        """Members that are not honest try to take their stake home, and those that lost it come back."""
        world = self._world
        if world.is_closing:
            return
        for each in rogues:
            held = world.view.members.get(each.name)
            if held is None or world.chance.random() < 0.5:
                continue
            if held.stake:
                world.send(Retire(actor=each.name), held.bound_until - world.time)
            else:
                world.send(Enlist(actor=each.name, value=world.rules.stake))
        if left and rogues:
            wait = world.rules.vote_window + world.rules.appeal_window
            world.after(wait, lambda: self._get_away(rogues, left - 1))
