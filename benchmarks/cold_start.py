"""`tally --help` ÷ `python -c pass`, and both as they are felt.

Each arm is a process of its own, from start to exit; wall clock, rounds in random order, files in the page cache. The
goal of 0.15 s is for the command itself.
"""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from benchmarks.figure import Figure, Goal
from benchmarks.measure import Arm, interval, median_ratio, take_rounds

TALLY = str(Path(sys.executable).with_name("tally"))
COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "tally --help": [TALLY, "--help"],
    "tally --version": [TALLY, "--version"],
    "import tallystick": [sys.executable, "-c", "import tallystick"],
}


def figures(quick: bool) -> Iterator[Figure]:
    count, rng = (5 if quick else 40), random.Random(6)
    rounds = take_rounds({name: _process(command) for name, command in COMMANDS.items()}, count, rng)
    seconds = interval(rounds, lambda seen: median(spent["tally --help"].wall for spent in seen), rng)
    least = {f"{name}, least s": min(spent[name].wall for spent in rounds) for name in COMMANDS}
    what = "`tally --help` from start to exit"
    yield Figure("cold_start: seconds", what, seconds, count, "wall", "s", Goal(0.15), details=least)
    for name in ("tally --help", "tally --version", "import tallystick"):
        value = interval(rounds, median_ratio(name, "python -c pass", "wall"), rng)
        yield Figure(f"cold_start: {name}", f"`{name}` ÷ `python -c pass`", value, count, "wall")


def _process(command: list[str]) -> Arm:
    return lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
