"""`tally` as processes of their own, as users start, stop and kill them."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.prefork.commands import commands

PATIENCE_S = 120.0


@dataclass
class Program:
    """One `tally` process; killed and started again it writes on into the same files."""

    words: tuple[str, ...]
    folder: Path
    name: str
    environment: Mapping[str, str]
    process: subprocess.Popen[bytes] = field(init=False)

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        with self.path("out").open("ab") as out, self.path("err").open("ab") as err:
            self.process = subprocess.Popen(
                [commands() / "tally", *self.words], stdout=out, stderr=err, env=self.environment
            )

    def kill_and_start_again(self) -> None:
        """`kill -9`, unless it has ended by itself."""
        assert self.process.poll() is None, self.err
        self.process.kill()
        self.process.wait()
        self.start()

    def interrupt(self) -> int:
        """Ctrl-C; the exit code."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(PATIENCE_S)

    def path(self, stream: str) -> Path:
        return self.folder / f"{self.name}.{stream}"

    @property
    def out(self) -> str:
        return self.path("out").read_text()

    @property
    def err(self) -> str:
        return self.path("err").read_text()


@dataclass
class Programs:
    """Everything that was started; nothing of it outlives the test."""

    folder: Path
    started: list[Program] = field(default_factory=list)

    def start(self, name: str, *words: object) -> Program:
        program = Program(tuple(map(str, words)), self.folder, name, self.environment)
        self.started.append(program)
        return program

    def tell(self, *words: object) -> str:
        """What a command prints that ends by itself, and well."""
        command = [commands() / "tally", *map(str, words)]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "OMP_NUM_THREADS": "1", "XDG_STATE_HOME": str(self.folder / "state")}


@contextmanager
def running(folder: Path) -> Iterator[Programs]:
    """Programs, all of them dead at the end."""
    folder.mkdir()
    programs = Programs(folder)
    try:
        yield programs
    finally:
        for each in programs.started:
            each.process.kill()
            each.process.wait()


def await_(happened: Callable[[], bool], programs: Programs, meanwhile: Callable[[], object] = lambda: None) -> None:
    """Wait until something has happened; fails with what the programs said where it does not."""
    ends_at = time.monotonic() + PATIENCE_S
    while not happened():
        if time.monotonic() > ends_at:
            pytest.fail("\n".join(f"{each.name}: {each.process.poll()}\n{each.err}" for each in programs.started))
        meanwhile()
        time.sleep(0.05)
