"""What a wrapped client does where an answer is rejected or could not be verified: warn, raise, or nothing."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Final, Literal, get_args

from tallystick.answers.report import ReceiptReport
from tallystick.errors import InconclusiveError, RejectedError, UsageError, VerdictError
from tallystick.judging.verdict import Judgement, Outcome, Verdict

Action = Literal["warn", "raise", "ignore"]
ERRORS: Final[dict[str, type[VerdictError]]] = {"rejected": RejectedError, "inconclusive": InconclusiveError}
SAID: Final = {"rejected": "was rejected", "inconclusive": "could not be verified"}
REASON_MAX: Final = 300


class UnverifiedAnswerWarning(RuntimeWarning):
    """An answer of a wrapped client was rejected, or could not be verified."""


@dataclass(frozen=True, repr=False)
class Checked(Judgement):
    """The verdict on the answer, or the answers, to one request, which `nonce` identifies.

    `reports` has the report on each answer; it is empty if nothing could be checked.
    """

    nonce: str
    verdict: Verdict
    reports: tuple[ReceiptReport, ...] = ()

    @property
    def outcome(self) -> Outcome:
        """The verdict's outcome."""
        return self.verdict.outcome

    @property
    def gist(self) -> str:
        """How much was judged, and of which request."""
        return f"{self.verdict.gist}, nonce {self.nonce}"


@dataclass(frozen=True)
class Unverified:
    """What follows an answer that is not accepted. An answer that the policy leaves out of its sample is none."""

    on_reject: Action
    on_inconclusive: Action

    def __post_init__(self) -> None:
        for name, chosen in (("on_reject", self.on_reject), ("on_inconclusive", self.on_inconclusive)):
            if chosen not in get_args(Action):
                raise UsageError(f"{name}={chosen!r}: 'warn', 'raise' or 'ignore'")

    @property
    def can_raise(self) -> bool:
        """Whether a call has to wait for its verdict."""
        return "raise" in (self.on_reject, self.on_inconclusive)

    def warn(self, checked: Checked, file: str, line: int) -> None:
        """Warn of an answer where that is what follows; the warning names the line that asked for it."""
        if self._action(checked) == "warn":
            warnings.warn_explicit(_sentence(checked), UnverifiedAnswerWarning, file, line)

    def raise_for(self, checked: Checked, answer: object) -> None:
        """Raise `RejectedError` or `InconclusiveError` where that is what follows."""
        if self._action(checked) == "raise":
            raise ERRORS[checked.verdict.outcome](_sentence(checked), checked, answer)

    def _action(self, checked: Checked) -> Action:
        if checked.verdict.outcome == "rejected":
            return self.on_reject
        return self.on_inconclusive if checked.verdict.unavailable else "ignore"


def _sentence(checked: Checked) -> str:
    """One line: which answer, what became of it, and the first reason."""
    verdict = checked.verdict
    reasons = [" ".join(filter(None, (each.name, each.where, each.detail))) for each in verdict.objections]
    reason = [*reasons, *verdict.unavailable][0]
    line = f"the answer to the request with nonce {checked.nonce} {SAID[verdict.outcome]}: {reason[:REASON_MAX]}"
    return "".join(character if character.isprintable() else "\ufffd" for character in line)
