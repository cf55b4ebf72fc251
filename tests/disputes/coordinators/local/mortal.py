"""A process that forks a child for every order; the child is killed at a chosen point of what it does.

Forked here and not in the process of the tests: that one has threads of JAX and PyTorch, which no fork survives well.

    {"do": "take", "folder": path, "number": of the script, "move": signed move, "point": n} → {"killed": bool}
    {"do": "set up", "path": path, "point": n}                                               → {"killed": bool}

Points are those before every statement and commit, and the one after the act.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from tallystick.disputes.coordinators.local.coordinator import LocalCoordinator
from tallystick.disputes.parties.programs import Clock
from tests.disputes.coordinators.local.keys import LocalWorld, key_of, set_up
from tests.disputes.coordinators.local.script import rules, second_of

ROOT = Path(__file__).parents[4]


def reopened(folder: Path, number: int = 0) -> LocalWorld:
    """The coordinator in a folder, at the second of a move of the script."""
    clock = Clock(second_of(number))
    return LocalWorld(LocalCoordinator.open(folder / "coordinator.db", key_of("coordinator"), clock), clock)


class Workshop:
    """The tests' end of that process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def killed(self, **order: Any) -> bool:
        """Whether the child was killed; it was not if it ended first."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        status = int(self.process.stdout.readline())
        assert status in (0, -signal.SIGKILL), "the child failed by itself"
        return status != 0


@contextmanager
def workshop() -> Iterator[Workshop]:
    command = [sys.executable, "-m", "tests.disputes.coordinators.local.mortal"]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield Workshop(process)
    finally:
        process.communicate(timeout=120)
    assert process.returncode == 0


def prepared(order: dict[str, Any]) -> Callable[[], object]:
    if order["do"] == "set up":
        return lambda: set_up(Path(order["path"]), rules(), purse=0)
    place = reopened(Path(order["folder"]), order["number"]).place
    return lambda: place.take(order["move"].encode())


def perform(order: dict[str, Any]) -> None:
    act = prepared(order)
    pass_by = killer(order["point"])
    act()
    pass_by()


def killer(point: int) -> Callable[..., None]:
    """What kills this process when it is called after `point` earlier calls, by the database or otherwise."""
    points = itertools.count()

    def pass_by(*_: object) -> None:
        if next(points) == point:
            os.kill(os.getpid(), signal.SIGKILL)

    for event in ("before_cursor_execute", "commit"):
        sa.event.listen(sa.Engine, event, pass_by)
    return pass_by


def main() -> None:
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            perform(json.loads(line))
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
