"""Transactions over SQLite (one file) or PostgreSQL, for everything here that keeps rows.

A writing transaction on SQLite is the only one at its time; on PostgreSQL it locks what its caller names.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, SQLAlchemyError

from tallystick.errors import MalformedError, TallyError, UnavailableError, UsageError

LOCK_SECONDS: Final = 20
"""How long a transaction waits for others, unless its program says otherwise."""
STATEMENT_SECONDS: Final = 60.0
INSTRUCTIONS: Final = 1_000_000
"""Steps of SQLite's virtual machine after which it is asked whether a question takes too long."""
TOO_LONG: Final = ("interrupted", "canceling statement due to statement timeout")
_LOCKED: Final = ("database is locked", "due to lock timeout")
_DAMAGED: Final = ("malformed", "not a database", "corrupt", "file is encrypted", "no such table", "no such column")


class SqlEngine:
    """An engine over one database; `name` is its name in messages, without a password, `holds` what should be in it.

    `wait_s` says how many seconds a transaction waits for others to let go of what it locks.

    Raises `UsageError` where `place` is no path and no URL of a database.
    """

    def __init__(self, place: str | Path, holds: str, wait_s: int = LOCK_SECONDS) -> None:
        self.holds = holds
        try:
            self.url = sa.make_url(place if isinstance(place, str) and "://" in place else f"sqlite:///{place}")
            if self.url.drivername == "postgresql":
                self.url = self.url.set(drivername="postgresql+psycopg")
            self.engine = _engine(self.url, wait_s)
            self._writer = self.engine.execution_options(writes=True)
            self._driver: Any = self.engine.dialect.loaded_dbapi  # bulk inserts go to it without SQLAlchemy
        except (ArgumentError, ModuleNotFoundError, ValueError) as error:  # the last for a port that is no number
            raise UsageError(f"{place}: no path or URL of a database: {error}") from None
        self.is_file = self.url.get_backend_name() == "sqlite"
        self.path = Path(self.url.database or "")
        self.name = self.path.name if self.is_file else self.url.render_as_string(hide_password=True)

    @contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """A transaction that reads one state of the database; raises `UnavailableError` if it fails."""
        with self.errors_as_unavailable(), self.engine.begin() as connection:
            yield connection

    @contextmanager
    def answering(self, seconds: float = STATEMENT_SECONDS) -> Iterator[sa.Connection]:
        """A reading transaction for somebody's question; raises `UsageError` where it takes longer than `seconds`."""
        try:
            with self.reading() as connection, self._limited(connection, seconds):
                yield connection
        except UnavailableError as error:
            if any(each in str(error) for each in TOO_LONG):
                raise UsageError(f"the question takes longer than {seconds:g} seconds; ask for less") from None
            raise

    @contextmanager
    def _limited(self, connection: sa.Connection, seconds: float) -> Iterator[None]:
        if not self.is_file:
            if seconds < STATEMENT_SECONDS:  # otherwise the connection's own limit holds, without one more request
                connection.exec_driver_sql(f"SET LOCAL statement_timeout = {int(seconds * 1000)}")
            yield
            return
        raw, end = connection.connection.driver_connection, time.monotonic() + seconds
        assert raw is not None
        raw.set_progress_handler(lambda: time.monotonic() > end, INSTRUCTIONS)
        try:
            yield
        finally:
            raw.set_progress_handler(None, 0)

    @contextmanager
    def writing(self, locked: str = "") -> Iterator[sa.Connection]:
        """A writing transaction; what it wrote is on disk when the block has ended.

        On PostgreSQL only one at a time has the same `locked`; on SQLite there is one at a time in any case.
        """
        with self.errors_as_unavailable(), self._writer.begin() as connection:
            lock(connection, locked)
            yield connection

    def require_file(self, mend: str) -> None:
        """Raise `UnavailableError` where the database is a file that is not there; `mend` says what makes it."""
        if self.is_file and not self.path.is_file():
            raise UnavailableError(f"{self.path}: no such database; {mend}")

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()

    @contextmanager
    def errors_as_unavailable(self) -> Iterator[None]:
        """Turn what the database refuses into one line."""
        try:
            yield
        except TallyError:
            raise
        except (IntegrityError, self._driver.IntegrityError) as error:
            raise MalformedError(f"{self.name}: what is read states one thing twice: {_line(error)}") from None
        except (DBAPIError, self._driver.Error) as error:
            line = _line(error)
            if any(each in line for each in _LOCKED):
                why = "others have been writing into it for long; try again later"
                raise UnavailableError(f"{self.name}: {why}") from None
            damaged = f"damaged, or no database of {self.holds}: " * any(each in line for each in _DAMAGED)
            raise UnavailableError(f"{self.name}: {damaged}{line}") from None
        except SQLAlchemyError as error:
            raise UnavailableError(f"{self.name}: {_line(error)}") from None


def _line(error: Exception) -> str:
    return " ".join(str(error.orig if isinstance(error, DBAPIError) else error).split())[:200]


def lock(connection: sa.Connection, what: str) -> None:
    """Wait until no other transaction on PostgreSQL has locked `what`, and lock it to the end of this one."""
    if connection.dialect.name == "postgresql":
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(zlib.crc32(what.encode()))))


def _engine(url: sa.URL, wait_s: int) -> sa.Engine:
    if url.get_backend_name() == "sqlite":
        engine = sa.create_engine(url, connect_args={"timeout": wait_s})
        sa.event.listen(engine, "connect", _prepare_sqlite)
        sa.event.listen(engine, "begin", _begin_sqlite)
        return engine
    limits = f"-c lock_timeout={min(wait_s, 50)}s -c statement_timeout={STATEMENT_SECONDS:g}s"
    return sa.create_engine(url, pool_pre_ping=True, connect_args={"connect_timeout": 5, "options": limits})


def _prepare_sqlite(connection: Any, _: object) -> None:
    """Set autocommit, so that transactions begin only with BEGIN; a commit is on disk before it returns."""
    connection.isolation_level = None
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}")


def _begin_sqlite(connection: sa.Connection) -> None:
    writes = connection.get_execution_options().get("writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
