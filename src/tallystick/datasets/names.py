"""Portable names: the same file on every operating system, or a refusal."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass, field

from tallystick.errors import MalformedError

CONTROL = re.compile(r"[\x00-\x1f\x7f]")
DRIVE = re.compile(r"[A-Za-z]:")
NAME_BYTES_MAX = 256
SHOWN_MAX = 80


def check_name(name: str) -> None:
    """Refuse a name that some system reads as another place than `name` below the root.

    Refused are absolute names, `.`, `..` and empty components, backslashes, drive letters, control characters
    and text that is not UTF-8. The name of an empty directory ends with one slash.

    Raises:
        MalformedError: naming the file and the reason.
    """
    for reason, refused in (
        ("is empty", not name.removesuffix("/")),
        ("is absolute", name.startswith("/") or DRIVE.match(name) is not None),
        ("holds a backslash", "\\" in name),
        ("holds a control character", CONTROL.search(name) is not None),
        ("is not UTF-8", not _is_utf8(name)),
        (f"is longer than {NAME_BYTES_MAX} bytes", len(name.encode(errors="replace")) > NAME_BYTES_MAX),
        ("holds an empty, '.' or '..' component", not {"", ".", ".."}.isdisjoint(_components(name))),
    ):
        if refused:
            raise MalformedError(f"the name {shown(name)} {reason}")


@dataclass
class NameOrder:
    """The names of one directory tree, in order; refuses two that some file system would take for one.

    >>> names = NameOrder()
    >>> names.add("A/c.txt")
    >>> names.add("a/b.txt")
    Traceback (most recent call last):
    tallystick.errors.MalformedError: the names 'A' and 'a' differ only in case or form
    """

    _last: bytes = b""
    _kinds: dict[str, str] = field(default_factory=dict)
    _spellings: dict[str, str] = field(default_factory=dict)

    def add(self, name: str) -> None:
        """Check `name` by itself and against the names added before, which sort before it."""
        check_name(name)
        path = name.removesuffix("/")
        for end, letter in enumerate(path):
            if letter == "/":
                self._claim(path[:end], "directory")
        if path in self._kinds:
            raise MalformedError(f"the name {shown(path)} occurs twice")
        self._claim(path, "file" if path == name else "empty directory")
        if name.encode() < self._last:
            raise MalformedError(f"the name {shown(name)} is not in sorted order")
        self._last = name.encode()

    def _claim(self, path: str, kind: str) -> None:
        first = self._spellings.setdefault(_folded(path), path)
        if first != path:
            raise MalformedError(f"the names {shown(first)} and {shown(path)} differ only in case or form")
        if self._kinds.setdefault(path, kind) != kind:
            raise MalformedError(f"the name {shown(path)} is a {self._kinds[path]} and a {kind}")


def shown(name: str) -> str:
    """A name as it is printed in a message: quoted, escaped and of limited length."""
    return ascii(name) if len(name) <= SHOWN_MAX else f"{name[:SHOWN_MAX]!a}…"


def _components(name: str) -> list[str]:
    return name.removesuffix("/").split("/")


def _folded(path: str) -> str:
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", path).casefold())


def _is_utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
