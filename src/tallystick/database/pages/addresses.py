"""The addresses of pages: made for a link, and read strictly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

from tallystick.core.canonical_json import encode, parse
from tallystick.core.errors import MalformedError, UsageError
from tallystick.database.query import Value

TEXT_MAX: Final = 4096
INTEGER_MAX: Final = 2**63 - 1


@dataclass(frozen=True)
class PageQuestion:
    """The query parameters of a page; one that is empty counts as absent."""

    given: Mapping[str, str]

    def text(self, name: str) -> str:
        """A parameter that the page needs; raises `UsageError` where it is absent."""
        text = self.optional(name)
        if text is None:
            raise UsageError(f"{name}: the address has to name one")
        return text

    def optional(self, name: str) -> str | None:
        """A parameter, or `None`; raises `UsageError` for a text that is too long."""
        text = self.given.get(name) or None
        if text is not None and len(text) > TEXT_MAX:
            raise UsageError(f"{name}: more than {TEXT_MAX} characters")
        return text

    def number(self, name: str, otherwise: int) -> int:
        """A whole number that is not negative, `otherwise` where it is absent; raises `UsageError` for other texts."""
        text = self.optional(name)
        if text is None:
            return otherwise
        if not (text.isascii() and text.isdigit()) or int(text[:20]) > INTEGER_MAX:
            raise UsageError(f"{name}: a whole number is asked")
        return int(text)

    def one_of(self, name: str, known: Sequence[str]) -> str:
        """One of some words, the first of them where it is absent; raises `UsageError` for another one."""
        word = self.optional(name) or known[0]
        if word not in known:
            raise UsageError(f"{name}: one of {', '.join(known)} is asked")
        return word

    @property
    def after(self) -> tuple[Value, ...] | None:
        """The place behind which a page of rows begins; raises `UsageError` where it is none."""
        text = self.optional("after")
        if text is None:
            return None
        try:
            values = parse(text.encode(), "after")
        except (MalformedError, UnicodeEncodeError):
            raise UsageError("after: no place in a list") from None
        if not isinstance(values, list) or not all(isinstance(each, str | int | float) for each in values):
            raise UsageError("after: no place in a list")
        return tuple(each for each in values if isinstance(each, str | int | float))


def place_text(after: tuple[Value, ...] | None) -> str | None:
    """A place in a list as a parameter, which `PageQuestion.after` reads."""
    return None if after is None else encode(list(after)).decode()


def to(page: str, **parameters: Any) -> str:
    """The address of a page, relative to any other page."""
    given = {name.rstrip("_"): value for name, value in parameters.items() if value is not None}
    return page + ("?" + urlencode(given) if given else "")
