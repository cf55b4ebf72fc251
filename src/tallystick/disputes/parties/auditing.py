"""How a challenger finds what it contests: by an audit in its own process, or in a separate one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tallystick.commitments.encoding import Json
from tallystick.disputes.game.protocols import DisputeView, Doubt, Doubter, Ground
from tallystick.disputes.game.state import PostedClaim


@dataclass(frozen=True)
class AuditFinding:
    """The result of an audit: a doubt, or `None` and what could not have been seen."""

    doubt: Doubt | None
    unseen: tuple[str, ...] = ()

    @classmethod
    def by(cls, doubter: Doubter, claim: PostedClaim, statement: Path) -> AuditFinding:
        """Audit a claim in this process."""
        doubt = doubter.doubt(claim, statement)
        return cls(doubt, () if doubt is not None else doubter.unseen(claim, statement))

    @classmethod
    def read(cls, form: Mapping[str, Json] | None) -> AuditFinding | None:
        """The finding in a note that `to_json` wrote; `None` if there is none that can be read."""
        if form is None or "doubt" not in form:
            return None
        doubt, unseen = read_doubt(form["doubt"]), form.get("unseen", [])
        if (doubt is None and form["doubt"] is not None) or not isinstance(unseen, list):
            return None
        return cls(doubt, tuple(str(each) for each in unseen))

    def to_json(self) -> dict[str, Json]:
        """The finding as a note."""
        return {"doubt": doubt_form(self.doubt), "unseen": list(self.unseen)}


class Auditor(Protocol):
    """A challenger's audits of claims, and its choices in disputes over them."""

    def find(self, claim: PostedClaim, statement: Path) -> AuditFinding | None:
        """The result of the audit of a claim; `None` while another process computes it. Raises the audit's failure."""
        ...

    def is_pending(self, claim: PostedClaim) -> bool:
        """Whether a requested audit of a claim is in progress in another process, or waits for one."""
        ...

    def keep(self, claims: Collection[PostedClaim]) -> None:
        """End the audits of all other claims, because their results are not needed any more."""
        ...

    def choose(self, answered: DisputeView, children: Sequence[tuple[int, int]]) -> int | Ground:
        """As `Doubter.choose`."""
        ...


@dataclass(frozen=True)
class InlineAuditor:
    """Audits in the challenger's own process, which makes no move until an audit ends."""

    doubters: Callable[[PostedClaim], Doubter]

    def find(self, claim: PostedClaim, statement: Path) -> AuditFinding:
        """See `Auditor`."""
        return AuditFinding.by(self.doubters(claim), claim, statement)

    def is_pending(self, claim: PostedClaim) -> bool:
        """Never: an audit ends before `find` returns."""
        return False

    def keep(self, claims: Collection[PostedClaim]) -> None:
        """Do nothing: no audit runs between calls."""

    def choose(self, answered: DisputeView, children: Sequence[tuple[int, int]]) -> int | Ground:
        """See `Auditor`."""
        return self.doubters(answered.claim).choose(answered, children)


def doubt_form(doubt: Doubt | None) -> Json:
    """A doubt as JSON."""
    return None if doubt is None else {"high": doubt.high, "low": doubt.low, "reason": doubt.reason}


def read_doubt(form: Json) -> Doubt | None:
    """The doubt in a JSON value that `doubt_form` wrote; `None` if there is none that can be read."""
    if not isinstance(form, dict):
        return None
    low, high, reason = (form.get(name) for name in ("low", "high", "reason"))
    if not (isinstance(low, int) and isinstance(high, int) and isinstance(reason, str)):
        return None
    return Doubt(low, high, reason)
