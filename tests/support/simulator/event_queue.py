"""Simulated time: what is going to happen, in order; things of one second in the order in which they were put down."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush

Action = Callable[[], None]


class EventQueue:
    """Actions with the second at which each happens."""

    def __init__(self, now: int) -> None:
        self.now = now
        self.events = 0
        self._waiting: list[tuple[int, int, Action]] = []
        self._put = 0

    def after(self, seconds: int, action: Action) -> None:
        """Let `action` happen in so many seconds, at once if they are not positive."""
        self._put += 1
        heappush(self._waiting, (self.now + max(seconds, 0), self._put, action))

    def step(self) -> bool:
        """Let the next thing happen; whether there was one."""
        if not self._waiting:
            return False
        self.now, _, action = heappop(self._waiting)
        self.events += 1
        action()
        return True
