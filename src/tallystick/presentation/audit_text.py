"""The report of an audit as text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from tallystick.audits.report import Report, claim_named
from tallystick.presentation.verdict_text import VerdictText

if TYPE_CHECKING:
    from tallystick.audits.inference import InferenceReport
    from tallystick.presentation.circumstances import Circumstances

GRAPHS_SHOWN: Final = 8


def audit_text(report: Report | InferenceReport, made: Circumstances) -> VerdictText:
    """What the report of an audit says in lines of text."""
    graph = f", graph {report.graph}" if report.graph else ""
    details = [*(_details(report) if isinstance(report, Report) else ()), *_other_stack(made)]
    seconds = seconds_of(report, made)
    repeat = (f"repeat: {made.command}",)
    return VerdictText(report.verdict, f"{claim_named(report.claim)}{graph}", (), repeat, tuple(details), seconds)


def seconds_of(report: Report | InferenceReport, made: Circumstances) -> dict[str, float]:
    """How long each part of an audit took."""
    return {
        "start-up": made.startup_seconds,
        "reading and checking": report.reading_seconds,
        "replay": report.replay_seconds,
    }


def _details(report: Report) -> Iterator[str]:
    ratio = "an unknown share" if report.cost_ratio is None else f"{report.cost_ratio:.2f}"
    if report.segments:
        trajectories = sum(segment.trajectory_agrees for segment in report.segments)
        states = sum(segment.state_agrees for segment in report.segments)
        yield f"of {len(report.segments)} segments the trajectory agrees in {trajectories}, the state in {states}"
    if report.graphs:
        yield graphs_line(report)
    yield f"the audit took {ratio} of the training time"


def graphs_line(report: Report) -> str:
    """How many step graphs a run has, and how many steps each; empty if it has that of the spec alone."""
    named = [(root, count) for root, count in report.graphs if root is not None]
    without = sum(count for root, count in report.graphs if root is None)
    shown = [f"{_steps(count)} of {root}" for root, count in named[:GRAPHS_SHOWN]]
    more = [f"{_steps(sum(count for _, count in named[GRAPHS_SHOWN:]))} of others"] if named[GRAPHS_SHOWN:] else []
    none = [f"{_steps(without)} without a graph"] if without else []
    head = f"{len(named)} step graph{'s' * (len(named) != 1)}: "
    return head + ", ".join([*shown, *more, *none]) if report.graphs else ""


def _steps(count: int) -> str:
    return f"{count} step{'s' * (count != 1)}"


def _other_stack(made: Circumstances) -> Iterator[str]:
    """Every entry in which the stack here differs from the claimed one."""
    if made.claimed is not None and made.ours is not None:
        for name, (ours, theirs) in made.ours.differing(made.claimed).items():
            yield f"different stack: {name}: claimed {theirs}, here {ours}"
