"""Running `tally` in this process: its exit code, stdout and stderr; and the clock of its coordinators."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import pytest


class Told(NamedTuple):
    """What one call of `tally` said."""

    code: int
    out: str
    err: str

    @property
    def complaint(self) -> str:
        """The one line on stderr that says what was wrong; progress bars and talk aside."""
        lines = [line for line in self.err.splitlines() if line.startswith("tally: ")]
        assert "Traceback" not in self.err
        return lines[0] if len(lines) == 1 else f"{len(lines)} complaints: {self.err!r}"


@pytest.fixture
def tally(one_thread: None, capfdbinary: pytest.CaptureFixture[bytes]) -> Callable[..., Told]:
    """Run `tally` with the given arguments."""
    from tallystick.tally.cli.entry import run

    def call(*arguments: object) -> Told:
        capfdbinary.readouterr()
        code = run([str(argument) for argument in arguments])
        out, err = capfdbinary.readouterr()
        return Told(code, out.decode(), err.decode())

    return call


@dataclass
class TurnedClock:
    """Stands still but for whoever waits: a wait, however short, takes a second."""

    now: int = 1_800_000_000

    def time(self) -> int:
        """The seconds that `time.time` would give."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """What a party does between two looks at the game."""
        self.now += max(1, round(seconds))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> TurnedClock:
    """The clock of every coordinator in a database, and of every party, in this process."""
    from tallystick.disputes.coordinators.local import coordinator
    from tallystick.disputes.parties import player

    found = TurnedClock()
    monkeypatch.setattr(coordinator, "time", found)
    monkeypatch.setattr(player, "Polling", partial(player.Polling, sleep=found.sleep))
    return found
