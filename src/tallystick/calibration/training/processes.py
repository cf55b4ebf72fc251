"""Runs the parts of a study, each in a fresh process on its stack, as many at once as there are processors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tallystick.calibration.training.stacks import Stack, variables_of
from tallystick.errors import UnavailableError


@dataclass(frozen=True)
class StackJob:
    """A module of a study by its full name, the stack it runs on, and its job as JSON values."""

    module: str
    stack: Stack
    name: str
    job: dict[str, Any]


def run_all(folder: Path, tasks: Iterable[StackJob]) -> list[list[dict[str, Any]]]:
    """The results of every task, in the order of the tasks; raises `UnavailableError` if one fails."""
    with ThreadPoolExecutor(workers()) as pool:
        return list(pool.map(lambda task: _run(folder, task), tasks))


def workers() -> int:
    """The number of processes to run at once: one for every processor."""
    return os.cpu_count() or 1


def deal(items: list[Any], shares: int) -> list[list[Any]]:
    """The items distributed in turn over at most `shares` lists, none of them empty."""
    return [share for share in (items[first::shares] for first in range(shares)) if share]


def _run(folder: Path, task: StackJob) -> list[dict[str, Any]]:
    job = folder / "jobs" / f"{task.name.replace(' ', '_').replace(',', '')}.json"
    job.parent.mkdir(parents=True, exist_ok=True)
    job.write_text(json.dumps(task.job))
    command = [sys.executable, "-m", task.module, task.stack.name, str(job)]
    done = subprocess.run(command, env=variables_of(task.stack), capture_output=True, text=True, check=False)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["no message"]
        raise UnavailableError(f"{task.module} on {task.stack.name}: {last[0]}")
    results: list[dict[str, Any]] = json.loads(job.with_suffix(".out.json").read_text())
    return results
