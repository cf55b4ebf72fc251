"""The findings of a verdict by check, and as rows of a table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tallystick.verdicts.tolerance import Finding

if TYPE_CHECKING:
    from tallystick.verdicts.words import VerdictText


# The findings of a verdict by check.


@dataclass(frozen=True)
class CheckSummary:
    """All findings of one check together; `worst` disagrees, or has the largest distance."""

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


# Every check of a verdict as rows of a table.

COLUMNS: Final = ("check", "verdict", "n", "agree", "largest distance", "allowed")
COST_COLUMNS: Final = ("bytes", "seconds")


def check_table(text: VerdictText) -> list[str]:
    """One row for each check: verdict, comparisons, those that agree, the worst distance, and what is allowed."""
    summaries = {each.name: each for each in summarise_checks(text.verdict.findings)}
    names = dict.fromkeys([*summaries, *sorted(text.open_checks), *text.costs])
    rows = [[*COLUMNS, *(COST_COLUMNS if text.costs else ())]]
    rows += [[*_cells(text, name, summaries.get(name)), *_cost(text, name)] for name in names]
    return aligned(rows, left=2)


def _cells(text: VerdictText, name: str, check: CheckSummary | None) -> list[str]:
    is_open = name in text.open_checks
    if check is None:
        return [name, "open" if is_open else "", "", "", "", ""]
    mark = "advisory" if check.advisory else "no" if check.disagreeing else "open" if is_open else "yes"
    sizes = [f"{check.worst.distance:.3g}", f"{check.worst.allowed:.3g}"]
    return [name, mark, str(check.count), str(check.count - check.disagreeing), *sizes]


def _cost(text: VerdictText, name: str) -> list[str]:
    if not text.costs:
        return []
    cost = text.costs.get(name)
    return ["", ""] if cost is None else [str(cost.bytes), f"{cost.seconds:.4f}"]


def aligned(rows: list[list[str]], left: int) -> list[str]:
    """Rows as lines of columns; the first `left` columns are aligned to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if place < left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
