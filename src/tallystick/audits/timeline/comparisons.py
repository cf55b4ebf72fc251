"""Counts the comparisons of each check over millions of events, and keeps the first that disagree."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from tallystick.tolerances.tolerance import Finding

KEPT: Final = 12


@dataclass
class Comparisons:
    """The comparisons of one check: how many were made, how many disagree, and the first of these."""

    made: int = 0
    bad: int = 0
    kept: list[Finding] = field(default_factory=list)


@dataclass
class Comparing:
    """All checks of an audit by name."""

    checks: dict[str, Comparisons] = field(default_factory=dict)

    def check(
        self, name: str, is_good: bool, where: str, why: str, distance: float = 1.0, allowed: float = 0.0
    ) -> None:
        """Note one comparison; `why` says what is wrong where it is not good."""
        found = self.checks.setdefault(name, Comparisons())
        found.made += 1
        if not is_good:
            found.bad += 1
            if len(found.kept) < KEPT:
                found.kept.append(Finding(distance, allowed, name, where, why))

    def findings(self) -> list[Finding]:
        """One finding for each check that agreed throughout, and those that disagree."""
        found: list[Finding] = []
        for name, each in self.checks.items():
            if not each.bad:
                found.append(Finding(0.0, 0.0, name, detail=f"{each.made:,} compared"))
            found += each.kept
            if each.bad > len(each.kept):
                found.append(Finding(1.0, 0.0, name, detail=f"and {each.bad - len(each.kept):,} more"))
        return found
