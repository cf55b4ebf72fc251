"""Which steps of a run audits have replayed, and with which verdict."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from tallystick.api.database import Database
from tallystick.store.database.query import Query
from tallystick.store.database.rows import AuditedSegmentRow, AuditRow

SEGMENTS_MAX: Final = 20_000
AGREES: Final = "agrees"


@dataclass(frozen=True)
class StepSpan:
    """The steps from `first` to `last`, and the verdict of whoever replayed them."""

    first: int
    last: int
    verdict: str


def spans_of_run(database: Database, run: str) -> tuple[StepSpan, ...]:
    """The replayed steps of a run, by their first step."""
    audits, segments = database.audits.where(run=run), database.about("audited_segments").where(run=run)
    return replayed(audits, segments).get(run, ())


def spans_of_all(database: Database) -> Mapping[str, tuple[StepSpan, ...]]:
    """The replayed steps of every run by its name."""
    return replayed(database.audits, database.about("audited_segments"))


def replayed(audits: Query[AuditRow], segments: Query[AuditedSegmentRow]) -> dict[str, tuple[StepSpan, ...]]:
    """The spans of each run; a part that agrees is accepted only where the whole audit was."""
    outcomes = {audit.digest: audit.outcome for audit in audits.first(SEGMENTS_MAX)}
    found: dict[str, list[StepSpan]] = {}
    for each in segments.first(SEGMENTS_MAX):
        if each.run is not None and each.audit in outcomes:
            verdict = verdict_of(each.outcome, outcomes[each.audit])
            found.setdefault(each.run, []).append(StepSpan(each.first_step, each.last_step, verdict))
    return {run: tuple(sorted(spans, key=lambda span: span.first)) for run, spans in found.items()}


def verdict_of(segment: str, audit: str) -> str:
    """The verdict on a replayed part, from what was found there and from the verdict on the whole."""
    if segment == AGREES:
        return audit if audit == "accepted" else "inconclusive"
    return audit


def joined(spans: Iterable[StepSpan], verdict: str) -> list[tuple[int, int]]:
    """The steps with a verdict, as ranges without overlap."""
    ranges: list[tuple[int, int]] = []
    for span in sorted((each for each in spans if each.verdict == verdict), key=lambda each: each.first):
        if ranges and span.first <= ranges[-1][1] + 1:
            ranges[-1] = (ranges[-1][0], max(ranges[-1][1], span.last))
        else:
            ranges.append((span.first, span.last))
    return ranges


def steps_in(ranges: Iterable[tuple[int, int]], steps: int) -> int:
    """How many of the steps 1 to `steps` lie in ranges that do not overlap."""
    return sum(max(0, min(last, steps) - max(first, 1) + 1) for first, last in ranges)
