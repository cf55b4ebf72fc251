"""`tally db add` in processes of their own, which SIGKILL may end in front of one of their SQL statements.

python -m tests.support.adding URL turn|once [PLACE NAME STATEMENT]...

The processes are forks of this one, which has imported what they need and has no threads; they add in turn or all at
once, and how each ended is printed as a list.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import sys

import sqlalchemy as sa

from tallystick.database.indexing import runs
from tallystick.database.indexing.add import add_place
from tallystick.database.workload_database import WorkloadDatabase


def main(url: str, how: str, *words: str) -> None:
    fork = multiprocessing.get_context("fork").Process
    processes = [fork(target=add, args=(url, *words[start : start + 3])) for start in range(0, len(words), 3)]
    for process in processes:
        process.start()
        if how == "turn":
            process.join()
    for process in processes:
        process.join()
    print([process.exitcode for process in processes])


def add(url: str, place: str, name: str, statement: str) -> None:
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
