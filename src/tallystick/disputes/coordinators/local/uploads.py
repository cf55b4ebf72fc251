"""Uploads under way: so many in all, so many of one party, and some for those alone who have something at stake."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from typing import Final

from tallystick.disputes.coordinators.local.problems import Problem

AT_ONCE: Final = 8
OF_ONE_PARTY: Final = 2


class Uploads:
    """Counts the uploads of one server, which asks from one thread."""

    def __init__(self) -> None:
        self._owners = Counter[str]()

    @contextmanager
    def one(self, owner: str, share: Fraction) -> Iterator[None]:
        """One more while the block runs; raises `Problem` where its owner, or its owner's share, has too many."""
        if self._owners[owner] >= OF_ONE_PARTY or self._owners.total() >= AT_ONCE * share:
            raise Problem(429, "busy", "too many uploads at once; come back", {"Retry-After": "1"})
        self._owners[owner] += 1
        try:
            yield
        finally:
            self._owners -= Counter([owner])
