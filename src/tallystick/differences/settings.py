"""The settings of this process that decide bits, and running a replay under those of a run.

Threads and instruction sets are chosen when PyTorch is loaded. So a replay under other settings than this process has
runs in a process of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tallystick.errors import UnavailableError
from tallystick.transcripts.environment import Environment
from tallystick.transcripts.switches import CAPABILITY, SWITCHES, THREADS, THREADS_MAX, VALUE


@dataclass(frozen=True)
class ReplaySettings:
    """Variables and threads of a process that replays; an empty variable is not set."""

    variables: Mapping[str, str] = field(default_factory=dict)
    threads: int = 1

    @classmethod
    def of(cls, environment: Environment) -> ReplaySettings:
        """Those that a run states, as far as this machine can take them over."""
        stated = {name: environment.variables.get(name, "") for name in SWITCHES}
        if not stated[CAPABILITY] and environment.capability in ("DEFAULT", "AVX2") and _is_x86(environment):
            stated[CAPABILITY] = environment.capability.lower()
        usable = {name: value if VALUE.fullmatch(value) else "" for name, value in stated.items()}
        if usable[CAPABILITY] not in ("default", "avx2"):  # a processor may lack what lies above
            usable[CAPABILITY] = ""
        return cls(usable, min(environment.threads, THREADS_MAX))

    def variables_here(self) -> dict[str, str]:
        """The variables of a process with these settings."""
        kept = {name: value for name, value in os.environ.items() if name not in self.variables}
        return kept | {name: value for name, value in self.variables.items() if value} | {THREADS: str(self.threads)}


def run_each(module: str, work: Sequence[tuple[ReplaySettings, Sequence[str]]]) -> None:
    """Run `module` with these arguments under these settings, all at one time, each in a process of its own.

    Raises `UnavailableError` with the last line that a process said if it failed.
    """
    running = [
        subprocess.Popen(
            [sys.executable, "-m", module, *words],
            env=settings.variables_here(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for settings, words in work
    ]
    said = [process.communicate()[1] for process in running]
    for process, text in zip(running, said, strict=True):
        if process.returncode:
            lines = [line for line in text.splitlines() if line.strip()]
            raise UnavailableError(lines[-1] if lines else "a replay ended without a word")


def _is_x86(environment: Environment) -> bool:
    return environment.machine.lower() in ("x86_64", "amd64")
