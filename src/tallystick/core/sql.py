"""Transactions over SQLite (one file) or PostgreSQL, for everything here that keeps rows.

A writing transaction on SQLite is the only one at its time; on PostgreSQL it locks what its caller names.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, SQLAlchemyError

from tallystick.core.errors import MalformedError, TallyError, UnavailableError, UsageError, without_passwords

LOCK_SECONDS: Final = 20
"""How long a transaction waits for others, unless its program says otherwise."""
CONNECT_SECONDS: Final = 20
STATEMENT_SECONDS: Final = 60.0
INSTRUCTIONS: Final = 1_000_000
"""Steps of SQLite's virtual machine after which it checks whether a question takes too long."""
TOO_LONG: Final = ("interrupted", "canceling statement due to statement timeout")
_LOCKED: Final = ("database is locked", "due to lock timeout")
_NO_MORE_FILES: Final = ("attempt to write a readonly database", "unable to open database file")
_DAMAGED: Final = ("malformed", "not a database", "corrupt", "file is encrypted", "no such table", "no such column")


class SqlEngine:
    """An engine over one database; `name` is its name in messages, without a password, `holds` what should be in it.

    `wait_s` says how many seconds a transaction waits for the locks of others.

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
        self.name = self.path.name if self.is_file else without_passwords(self.url.render_as_string(hide_password=True))

    @contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """A transaction that reads one state of the database; raises `UnavailableError` if it fails."""
        with self.errors_as_unavailable(), self.engine.begin() as connection:
            yield connection

    @contextmanager
    def answering(self, seconds: float = STATEMENT_SECONDS) -> Iterator[sa.Connection]:
        """A reading transaction for a user's question; raises `UsageError` where it takes longer than `seconds`."""
        try:
            with self.reading() as connection, self._limited(connection, seconds):
                yield connection
        except UnavailableError as error:
            if any(word in str(error) for word in TOO_LONG):
                raise UsageError(f"the question takes longer than {seconds:g} seconds; ask for less") from None
            raise

    @contextmanager
    def _limited(self, connection: sa.Connection, seconds: float) -> Iterator[None]:
        if not self.is_file:
            if seconds < STATEMENT_SECONDS:  # otherwise the connection's own limit holds, without one more request
                connection.exec_driver_sql(f"SET LOCAL statement_timeout = {int(seconds * 1000)}")
            yield
            return
        raw = connection.connection.driver_connection
        assert raw is not None
        with limited(raw, seconds, INSTRUCTIONS):
            yield

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
            if any(word in line for word in _LOCKED):
                why = "others have been writing into it for long; try again later"
                raise UnavailableError(f"{self.name}: {why}") from None
            if (
                self.is_file
                and any(word in line for word in _NO_MORE_FILES)
                and not os.access(self.path.parent, os.W_OK)
            ):
                wal = " with the files -wal and -shm beside it" if _wal_of(self.path).exists() else ""
                mend = f"copy it{wal} into a folder that can be written"
                raise UnavailableError(f"{self.name}: its folder cannot be written: {mend}") from None
            damaged = f"damaged, or no database of {self.holds}: " * any(word in line for word in _DAMAGED)
            raise UnavailableError(f"{self.name}: {damaged}{line}") from None
        except SQLAlchemyError as error:
            raise UnavailableError(f"{self.name}: {_line(error)}") from None


@contextmanager
def limited(raw: sqlite3.Connection, seconds: float, instructions: int) -> Iterator[None]:
    """Interrupt what a connection to SQLite computes after `seconds`, or as soon as a signal arrives."""
    end = time.monotonic() + seconds
    with _signals_noted() as noted:
        raw.set_progress_handler(lambda: bool(noted) or time.monotonic() > end, instructions)
        try:
            yield
        finally:
            raw.set_progress_handler(None, 0)


@contextmanager
def _signals_noted() -> Iterator[list[int]]:
    """The signals that arrive in the block, which their own handlers get behind it.

    SQLite calls back while it computes. What a handler raises in there is lost: SQLite would only say "interrupted".
    """
    noted: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield noted
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, lambda arrived, _: noted.append(arrived))
    try:
        yield noted
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        if noted:
            signal.raise_signal(noted[0])


def _line(error: Exception) -> str:
    return " ".join(str(error.orig if isinstance(error, DBAPIError) else error).split())[:200]


def lock(connection: sa.Connection, what: str) -> None:
    """Wait until no other transaction on PostgreSQL has locked `what`, and lock it to the end of this one."""
    if connection.dialect.name == "postgresql":
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(zlib.crc32(what.encode()))))


def _engine(url: sa.URL, wait_s: int) -> sa.Engine:
    if url.get_backend_name() == "sqlite":
        if _is_sealed(path := Path(url.database or "")):
            return _sealed_engine(path, wait_s)
        engine = sa.create_engine(url, connect_args={"timeout": wait_s})
        sa.event.listen(engine, "connect", _prepare_sqlite)
        sa.event.listen(engine, "begin", _begin_sqlite)
        return engine
    limits = f"-c lock_timeout={min(wait_s, 50)}s -c statement_timeout={STATEMENT_SECONDS:g}s"
    return sa.create_engine(
        url, pool_pre_ping=True, connect_args={"connect_timeout": CONNECT_SECONDS, "options": limits}
    )


def _is_sealed(path: Path) -> bool:
    """Whether there is a database that can only be read: the file or its folder is not to be written."""
    return path.is_file() and not (os.access(path, os.W_OK) and os.access(path.absolute().parent, os.W_OK))


def _wal_of(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


def _sealed_engine(path: Path, wait_s: int) -> sa.Engine:
    """An engine that only reads.

    SQLite keeps two files beside a database that others may be writing. Where they cannot be made and are not there,
    nobody is writing, and SQLite reads the file as it is. Every transaction looks anew.
    """

    def connect() -> sqlite3.Connection:
        is_live = os.access(path.absolute().parent, os.W_OK) or _wal_of(path).exists()
        address = f"file:{quote(str(path.absolute()))}?{'mode=ro' if is_live else 'immutable=1'}"
        return sqlite3.connect(address, wait_s, isolation_level=None, check_same_thread=False, uri=True)

    engine = sa.create_engine("sqlite://", creator=connect, poolclass=sa.NullPool)
    sa.event.listen(engine, "begin", _begin_sqlite)
    return engine


def _prepare_sqlite(connection: Any, _: object) -> None:
    """Set autocommit, so that transactions begin only with BEGIN; a commit is on disk before it returns."""
    connection.isolation_level = None
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}")


def _begin_sqlite(connection: sa.Connection) -> None:
    writes = connection.get_execution_options().get("writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
