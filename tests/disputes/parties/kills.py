"""Kills a program at the n-th point at which it touches the world: before it reads, writes or moves.

The point after a call is left out: until the next call nothing changes in the world, so it is that of the next call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from tallystick.disputes.parties import player as workspace
from tallystick.disputes.parties.player import Player


class Killed(BaseException):
    """The program is dead; nothing in it may catch this."""


@dataclass
class Reaper:
    """Counts the points that one program passes, and kills it at point `at`, once."""

    at: int
    passed: int = 0

    def point(self) -> None:
        self.passed += 1
        if self.passed == self.at + 1:
            raise Killed

    def around(self, call: Callable[..., Any], *arguments: Any) -> Any:
        self.point()
        return call(*arguments)


@dataclass
class Watched:
    """A coordinator or board whose every call passes a point."""

    inner: Any
    reaper: Reaper

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        return partial(self.reaper.around, found) if callable(found) else found


@dataclass
class Mortal:
    """A player that is started again in the same folder whenever it was killed."""

    reaper: Reaper
    start: Callable[..., Player]
    patch: pytest.MonkeyPatch
    player: Player | None = None

    def step(self) -> bool:
        try:
            with self._disk():
                return self._living().step()
        except Killed:
            assert self.player is not None
            self.player.workspace.close()
            self.player = None
            return True

    def wakes(self) -> int | None:
        return self._living().wakes()

    def _living(self) -> Player:
        if self.player is None:
            watched = partial(Watched, reaper=self.reaper)
            self.player = self.start(wrap=watched, wrap_board=watched)
        return self.player

    @contextmanager
    def _disk(self) -> Iterator[None]:
        """Writes of this program alone pass points too."""
        write = workspace.write_atomically
        with self.patch.context() as patch:
            patch.setattr(workspace, "write_atomically", partial(self.reaper.around, write))
            yield
