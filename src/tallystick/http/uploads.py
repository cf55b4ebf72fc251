"""Limits on concurrent uploads: in all, per owner, and for owners who may use only a share of all places."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from typing import Final

from tallystick.http.problems import Problem

AT_ONCE: Final = 8
OF_ONE_OWNER: Final = 2


class Uploads:
    """Counts the uploads of one server; not thread-safe."""

    def __init__(self) -> None:
        self._owners = Counter[str]()

    @contextmanager
    def one(self, owner: str, share: Fraction) -> Iterator[None]:
        """Count one upload while the block runs.

        Raises `Problem` with status 429 if the owner has too many, or if `share` of all places are taken.
        """
        if self._owners[owner] >= OF_ONE_OWNER or self._owners.total() >= AT_ONCE * share:
            raise Problem(429, "busy", "too many uploads at once; come back", headers={"Retry-After": "1"})
        self._owners[owner] += 1
        try:
            yield
        finally:
            self._owners -= Counter([owner])
