"""How much work a piece of Python does, counted: a clock would measure the machine as well."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def bounded_calls(limit: int) -> Iterator[None]:
    """
    Fail if the body makes more than `limit` calls and returns, of Python and of C functions.

    Raises:
        AssertionError: it made more.
    """
    events = 0

    def count(*_: object) -> None:
        nonlocal events
        events += 1

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        yield
    finally:
        sys.setprofile(before)
    assert events <= limit, f"{events} calls and returns, and {limit} are allowed"
