"""A workshop process: it imports PyTorch once and forks a child for every job, which may be killed in the middle.

Each line on stdin is a job, each line on stdout its outcome:

    {"do": "train" | "resume", "recipe": {…}, "source": path, "out": path, "kill_at": event, "with": signal}

    with "keep": text as well, anchors hold what changed alone, and only some of them are kept
    {"events": how many, "signal": 9 or 0, "error": text}

An event is an instant around a write: before and after every appended line, in the middle of it, and before every
file under `out` is opened for writing, renamed, truncated or removed. The child sends itself the signal at `kill_at`:
SIGKILL, or SIGINT as Ctrl-C does.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch

from tallystick.core.errors import TallyError
from tallystick.engines.torch.environment import describe_environment
from tallystick.engines.torch.training.trainer import build_model
from tallystick.formats.recipe import Recipe
from tallystick.formats.store.keeping import AnchorKeeping, AnchorWriter
from tallystick.formats.store.log import LogWriter
from tallystick.recording.training import Config, resume, train

WRITES = os.O_WRONLY | os.O_RDWR


class Executioner:
    """Counts events and ends this process without warning at the chosen one."""

    def __init__(self, out: str, kill_at: int, signal_number: int) -> None:
        self.out, self.kill_at, self.signal, self.events = out, kill_at, signal_number, 0

    def event(self) -> None:
        self.events += 1
        if self.events == self.kill_at:
            os.kill(os.getpid(), self.signal)

    def watch(self) -> None:
        sys.addaudithook(self._on_audit)
        append = LogWriter.append

        def watched(log: LogWriter, line: bytes) -> None:
            self.event()
            if self.events + 1 == self.kill_at:
                log._lines.write(line[: len(line) // 2])
            self.event()
            append(log, line)
            self.event()

        LogWriter.append = watched  # type: ignore[method-assign]

    def _on_audit(self, name: str, arguments: tuple[Any, ...]) -> None:
        is_write = name == "open" and isinstance(arguments[2], int) and arguments[2] & WRITES
        if (is_write or name in {"os.rename", "os.remove", "os.truncate"}) and str(arguments[0]).startswith(self.out):
            self.event()


def perform(job: dict[str, Any], answer: int) -> None:
    executioner = Executioner(job["out"], job["kill_at"], job["with"])
    executioner.watch()
    error, keeping = "", AnchorKeeping.of(job.get("keep"), None)
    if keeping.retention is not None:
        AnchorWriter.__init__.__defaults__ = (0, 0.0)
    try:
        if job["do"] == "train":
            config = Config(Recipe.from_json(job["recipe"], "recipe"), Path(job["source"]))
            train(config, Path(job["out"]), keeping=keeping)
        else:
            resume(Path(job["out"]), keeping=keeping)
    except (TallyError, KeyboardInterrupt) as caught:
        error = f"{type(caught).__name__}: {caught}"
    os.write(answer, json.dumps({"events": executioner.events, "error": error}).encode())


def main() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a test may be run where Ctrl-C is ignored
    os.fsync = lambda _: None  # children are killed, and the machine goes on: what they wrote stays
    torch.set_num_threads(1)
    describe_environment("cpu")
    for line in sys.stdin:
        build_model(Recipe.from_json(json.loads(line)["recipe"], "recipe"), 256)  # imports what a child then has
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            perform(json.loads(line), write)
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as pipe:
            said = json.loads(pipe.read() or "{}")
        status = os.waitpid(child, 0)[1]
        outcome = {"events": 0, "error": "", "signal": status & 127} | said
        if status >> 8:
            outcome["error"] = f"exit {status >> 8}"
        print(json.dumps(outcome), flush=True)


if __name__ == "__main__":
    main()
