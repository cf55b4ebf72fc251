"""The findings of a verdict by check."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from tallystick.tolerances.tolerance import Finding


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
