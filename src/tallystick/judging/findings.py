"""Collects the findings of a verdict; a check that raises becomes a finding that disagrees."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from tallystick.errors import MalformedError, ProofError, UnavailableError
from tallystick.tolerances.tolerance import Finding

AGREES = Finding(0.0, 0.0)
DIFFERS = Finding(1.0, 0.0)


@dataclass
class Findings:
    """The findings of an audit so far, and what it could not decide.

    With `keeps_going`, what cannot be read or obtained is undecided; without, the error travels on.
    """

    seen: list[Finding] = field(default_factory=list)
    undecided: list[str] = field(default_factory=list)
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
            self.undecided.append(f"{name}{subject and f' of {subject}'}: {error}")
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

    def extend(self, other: Findings) -> None:
        """Add all findings of `other`."""
        self.seen.extend(other.seen)
        self.undecided.extend(line for line in other.undecided if line not in self.undecided)

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
