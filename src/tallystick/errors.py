"""What can go wrong, and who is at fault.

    TallyError
    ├── UsageError         the person asked for something that makes no sense        exit 2
    ├── MalformedError     these bytes are not what they should be                   exit 4
    ├── ProofError         this does not show what it claims to show                 exit 1
    ├── RuleError          the rules of a dispute do not allow this move now         exit 2
    ├── VerdictError       a verdict is not *accepted*, and an exception was asked for
    │   ├── RejectedError                                                            exit 1
    │   └── InconclusiveError                                                        exit 3
    └── UnavailableError   something needed could not be obtained, written or run    exit 4

A mistake of our own is an `assert`, never one of these.
"""

from __future__ import annotations

from typing import ClassVar

from tallystick.passwords import without_passwords


class TallyError(Exception):
    """Anything that tallystick reports to a person as one clear line, without the passwords of URLs."""

    exit_code: ClassVar[int] = 4

    def __str__(self) -> str:
        return without_passwords(super().__str__())


class UsageError(TallyError):
    """The request itself makes no sense; nothing was read or written."""

    exit_code = 2


class MalformedError(TallyError):
    """These bytes are not what they should be."""


class ProofError(TallyError):
    """A proof, digest or record does not show what it claims to show."""

    exit_code = 1


class RuleError(TallyError):
    """The rules of a dispute do not allow this move now; `code` is the word by which every coordinator refuses it."""

    exit_code = 2

    def __init__(self, code: str, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code


class VerdictError(TallyError):
    """A verdict is not *accepted*: `checked` is what was found, `answer` the answer that it is about."""

    def __init__(self, sentence: str, checked: object, answer: object) -> None:
        super().__init__(sentence)
        self.checked, self.answer = checked, answer


class RejectedError(VerdictError):
    """What was checked is not what was promised."""

    exit_code = 1


class InconclusiveError(VerdictError):
    """Something could not be checked."""

    exit_code = 3


class UnavailableError(TallyError):
    """Something needed could not be obtained, written or run."""
