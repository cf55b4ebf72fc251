"""A figure: one measured value beside its goal, printed as a human line and a JSON line."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from benchmarks.measure import Interval

Outcome = Literal["met", "missed", "open", "void", ""]


@dataclass(frozen=True)
class Goal:
    """Where a figure has to lie: the whole interval has to, not the estimate."""

    limit: float
    at_most: bool = True

    def judge(self, value: Interval) -> Outcome:
        """`open` where the interval holds the limit: more rounds or a quieter machine would be needed."""
        if value.low <= self.limit <= value.high and value.low != value.high:
            edge = value.high if self.at_most else value.low
            return "met" if edge == self.limit else "open"
        return "met" if (value.estimate <= self.limit) == self.at_most else "missed"

    def __str__(self) -> str:
        return f"{'≤' if self.at_most else '≥'} {self.limit:g}"


@dataclass(frozen=True)
class Figure:
    """One value with what it is a ratio (or a number) of, how often it was taken, and by which clock."""

    name: str
    what: str
    value: Interval
    rounds: int
    clock: str
    unit: str = "×"
    goal: Goal | None = None
    is_void: bool = False
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def outcome(self) -> Outcome:
        """Whether the goal is met; `void` where a control failed."""
        if self.is_void:
            return "void"
        return self.goal.judge(self.value) if self.goal is not None else ""

    def to_json(self) -> dict[str, Any]:
        """The figure as JSON values."""
        return {
            "name": self.name,
            "what": self.what,
            "value": shorten(self.value),
            "unit": self.unit,
            "goal": str(self.goal) if self.goal else None,
            "outcome": self.outcome,
            "rounds": self.rounds,
            "clock": self.clock,
            **{name: shorten(value) for name, value in self.details.items()},
        }

    def __str__(self) -> str:
        value = self.value
        goal = f"  goal {self.goal}: {self.outcome}" if self.goal else f"  {self.outcome}"
        return (
            f"{self.name:<44} {value.estimate:.5g} [{value.low:.5g}, {value.high:.5g}] {self.unit}"
            f"  {self.clock}, n = {self.rounds}{goal}"
        )


def shorten(value: object) -> object:
    """Intervals as three numbers, and every number to six digits: the rest is noise."""
    if isinstance(value, Interval):
        return [shorten(part) for part in (value.estimate, value.low, value.high)]
    if isinstance(value, float):
        return float(f"{value:.6g}")
    return value


def print_figure(figure: Figure) -> None:
    """One human line and one JSON line."""
    print(figure)
    print(json.dumps(figure.to_json(), ensure_ascii=False), flush=True)


def describe_machine() -> dict[str, Any]:
    """What the figures depend on; names no host, person or path."""
    import torch

    return {
        "cpu": _first("/proc/cpuinfo", "model name") or platform.processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "numpy", "tallystick")},
    }


def load() -> float:
    """The load average of the last minute."""
    return round(os.getloadavg()[0], 2)


def _first(path: str, name: str) -> str | None:
    lines = Path(path).read_text().splitlines() if Path(path).is_file() else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(name)), None)
