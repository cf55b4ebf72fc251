"""A local coordinator that is killed now and then, and starts again from its log."""

from __future__ import annotations

from random import Random

from tallystick.core.errors import RuleError
from tallystick.disputes.coordinators.coordinator import MoveEntry, replayed
from tallystick.disputes.game.game import apply
from tallystick.disputes.game.moves import Move
from tallystick.disputes.game.state import Rules, State
from tests.support.simulator.event_queue import EventQueue
from tests.support.simulator.invariant_checker import BrokenError, MoveObserver, Published


class RestartingCoordinator:
    """A local coordinator: takes moves one by one, keeps them, and is killed now and then before or after keeping.

    Whoever got no answer asks again; only a party that posts or contests reads first what there is.
    """

    def __init__(
        self,
        rules: Rules,
        queue: EventQueue,
        chance: Random,
        observer: MoveObserver,
        published: Published,
        kills: float,
    ) -> None:
        self.head = State(rules)
        self._queue, self._chance, self._observer = queue, chance, observer
        self._published, self._kills = published, kills
        self._log: list[MoveEntry] = []

    def submit(self, move: Move) -> None:
        """Try a move; a coordinator that is killed before keeping it is asked again by the party."""
        if self._chance.random() < self._kills:
            self._restart()
            self._queue.after(0, lambda: self.submit(move))
            return
        before, now = self.head, self._queue.now
        try:
            after = apply(before, move, now)
        except RuleError as error:
            self._observer.refused(move, now, error.code)
            return
        self._observer.accepted(before, move, now, after)
        self.head = after
        self._log.append(MoveEntry(len(self._log), now, move))
        self._observer.final(self._log[-1], before, after)
        if self._chance.random() < self._kills:
            self._restart()
            if hasattr(move, "dispute"):
                self._queue.after(0, lambda: self.submit(move))
        self._published(before, self.head)

    def entries(self) -> list[MoveEntry]:
        """All accepted moves."""
        return self._log

    def _restart(self) -> None:
        self._observer.happened("restart")
        state = replayed(self.head.rules, self._log)
        if state != self.head:
            raise BrokenError("a coordinator that started again from its log is in another state")
        self.head = state
