"""How a challenger finds what it contests: by an audit in its own process, or in another one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tallystick.commitments.encoding import Json
from tallystick.disputes.game.protocols import DisputeView, Doubt, Doubter, Ground
from tallystick.disputes.game.state import PostedClaim


@dataclass(frozen=True)
class AuditFinding:
    """What an audit found: something to contest, or nothing."""

    doubt: Doubt | None


class Auditor(Protocol):
    """A challenger's audits of claims, and its choices in disputes over them."""

    def find(self, claim: PostedClaim, statement: Path) -> AuditFinding | None:
        """What an audit of a claim found; `None` if it goes on in another process. Raises what it failed by."""
        ...

    def is_pending(self, claim: PostedClaim) -> bool:
        """Whether an audit of a claim that was asked for goes on in another process, or waits for one."""
        ...

    def keep(self, claims: Collection[PostedClaim]) -> None:
        """End the audits of all other claims: what they find is of no use any more."""
        ...

    def choose(self, answered: DisputeView, children: Sequence[tuple[int, int]]) -> int | Ground:
        """As `Doubter.choose`."""
        ...


@dataclass(frozen=True)
class InlineAuditor:
    """Audits in the process of the challenger, which makes no move until they end."""

    doubters: Callable[[PostedClaim], Doubter]

    def find(self, claim: PostedClaim, statement: Path) -> AuditFinding:
        """See `Auditor`."""
        return AuditFinding(self.doubters(claim).doubt(claim, statement))

    def is_pending(self, claim: PostedClaim) -> bool:
        """Never."""
        return False

    def keep(self, claims: Collection[PostedClaim]) -> None:
        """There are none."""

    def choose(self, answered: DisputeView, children: Sequence[tuple[int, int]]) -> int | Ground:
        """See `Auditor`."""
        return self.doubters(answered.claim).choose(answered, children)


def doubt_form(doubt: Doubt | None) -> Json:
    """A doubt as JSON."""
    return None if doubt is None else {"high": doubt.high, "low": doubt.low, "reason": doubt.reason}


def read_doubt(form: Json) -> Doubt | None:
    """The doubt that was written down; `None` for none that can be read."""
    if not isinstance(form, dict):
        return None
    low, high, reason = (form.get(name) for name in ("low", "high", "reason"))
    if not (isinstance(low, int) and isinstance(high, int) and isinstance(reason, str)):
        return None
    return Doubt(low, high, reason)
