"""A terminal: one bash process, into which blocks are pasted one after the other."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.pages.reading import PageError

PAUSE_S = 0.02
GRACE_S = 5.0
PASTED = "failed=; trap 'failed=\"$failed $?\"' ERR\n{text}\ntrap - ERR\n"
"""A block, and the exit codes of those of its commands that fail."""


@dataclass
class Paste:
    """One block in its terminal: what it has printed so far, and how it ended."""

    path: Path

    @property
    def is_done(self) -> bool:
        return self.path.with_suffix(".done").exists()

    @property
    def failed(self) -> list[int]:
        """The exit codes of the commands that failed, in order."""
        return [int(code) for code in self.path.with_suffix(".done").read_text().split()]

    def printed(self, stream: str) -> str:
        return self.path.with_suffix(f".{stream}").read_text(errors="replace")

    @property
    def all_printed(self) -> str:
        return self.printed("stdout") + self.printed("stderr")


@dataclass
class Terminal:
    """A bash process with `folder` as its first directory; `scratch` keeps what its blocks print."""

    name: str
    folder: Path
    scratch: Path
    environment: Mapping[str, str]
    pastes: list[Paste] = field(default_factory=list)
    process: subprocess.Popen[str] = field(init=False)

    def __post_init__(self) -> None:
        self.process = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            cwd=self.folder,
            env=dict(self.environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )

    def paste(self, text: str) -> Paste:
        """Begin to run a block; the one before it must have ended."""
        paste = Paste(self.scratch / f"{self.name}-{len(self.pastes)}.sh")
        paste.path.write_text(PASTED.format(text=text))
        out, err, done, part = (paste.path.with_suffix(f".{end}") for end in ("stdout", "stderr", "done", "part"))
        out.touch(), err.touch()
        assert self.process.stdin
        self.process.stdin.write(
            f". {quoted(paste.path)} >{quoted(out)} 2>{quoted(err)} </dev/null; "
            f"echo $failed >{quoted(part)}; mv {quoted(part)} {quoted(done)}\n"
        )
        self.process.stdin.flush()
        self.pastes.append(paste)
        return paste

    @property
    def is_open(self) -> bool:
        return self.process.poll() is None

    def wait(self, ends_at: float) -> None:
        """Wait until what runs here has ended."""
        for paste in self.pastes[-1:]:
            while not paste.is_done:
                self.check_time(paste, ends_at)

    def wait_for(self, text: str, ends_at: float) -> None:
        """Wait until what runs here has printed `text`."""
        paste = self.pastes[-1]
        while text not in paste.all_printed:
            if paste.is_done:
                raise PageError(f"ended before it printed {text!r}:\n{paste.all_printed}")
            self.check_time(paste, ends_at)

    def check_time(self, paste: Paste, ends_at: float) -> None:
        """Let a moment pass; there is none left where the page's time is over or the terminal has closed."""
        if time.monotonic() > ends_at:
            raise PageError(f"took too long; it has printed\n{paste.all_printed}")
        if not self.is_open and not paste.is_done:
            raise PageError(f"closed the terminal; it has printed\n{paste.all_printed}")
        time.sleep(PAUSE_S)

    def close(self) -> None:
        """End the terminal and all that runs in it: first asked to, then killed."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            ends_at = time.monotonic() + GRACE_S
            while self.is_alive(number) and time.monotonic() < ends_at:
                number = 0
                time.sleep(PAUSE_S)
        assert self.process.stdin
        self.process.stdin.close()

    def is_alive(self, number: int) -> bool:
        """Whether any process of the terminal lives, after this signal to all of them."""
        self.process.poll()
        try:
            os.killpg(self.process.pid, number)
        except ProcessLookupError:
            return False
        return True


def quoted(path: Path) -> str:
    return shlex.quote(str(path))
