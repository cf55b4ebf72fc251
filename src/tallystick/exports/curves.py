"""What other tools show of a run: its curves, how far replays drifted, its claim and its verdicts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from tallystick.api.database import Database
from tallystick.errors import UnavailableError
from tallystick.store.database.query import at_least
from tallystick.store.database.rows import AuditRow, RunRow

PREFIX: Final = "tallystick/"
CURVES: Final = ("loss", "gradient_norm", "learning_rate", "seconds")
DRIFT: Final = "drift"


@dataclass(frozen=True)
class Point:
    """One value of a curve at a step."""

    curve: str
    step: int
    value: float


@dataclass(frozen=True)
class RunSummary:
    """What is said of a run in words, by the names under which other tools show it."""

    run: RunRow
    audits: tuple[AuditRow, ...]

    @property
    def verdict(self) -> str:
        """The outcome of the newest audit; `none` without one."""
        return self.audits[-1].outcome if self.audits else "none"

    def words(self) -> Mapping[str, str]:
        """Texts by name; what was not stated is left out."""
        told = {
            "claim": self.run.claim,
            "weights": self.run.weights,
            "transcript": self.run.transcript,
            "environment": self.run.environment,
            "verdict": self.verdict,
            "audits": "\n".join(f"{each.made or ''} {each.outcome}: {each.sentence}".strip() for each in self.audits),
        }
        return {name: text for name, text in told.items() if text}


def summary_of(database: Database, name: str) -> RunSummary:
    """The run of this name, and its audits, oldest first; raises `UnavailableError` where there is none."""
    runs = tuple(database.runs.where(name=name).first(1))
    if not runs:
        raise UnavailableError(f"{name}: the database has no run of that name")
    return RunSummary(runs[0], tuple(database.audits.where(run=name)))


def points_of(database: Database, name: str) -> Iterator[Point]:
    """The recorded curves of a run step by step, and then the drift of each replayed step."""
    for row in database.steps.where(run=name):
        for curve in CURVES:
            value = getattr(row, curve)
            if value is not None:
                yield Point(curve, row.step, value)
    yield from _drift(database, name)


def _drift(database: Database, name: str) -> Iterator[Point]:
    """The largest distance of a step over the distance allowed, where an audit allowed any."""
    largest: defaultdict[int, float] = defaultdict(float)
    for finding in database.audits.where(run=name).findings.where(step=at_least(0)):
        if finding.allowed and finding.distance is not None and finding.step is not None:
            largest[finding.step] = max(largest[finding.step], finding.distance / finding.allowed)
    for step in sorted(largest):
        yield Point(DRIFT, step, largest[step])
