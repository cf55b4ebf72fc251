"""Starts the server, once in a process of tests, and makes the `tally` and the `python` that ask it."""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path

HERE = Path(__file__).parent


@cache
def commands() -> Path:
    """A folder with a `tally` and a `python`, to stand first on a PATH; it is there until this process ends."""
    until_exit = ExitStack()
    atexit.register(until_exit.close)
    return until_exit.enter_context(serving())


@contextmanager
def serving() -> Iterator[Path]:
    """That folder, and the server behind it."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    with tempfile.TemporaryDirectory(prefix="tally-prefork-") as outer:
        folder = Path(outer)
        words = [sys.executable, str(HERE / "server.py"), str(folder)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with subprocess.Popen(words, env=environment, **pipes) as process:  # type: ignore[call-overload]
            assert process.stdout.readline() == b"ready\n"
            for name in ("tally", "python"):
                program = folder / name
                program.write_text(f"#!{sys.executable} -IS\n" + (HERE / "client.py").read_text())
                program.chmod(0o755)
            yield folder
            process.stdin.close()
