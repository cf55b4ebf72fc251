"""The verdict: accepted, rejected or inconclusive, with all findings and who is at fault."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Literal

from tallystick.core.canonical_json import Json
from tallystick.core.errors import MalformedError, ProofError, UnavailableError
from tallystick.verdicts.tolerance import Finding

# Who is at fault, as decided by a referee, a vote or a timeout.


class Fault(StrEnum):
    """The outcome of a dispute; `NOBODY` means that it could not be decided and both bonds are returned."""

    PROVER = "prover"
    CHALLENGER = "challenger"
    NOBODY = "nobody"


# The verdict: accepted, rejected or inconclusive, with all findings and everything that was not checked.

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

    `drawn` of these were drawn without replacement; `None` if the report states its own confidence.
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
    advisory finding is shown and decides nothing. `shown` lists what else was checked.
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


# Collects the findings of a verdict; a check that raises becomes a finding that disagrees.

AGREES = Finding(0.0, 0.0)
DIFFERS = Finding(1.0, 0.0)


@dataclass(frozen=True)
class Open:
    """A check that could not be made, and why; `lasting` if nothing that is still done can make it."""

    check: str
    reason: str
    lasting: bool = False

    def __str__(self) -> str:
        return f"{self.check}: {self.reason}" if self.check else self.reason


@dataclass(frozen=True)
class Cost:
    """The cost of one check: wall-clock seconds, and bytes of evidence read."""

    check: str
    seconds: float
    bytes: int = 0


@dataclass
class Findings:
    """What an audit knows so far: comparisons, what stays open, and the further lines of its verdict.

    Every audit writes here, and `verdict` reads it once, at the end. With `keeps_going`, what cannot be read or
    obtained stays open; without, the error travels on.
    """

    seen: list[Finding] = field(default_factory=list)
    undecided: list[Open] = field(default_factory=list)
    checked: list[str] = field(default_factory=list)
    not_checked: list[str] = field(default_factory=list)
    assumptions: list[str] = field(default_factory=list)
    costs: list[Cost] = field(default_factory=list)
    keeps_going: bool = False

    @contextmanager
    def check(self, name: str, subject: str = "") -> Iterator[None]:
        """Run a block as the check `name`: note that it agreed, or the reason if the block raises `ProofError`.

        Whatever contradicts the claim is a `ProofError`; what is missing or not understood here is none.
        """
        try:
            yield
        except ProofError as error:
            self.seen.append(replace(DIFFERS, name=name, where=subject, detail=str(error)))
        except (MalformedError, UnavailableError) as error:
            if not self.keeps_going:
                raise
            self.leave_open(f"{name}{subject and f' of {subject}'}", str(error))
        else:
            self.seen.append(replace(AGREES, name=name, where=subject))

    def note(
        self, finding: Finding, check: str = "", subject: str = "", detail: str = "", advisory: bool = False
    ) -> None:
        """Add a finding under a name and a subject."""
        named = replace(
            finding,
            name=check or finding.name,
            where=", ".join(part for part in (subject, finding.where) if part),
            detail=finding.detail or detail,
            advisory=finding.advisory or advisory,
        )
        self.seen.append(named)

    @contextmanager
    def judging(self, check: str) -> Iterator[None]:
        """Run a block that notes findings itself: impossible values are an objection, excessive costs stay open."""
        try:
            yield
        except (MalformedError, ProofError) as error:
            self.differs(check, "", str(error))
        except UnavailableError as error:
            self.leave_open(check, str(error), lasting=True)

    @contextmanager
    def timing(self, check: str, size: int = 0) -> Iterator[None]:
        """Add the seconds of the block, and `size` bytes, to the costs of `check`."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.costs.append(Cost(check, time.perf_counter() - start, size))

    def agrees(self, check: str, subject: str = "", detail: str = "") -> None:
        """Add a comparison of equal values."""
        self.note(AGREES, check, subject, detail)

    def differs(self, check: str, subject: str = "", detail: str = "") -> None:
        """Add a comparison of values that should be equal and are not."""
        self.note(DIFFERS, check, subject, detail)

    def leave_open(self, check: str, reason: str, lasting: bool = False) -> None:
        """Add a check that could not be made; the same one is added once."""
        if (line := Open(check, reason, lasting)) not in self.undecided:
            self.undecided.append(line)

    def extend(self, other: Findings) -> None:
        """Add everything of `other`."""
        self.seen += other.seen
        self.undecided += [line for line in other.undecided if line not in self.undecided]
        self.checked += other.checked
        self.not_checked += other.not_checked
        self.assumptions += other.assumptions
        self.costs += other.costs

    @property
    def open_lines(self) -> list[str]:
        """What stays open, as lines."""
        return [*map(str, self.undecided)]

    @property
    def rejected(self) -> bool:
        """Whether a decisive finding already disagrees."""
        return any(not finding.agrees and not finding.advisory for finding in self.seen)


@contextmanager
def bound_by_digest(what: str = "") -> Iterator[None]:
    """Make a `ProofError` of a `MalformedError`: bytes without the form that was digested are not those named."""
    try:
        yield
    except MalformedError as error:
        raise ProofError(f"{what}{what and ': '}{error}") from None


def require(condition: bool, message: str) -> None:
    """Raise `ProofError` with `message` unless `condition` holds."""
    if not condition:
        raise ProofError(message)
