"""What people type where a command has another name: it is done all the same, and the name is said on stderr."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from tallystick.errors import UnavailableError, UsageError

NAMES: Final = {"keygen": "new-key", "replay": "audit", "export": "export-model"}
SPELLINGS: Final = {"help": "--help", "version": "--version"}
"""Commands elsewhere, options here: they are what they say, and nothing has to be said about them."""
VERIFY: Final = ("verify", "check")
MODEL: Final = "--model"
OPENING: Final = "opening.json"
LEAF: Final = ".leaf"


def meant(arguments: list[str]) -> list[str]:
    """The arguments with the real name of a command in place of one that people try.

    >>> meant(["help", "audit"])
    ['audit', '--help']
    """
    word, rest = (arguments[0], arguments[1:]) if arguments else ("", [])
    if word in SPELLINGS:
        return [*(_named(rest) if rest else []), SPELLINGS[word]]
    return _named(arguments)


def _named(arguments: list[str]) -> list[str]:
    word, rest = (arguments[0], arguments[1:]) if arguments else ("", [])
    real = _verifier(word, rest) if word in VERIFY else NAMES.get(word)
    if real is None:
        return arguments
    print(f"note: `tally {word}` is `tally {real}`", file=sys.stderr)
    return [real, *rest]


def _verifier(word: str, rest: list[str]) -> str:
    """The command that checks what is given: a run, an opening, the bundle of one operator, or an answer.

    Raises:
        UsageError: nothing is given.
        UnavailableError: it is not there.
    """
    if MODEL in rest:
        return "verify-response"
    target = next((each for each in rest if not each.startswith("-")), None)
    if target is None:
        raise UsageError(f"`tally {word}` of what? `tally audit RUN`, or `tally verify-response RECEIPT --model DIR`")
    path = Path(target)
    if not path.exists():
        raise UnavailableError(f"{target}: no such file or directory")
    if path.is_dir():
        return "judge" if (path / OPENING).is_file() else "audit"
    return "referee" if path.suffix == LEAF else "verify-response"
