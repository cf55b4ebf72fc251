"""A chain whose miner orders and censors moves, and whose last blocks can be undone."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from tallystick.core.errors import RuleError
from tallystick.disputes.coordinators.coordinator import MoveEntry
from tallystick.disputes.game.game import apply
from tallystick.disputes.game.moves import Move
from tallystick.disputes.game.state import Rules, State
from tests.support.simulator.event_queue import EventQueue
from tests.support.simulator.invariant_checker import MoveObserver, Published
from tests.support.simulator.setting import Delays


@dataclass
class Sent:
    """A move on its way into a block."""

    move: Move
    put_off: int = 0


@dataclass
class Mined:
    """A block: its time, what was sent for it, and what took effect."""

    time: int
    sent: list[Sent]
    effects: list[tuple[State, Move, State]]


class Chain:
    """A chain: blocks in which the miner orders moves, leaves some out for a while, and that are undone at times."""

    def __init__(
        self,
        rules: Rules,
        queue: EventQueue,
        chance: Random,
        observer: MoveObserver,
        published: Published,
        delays: Delays,
    ) -> None:
        self.head = self.final = State(rules)
        self._queue, self._chance, self._observer = queue, chance, observer
        self._published, self._delays = published, delays
        self._pool: list[Sent] = []
        self._blocks: list[Mined] = []
        self._log: list[MoveEntry] = []
        self._is_due = False
        self._censored: tuple[str, int] = ("", 0)
        self._quiet_until = self._settled_until = 0

    def submit(self, move: Move) -> None:
        """Put a move into the pool, from which it is taken into a block."""
        self._pool.append(Sent(move))
        self._mine_soon()

    def entries(self) -> list[MoveEntry]:
        """The moves of final blocks."""
        return self._log

    def _mine_soon(self) -> None:
        if self._pool and not self._is_due:
            self._is_due = True
            block = self._delays.block
            self._queue.after(block - self._queue.now % block, self._mine)

    def _mine(self) -> None:
        self._is_due = False
        self._maybe_reorganise()
        self._maybe_censor()
        taken = [each for each in self._pool if self._is_taken(each)]
        chosen = set(map(id, taken))
        self._pool = [each for each in self._pool if id(each) not in chosen]
        self._chance.shuffle(taken)
        block = Mined(self._queue.now, taken, [])
        for each in taken:
            self._execute(each.move, block)
        self._blocks.append(block)
        self._queue.after(self._delays.finality, self._finalise)
        self._observer.happened("block")
        self._mine_soon()

    def _execute(self, move: Move, block: Mined) -> None:
        before = self.head
        try:
            self.head = apply(before, move, block.time)
        except RuleError as error:
            self._observer.refused(move, block.time, error.code)
            return
        self._observer.accepted(before, move, block.time, self.head)
        block.effects.append((before, move, self.head))

    def _is_taken(self, sent: Sent) -> bool:
        name, until = self._censored
        if sent.move.actor == name and self._queue.now < until:
            return False
        if sent.put_off < 2 and self._chance.random() < 0.15:
            sent.put_off += 1
            return False
        return True

    def _maybe_censor(self) -> None:
        if self._delays.censored and self._queue.now >= self._quiet_until and self._chance.random() < 0.2:
            self._censored = (self._chance.choice(self._pool).move.actor, self._queue.now + self._delays.censored)
            self._quiet_until = self._queue.now + self._delays.censored + 2 * self._delays.answer
            self._observer.happened("censorship")

    def _maybe_reorganise(self) -> None:
        """Undo the last blocks, up to seven or as many as are not final; none is undone twice."""
        depth, now = self._delays.depth - 1, self._queue.now
        if depth < 1 or now < self._settled_until or self._chance.random() > 0.12:
            return
        since = now - self._chance.choice((1, min(7, depth), depth)) * self._delays.block
        undone = [each for each in self._blocks if each.time >= since]
        if undone:
            self._blocks = self._blocks[: -len(undone)]
            self.head = self._before()
            self._pool = [each for block in undone for each in block.sent] + self._pool
            self._settled_until = now + 2 * self._delays.finality
            self._observer.happened("reorganisation")

    def _before(self) -> State:
        """The state after the last block that did anything, the final one if none is left."""
        for block in reversed(self._blocks):
            if block.effects:
                return block.effects[-1][2]
        return self.final

    def _finalise(self) -> None:
        before, now = self.final, self._queue.now
        while self._blocks and self._blocks[0].time + self._delays.finality <= now:
            block = self._blocks.pop(0)
            for old, move, new in block.effects:
                self._log.append(MoveEntry(len(self._log), block.time, move))
                self._observer.final(self._log[-1], old, new)
                self.final = new
        if self.final is not before:
            self._published(before, self.final)
