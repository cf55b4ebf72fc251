"""A report as a terminal shows it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

from tallystick.cli.output import page
from tallystick.tolerances.tolerance import Finding

if TYPE_CHECKING:
    from tallystick.audits.report import Report

COLOURS = {"accepted": "green", "rejected": "red", "inconclusive": "yellow"}
OBJECTIONS_SHOWN = 12


@dataclass(frozen=True)
class CheckSummary:
    """All findings of one check together."""

    name: str
    count: int
    disagreeing: int
    advisory: bool
    worst: Finding


def summarise_checks(findings: Iterable[Finding]) -> list[CheckSummary]:
    """The findings by check, in the order in which the checks were made."""
    groups: dict[str, list[Finding]] = defaultdict(list)
    for finding in findings:
        groups[finding.name].append(finding)
    return [_summary(name, group) for name, group in groups.items()]


def _summary(name: str, group: list[Finding]) -> CheckSummary:
    worst = max(group, key=lambda finding: (not finding.agrees, finding.distance))
    disagreeing = sum(not finding.agrees for finding in group)
    return CheckSummary(name, len(group), disagreeing, all(finding.advisory for finding in group), worst)


def print_report(report: Report) -> None:
    """Print verdict, checks, objections and what was not checked."""
    console = page()
    outcome = report.verdict.outcome
    console.print(f"[bold {COLOURS[outcome]}]{outcome.upper()}[/]  claim {report.claim}")
    console.print(_table(report))
    for finding in report.verdict.objections[:OBJECTIONS_SHOWN]:
        console.print(f"[red]objection[/] {escape(describe(finding))}", soft_wrap=True)
    if (more := len(report.verdict.objections) - OBJECTIONS_SHOWN) > 0:
        console.print(f"… and {more} more; --json lists all of them")
    for title, lines in sections(report):
        for line in lines:
            console.print(f"[bold]{title}[/] {escape(printable(line))}", soft_wrap=True)
    console.print(_figures(report), soft_wrap=True)


def _table(report: Report) -> Table:
    table = Table(box=None, pad_edge=False)
    for name, side in (("check", "left"), ("n", "right"), ("agree", "right"), ("largest distance", "right")):
        table.add_column(name, justify="right" if side == "right" else "left")
    table.add_column("allowed", justify="right")
    table.add_column("")
    for check in summarise_checks(report.verdict.findings):
        mark = "[red]✗[/]" if check.disagreeing and not check.advisory else "[green]✓[/]"
        note = "advisory" if check.advisory else mark
        agreed = str(check.count - check.disagreeing)
        distance, allowed = f"{check.worst.distance:.3g}", f"{check.worst.allowed:.3g}"
        table.add_row(check.name, str(check.count), agreed, distance, allowed, note)
    return table


def describe(finding: Finding) -> str:
    """One finding as a line: check, place, distance in its unit, and what it means."""
    place = f" at {finding.where}" if finding.where else ""
    detail = f": {finding.detail}" if finding.detail else ""
    size = (
        "" if finding.allowed == 0 and finding.distance == 1 else f" ({finding.distance:.3g} of {finding.allowed:.3g})"
    )
    return printable(f"{finding.name}{place}{size}{detail}")


def printable(text: str) -> str:
    """Text from a run, without what a terminal would obey."""
    return "".join(character if character.isprintable() else "\ufffd" for character in text)


def sections(report: Report) -> Iterable[tuple[str, tuple[str, ...]]]:
    """What is missing from the verdict, and what it rests on."""
    verdict = report.verdict
    yield "could not check:", verdict.unavailable
    yield "not checked:", verdict.not_checked
    yield "assumed:", verdict.assumptions


def _figures(report: Report) -> str:
    ratio = "an unknown share" if report.cost_ratio is None else f"{report.cost_ratio:.2f}"
    lines = [f"replayed {report.replayed_steps} of {report.steps} steps; cost {ratio} of the training time"]
    if report.segments:
        lines.append(_agreement(report))
        lines.append(f"chance that the sample of {len(report.selection.sampled)} held a bad step: {_chances(report)}")
    if report.nonce:
        lines.append(f"repeat with --nonce {report.nonce.hex()}")
    return "\n".join(lines)


def _agreement(report: Report) -> str:
    count = len(report.segments)
    trajectories = sum(segment.trajectory_agrees for segment in report.segments)
    states = sum(segment.state_agrees for segment in report.segments)
    return f"of {count} segments the trajectory agrees in {trajectories}, the state in {states}"


def _chances(report: Report) -> str:
    chances = report.detection().items()
    return ", ".join(
        f"{100 * chance:.0f} % if {100 * float(share):g} % of the steps were bad" for share, chance in chances
    )
