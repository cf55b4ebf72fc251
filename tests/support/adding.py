"""`tally db add` in a process of its own, which SIGKILL may end in front of one of its SQL statements.

python -m tests.support.adding URL PLACE NAME [STATEMENT]
"""

from __future__ import annotations

import itertools
import os
import signal
import sys

import sqlalchemy as sa

from tallystick.indexing import runs
from tallystick.indexing.add import add_place
from tallystick.store.database.workload_database import WorkloadDatabase


def main(url: str, place: str, name: str, statement: str = "") -> None:
    """Add a place, three records a transaction; statements count from 1, behind the making of the tables."""
    runs.BATCH = 3  # type: ignore[misc]
    with WorkloadDatabase(url, writable=True) as database:
        count = itertools.count(1)

        def executing(*_: object) -> None:
            if next(count) == int(statement):
                os.kill(os.getpid(), signal.SIGKILL)

        if statement:
            sa.event.listen(database.sql.engine, "before_cursor_execute", executing)
        add_place(database, place, name)


if __name__ == "__main__":
    main(*sys.argv[1:])
