"""Running `tally` in this process: its exit code, stdout and stderr."""

from __future__ import annotations

from collections.abc import Callable
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
    from tallystick.cli.entry import run

    def call(*arguments: object) -> Told:
        capfdbinary.readouterr()
        code = run([str(argument) for argument in arguments])
        out, err = capfdbinary.readouterr()
        return Told(code, out.decode(), err.decode())

    return call
