"""A local coordinator on SQLite, in this process."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from tests.disputes.coordinators.conformance import MakeRules
from tests.disputes.coordinators.local.keys import LocalWorld, set_up


@contextmanager
def found(make_rules: MakeRules) -> Iterator[LocalWorld]:
    with tempfile.TemporaryDirectory() as folder:
        world = set_up(Path(folder, "coordinator.db"), make_rules)
        with closing(world.place):
            yield world
