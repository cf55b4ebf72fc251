"""The verdict: accepted, rejected or inconclusive, with all findings and everything that was not checked."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from typing import Literal

from tallystick.commitments.encoding import Json
from tallystick.tolerances.tolerance import Finding

Outcome = Literal["accepted", "rejected", "inconclusive"]
ZERO_SIGNS = "the sign of a zero: to limits, -0.0 and 0.0 are one number; an exact audit tells them apart"
EXIT_CODES: dict[Outcome, int] = {"accepted": 0, "rejected": 1, "inconclusive": 3}


class Judgement(ABC):
    """What has an outcome. It is true if accepted; false is rejected or inconclusive, which `outcome` tells apart."""

    @property
    @abstractmethod
    def outcome(self) -> Outcome:
        """`"accepted"`, `"rejected"` or `"inconclusive"`."""

    @property
    @abstractmethod
    def gist(self) -> str:
        """What was judged, in a few words."""

    @property
    def accepted(self) -> bool:
        """Whether the outcome is `"accepted"`."""
        return self.outcome == "accepted"

    @property
    def exit_code(self) -> int:
        """0, 1 or 3 (DESIGN §7)."""
        return EXIT_CODES[self.outcome]

    def __bool__(self) -> bool:
        return self.accepted

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.outcome}: {self.gist}>"


@dataclass(frozen=True)
class VerdictCoverage:
    """How much was judged, and how closely: `done` of `total` units.

    `drawn` of these were drawn without replacement; it is `None` where somebody else says what follows for the others.
    """

    done: int
    total: int
    unit: str
    how: str
    drawn: int | None = 0
    closely: str = ""

    def __str__(self) -> str:
        return f"{self.done} of {self.total} {self.unit[: -1 if self.total == 1 else None]} {self.how}"


@dataclass(frozen=True, repr=False)
class Verdict(Judgement):
    """The outcome of an audit.

    If nothing was checked, the outcome is inconclusive. A check that could not be made never counts as passed. An
    advisory finding is shown and decides nothing. `shown` says what was checked beside what the coverage counts.
    """

    findings: tuple[Finding, ...]
    unavailable: tuple[str, ...] = ()
    not_checked: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()
    coverage: VerdictCoverage | None = None
    shown: tuple[str, ...] = ()

    @property
    def outcome(self) -> Outcome:
        """Rejected if any decisive finding disagrees; accepted only if some agreed and nothing was missing."""
        decisive = [finding for finding in self.findings if not finding.advisory]
        if any(not finding.agrees for finding in decisive):
            return "rejected"
        return "accepted" if decisive and not self.unavailable else "inconclusive"

    @property
    def gist(self) -> str:
        """How much was judged."""
        return str(self.coverage or f"{len(self.findings)} comparisons")

    @property
    def objections(self) -> tuple[Finding, ...]:
        """The decisive findings that disagree."""
        return tuple(finding for finding in self.findings if not finding.agrees and not finding.advisory)

    def to_json(self) -> dict[str, Json]:
        """The verdict as JSON values; infinities and NaN are strings."""
        return {
            "verdict": self.outcome,
            "findings": [finding_to_json(finding) for finding in self.findings],
            "unavailable": list(self.unavailable),
            "not_checked": list(self.not_checked),
            "assumptions": list(self.assumptions),
            "coverage": None if self.coverage is None else asdict(self.coverage),
            "checked": list(self.shown),
        }


def finding_to_json(finding: Finding) -> Json:
    """One finding as JSON values."""
    return {
        "check": finding.name,
        "where": finding.where,
        "distance": number(finding.distance),
        "allowed": number(finding.allowed),
        "agrees": finding.agrees,
        "advisory": finding.advisory,
        "detail": finding.detail,
    }


def number(value: float) -> Json:
    """A JSON number, or a string for an infinity or NaN."""
    if value != value:
        return "nan"
    if value in (float("inf"), float("-inf")):
        return "inf" if value > 0 else "-inf"
    return value
