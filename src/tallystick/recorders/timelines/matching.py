"""Which node of the graph each call of a step is: those of one name and shapes in order, unless that cannot be."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from tallystick.recorders.timelines.graph_names import GraphNames, Key

Nodes: TypeAlias = tuple[int, ...]
Seen: TypeAlias = "dict[Key, list[tuple[int, int]]]"
"""When the calls of each key began and ended, in nanoseconds."""
OPEN_MAX: Final = 4
"""The steps that may be under way at one time."""
RESOLUTION: Final = 1000
"""The nanoseconds by which two times may be wrong."""


@dataclass
class Matching:
    """Matches the calls of every step in two passes: `counting` gathers them, then each call is told its node.

    A key is nobody's in a step in which it has more or fewer calls than nodes, or in which its nodes in order would run
    before what they read: a training accumulates gradients earlier than its graph does.
    """

    names: GraphNames
    counting: bool = True
    open: dict[int | None, Seen] = field(default_factory=dict)
    over: set[int | None] = field(default_factory=set)
    bad: set[tuple[int | None, Key]] = field(default_factory=set)
    turns: Counter[tuple[int | None, Key]] = field(default_factory=Counter)

    def take(self, step: int | None, key: Key, start: int, end: int) -> Nodes | None:
        """The node of a call, `()` if it cannot be told, `None` if the graph has no such operator."""
        nodes = self.names.body.get(key)
        if nodes is None:
            return None
        if self.counting:
            self._note(step, key, start, end)
            return ()
        turn = self.turns[step, key]
        self.turns[step, key] += 1
        return () if (step, key) in self.bad else (nodes[turn],)

    def finish_counting(self) -> None:
        """Settle the steps that are left; calls are told their nodes from now on."""
        for step in [*self.open]:
            self._settle(step)
        self.counting = False

    def _note(self, step: int | None, key: Key, start: int, end: int) -> None:
        if step in self.over:  # it goes on after later ones have begun
            self.bad.add((step, key))
            return
        self.open.setdefault(step, {}).setdefault(key, []).append((start, end))
        if len(self.open) > OPEN_MAX:
            self._settle(next(iter(self.open)))

    def _settle(self, step: int | None) -> None:
        seen = self.open.pop(step)
        self.over.add(step)
        body = self.names.body
        for times in seen.values():
            times.sort()  # those of a closure come behind others of their step
        good = {key for key, times in seen.items() if len(times) == len(body[key])}
        while wrong := self._out_of_order(seen, good):
            good -= wrong
        self.bad |= {(step, key) for key in seen.keys() - good}

    def _out_of_order(self, seen: Seen, good: set[Key]) -> set[Key]:
        """The keys of nodes that would run before what they read, and of what they read."""
        times, keys = dict[int, tuple[int, int]](), dict[int, Key]()
        for key in good:
            times |= zip(self.names.body[key], seen[key], strict=True)
            keys |= dict.fromkeys(self.names.body[key], key)
        ended: dict[int, tuple[int, int]] = {}
        wrong: set[Key] = set()
        for number, reads in self.names.reads.items():
            ended[number] = max((ended[read] for read in reads), default=(0, -1))
            if number in times:
                end, before = ended[number]
                if end > times[number][0] + RESOLUTION:
                    wrong |= {keys[number], keys[before]}
                ended[number] = (times[number][1], number)
        return wrong
