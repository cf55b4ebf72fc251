"""What somebody meant who typed a name that is not there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Final

NAMES_LISTED: Final = 8
"""A longer list of names is not read; the near misses are."""


def meant_by(word: str, names: Iterable[str]) -> str:
    """The one of `names` that is nearest to `word`; empty where none is near.

    >>> meant_by("--sample", ["--nonce", "--samples"])
    '--samples'
    """
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
