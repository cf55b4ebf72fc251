"""Many worlds, one after the other, until so many events have happened."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field

from tallystick.core.errors import TallyError
from tests.support.simulator.invariant_checker import BrokenError
from tests.support.simulator.world import World


@dataclass
class Report:
    """What happened: events are wakings, alarms, moves on their way and blocks; `seconds` are of one processor core."""

    seed: str
    worlds: int = 0
    events: int = 0
    seconds: float = 0.0
    slowest: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)

    def total(self, word: str) -> int:
        """The sum of all counts whose name begins with `word`."""
        return sum(count for name, count in self.counts.items() if name.startswith(word))


def world_of(seed: str, number: int) -> World:
    """World `number` of a simulation: it depends on nothing else."""
    return World(f"{seed}/{number}")


def simulate(seed: str, events: int, start: int = 0) -> Report:
    """Run worlds from number `start` on until `events` have happened.

    Raises `BrokenError` naming seed and world: `world_of(seed, number).run()` fails again in the same way.
    """
    report, began = Report(seed), time.process_time()
    while report.events < events:
        number = start + report.worlds
        world = world_of(seed, number)
        try:
            world.run()
        except (AssertionError, TallyError, LookupError, ValueError, TypeError) as error:
            raise BrokenError(f"seed {seed!r}, world {number}, event {world.queue.events}: {error!r}") from error
        report.worlds += 1
        report.events += world.queue.events
        report.slowest = max(report.slowest, world.accounts.slowest)
        report.counts.update(world.counts)
    report.seconds = time.process_time() - began
    return report
