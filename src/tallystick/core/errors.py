"""What can go wrong, who is at fault, and words for messages about it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import ClassVar, Final

# URLs as messages show them: without the passwords that stand in them.

HIDDEN: Final = "***"
_PASSWORD: Final = r"(?<![A-Za-z0-9])([A-Za-z][A-Za-z0-9+.-]*://[^\s/?#@:]*):[^\s/?#]*@"
_TOKEN: Final = r"(?<![A-Za-z0-9])(https?://)[^\s/?#@:]+@"
"""A name alone before the @ is a token on the web; elsewhere it is the name of a user."""
_PARAMETER: Final = r"(?i)([?&;][^\s=&;?#]*(?:pass|pwd|secret|token|signature|credential)[^\s=&;#]*=)[^\s&;#]+"


def without_passwords(text: str) -> str:
    """The text with `***` in place of every password in the URLs that stand in it.

    >>> without_passwords("mysql://ada:secret@host/runs: no path or URL of a database")
    'mysql://ada:***@host/runs: no path or URL of a database'
    """
    if "://" not in text:
        return text
    text = re.sub(_PASSWORD, rf"\1:{HIDDEN}@", text)
    return re.sub(_PARAMETER, rf"\1{HIDDEN}", re.sub(_TOKEN, rf"\1{HIDDEN}@", text))


# What can go wrong, and who is at fault.
#
#     TallyError
#     ├── UsageError         the person asked for something that makes no sense        exit 2
#     ├── MalformedError     these bytes are not what they should be                   exit 4
#     ├── ProofError         this does not show what it claims to show                 exit 1
#     ├── RuleError          the rules of a dispute do not allow this move now         exit 2
#     ├── VerdictError       a verdict is not *accepted*, and an exception was asked for
#     │   ├── RejectedError                                                            exit 1
#     │   └── InconclusiveError                                                        exit 3
#     └── UnavailableError   something needed could not be obtained, written or run    exit 4
#
# A mistake of our own is an `assert`, never one of these.


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
    """A verdict is not *accepted*: `checked` is the report, `answer` the answer that it is about."""

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


# Suggestions for a mistyped name.

NAMES_LISTED: Final = 8
"""A longer list of names is not read; the near misses are."""


def meant_by(word: str, names: Iterable[str]) -> str:
    """The one of `names` that is nearest to `word`; empty where none is near.

    >>> meant_by("--sample", ["--nonce", "--samples"])
    '--samples'
    """
    from difflib import get_close_matches  # two milliseconds that `import tallystick` does not need

    near = get_close_matches(word[:80], list(names), n=1)
    return near[0] if near else ""


def refusal(value: str, choices: Sequence[str]) -> str:
    """Why `value` is none of at least two `choices`.

    >>> refusal("bish", ["bash", "zsh"])
    "must be bash or zsh, not 'bish'; did you mean bash?"
    """
    near = meant_by(value, choices)
    listed = f"{', '.join(choices[:-1])} or {choices[-1]}"
    return f"must be {listed}, not {value[:80]!a}" + (f"; did you mean {near}?" if near else "")


def suggestion(word: str, names: Iterable[str]) -> str:
    """What follows a complaint about `word`: the name that was meant, or all of `names` where they are few.

    >>> "no such command odit" + suggestion("odit", ["audit", "open"])
    'no such command odit: did you mean audit?'
    """
    known = list(names)
    near = meant_by(word, known)
    if near:
        return f": did you mean {near}?"
    return f": there are {', '.join(known)}" if 0 < len(known) <= NAMES_LISTED else ""
