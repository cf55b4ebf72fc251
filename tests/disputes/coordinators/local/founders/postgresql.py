"""A local coordinator on PostgreSQL: one database for each coordinator."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

from tests.disputes.coordinators.conformance import MakeRules
from tests.disputes.coordinators.local.keys import LocalWorld, set_up
from tests.support.postgresql import database


@contextmanager
def found(make_rules: MakeRules) -> Iterator[LocalWorld]:
    with database() as url:
        world = set_up(url, make_rules)
        with closing(world.place):
            yield world
