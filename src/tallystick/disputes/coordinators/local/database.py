"""The tables of a local coordinator, on SQLite (one file) or PostgreSQL, and transactions over them.

There is one writer at a time: a writing transaction holds a lock from its first statement to its last, also against
other servers on the same database.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError

from tallystick.errors import MalformedError, TallyError, UnavailableError, UsageError

LOCK_SECONDS: Final = 20
FORMAT: Final = 1
METADATA: Final = sa.MetaData()
CHARTER: Final = sa.Table(
    "charter",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("format", sa.Integer, nullable=False),
    sa.Column("document", sa.LargeBinary, nullable=False),
)
ENTRIES: Final = sa.Table(
    "entries",
    METADATA,
    sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("move", sa.String(71), nullable=False, unique=True),
    sa.Column("signed", sa.LargeBinary, nullable=False),
    sa.Column("receipt", sa.LargeBinary, nullable=False),
)
GRANTS: Final = sa.Table(
    "grants",
    METADATA,
    sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("time", sa.BigInteger, nullable=False),
    sa.Column("party", sa.String(64), nullable=False),
    sa.Column("amount", sa.BigInteger, nullable=False),
)
BLOBS: Final = sa.Table(
    "blobs",
    METADATA,
    sa.Column("name", sa.String(71), primary_key=True),
    sa.Column("size", sa.BigInteger, nullable=False),
    sa.Column("owner", sa.String(64), nullable=False, index=True),
)
CHUNKS: Final = sa.Table(
    "chunks",
    METADATA,
    sa.Column("name", sa.String(71), primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("data", sa.LargeBinary, nullable=False),
)
_DAMAGED: Final = ("malformed", "not a database", "corrupt", "file is encrypted", "no such table", "no such column")


class Database:
    """An engine over one database; `name` is its name in messages, without a password."""

    def __init__(self, place: str | Path) -> None:
        try:
            url = sa.make_url(place if isinstance(place, str) and "://" in place else f"sqlite:///{place}")
            self._engine = _engine(url if url.drivername != "postgresql" else url.set(drivername="postgresql+psycopg"))
            self._writer = self._engine.execution_options(writes=True)
        except (ArgumentError, ModuleNotFoundError, ValueError) as error:  # the last for a port that is no number
            raise UsageError(f"{place}: no path or URL of a database: {error}") from None
        self.is_file = url.get_backend_name() == "sqlite"
        self.path = Path(url.database or "")
        self.name = self.path.name if self.is_file else url.render_as_string(hide_password=True)

    @contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """A transaction that reads one state of the database; raises `UnavailableError` if it fails."""
        with self._errors_as_unavailable(), self._engine.begin() as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[sa.Connection]:
        """The only writing transaction at this time; what it wrote is on disk when the block has ended."""
        with self._errors_as_unavailable(), self._writer.begin() as connection:
            connection.execute(sa.select(CHARTER.c.id).with_for_update())  # on SQLite, BEGIN IMMEDIATE did it already
            yield connection

    def create(self, charter: bytes) -> None:
        """Make the tables and write the charter, all or nothing; raises `UsageError` if there are tables already."""
        with self._errors_as_unavailable(), self._writer.begin() as connection:
            if sa.inspect(connection).get_table_names():
                raise UsageError(f"{self.name}: there is a database already")
            METADATA.create_all(connection)
            connection.execute(sa.insert(CHARTER).values(id=1, format=FORMAT, document=charter))

    def charter(self) -> bytes:
        """The charter's bytes; raises `UnavailableError` without a database, `MalformedError` for another program's."""
        if self.is_file and not self.path.is_file():
            raise UnavailableError(f"{self.path}: no such database; `tally coordinator init` makes one")
        with self.reading() as connection:
            if not sa.inspect(connection).has_table(CHARTER.name):
                raise MalformedError(f"{self.name}: no database of a coordinator")
            found = connection.execute(sa.select(CHARTER.c.format, CHARTER.c.document)).one_or_none()
        if found is None or found.format != FORMAT:
            raise MalformedError(f"{self.name}: no coordinator's database of format {FORMAT}")
        return bytes(found.document)

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    @contextmanager
    def _errors_as_unavailable(self) -> Iterator[None]:
        try:
            yield
        except TallyError:
            raise
        except DBAPIError as error:
            line = " ".join(str(error.orig).split())[:200]
            damaged = "damaged, or no database of a coordinator: " * any(each in line for each in _DAMAGED)
            raise UnavailableError(f"{self.name}: {damaged}{line}") from None
        except SQLAlchemyError as error:
            raise UnavailableError(f"{self.name}: {' '.join(str(error).split())[:200]}") from None


def _engine(url: sa.URL) -> sa.Engine:
    if url.get_backend_name() == "sqlite":
        engine = sa.create_engine(url, connect_args={"timeout": LOCK_SECONDS})
        sa.event.listen(engine, "connect", _prepare_sqlite)
        sa.event.listen(engine, "begin", _begin_sqlite)
        return engine
    limits = f"-c lock_timeout={LOCK_SECONDS}s -c statement_timeout={3 * LOCK_SECONDS}s"
    return sa.create_engine(url, pool_pre_ping=True, connect_args={"connect_timeout": 5, "options": limits})


def _prepare_sqlite(connection: Any, _: object) -> None:
    """Set autocommit, so that transactions begin only with BEGIN; a commit is on disk before it returns."""
    connection.isolation_level = None
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}")


def _begin_sqlite(connection: sa.Connection) -> None:
    writes = connection.get_execution_options().get("writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
