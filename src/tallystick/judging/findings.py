"""The findings of a verdict in the making: checks that raise become rejections, and nothing is left out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from tallystick.errors import ProofError
from tallystick.tolerances.tolerance import Finding

AGREES = Finding(0.0, 0.0)
DIFFERS = Finding(1.0, 0.0)


@dataclass
class Findings:
    """What an audit saw so far, and what it could not decide."""

    seen: list[Finding] = field(default_factory=list)
    undecided: list[str] = field(default_factory=list)

    @contextmanager
    def check(self, name: str, subject: str = "") -> Iterator[None]:
        """Note that the check `name` agreed, or why it did not if the block raises `ProofError`."""
        try:
            yield
        except ProofError as error:
            self.seen.append(replace(DIFFERS, name=name, where=subject, detail=str(error)))
        else:
            self.seen.append(replace(AGREES, name=name, where=subject))

    def note(
        self, finding: Finding, check: str = "", subject: str = "", detail: str = "", advisory: bool = False
    ) -> None:
        """Note a comparison."""
        named = replace(
            finding,
            name=check or finding.name,
            where=", ".join(part for part in (subject, finding.where) if part),
            detail=finding.detail or detail,
            advisory=finding.advisory or advisory,
        )
        self.seen.append(named)

    def extend(self, other: Findings) -> None:
        """Add all findings of another."""
        self.seen.extend(other.seen)
        self.undecided.extend(line for line in other.undecided if line not in self.undecided)

    @property
    def rejected(self) -> bool:
        """Whether a decisive finding disagrees already."""
        return any(not finding.agrees and not finding.advisory for finding in self.seen)


def require(condition: bool, message: str) -> None:
    """Raise `ProofError` with `message` unless `condition` holds."""
    if not condition:
        raise ProofError(message)
