"""The tables of a local coordinator, on SQLite (one file) or PostgreSQL, and transactions over them.

There is one writer at a time: a writing transaction holds a lock from its first statement to its last, also against
other servers on the same database.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import sqlalchemy as sa

from tallystick.errors import MalformedError, UsageError
from tallystick.store.database.engine import SqlEngine

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


class CoordinatorDatabase(SqlEngine):
    """The tables of one coordinator."""

    def __init__(self, place: str | Path) -> None:
        super().__init__(place, "a coordinator")

    def create(self, charter: bytes) -> None:
        """Make the tables and write the charter, all or nothing; raises `UsageError` if there are tables already."""
        with self.writing() as connection:
            if sa.inspect(connection).get_table_names():
                raise UsageError(f"{self.name}: there is a database already")
            METADATA.create_all(connection)
            connection.execute(sa.insert(CHARTER).values(id=1, format=FORMAT, document=charter))

    def charter(self) -> bytes:
        """The charter's bytes; raises `UnavailableError` without a database, `MalformedError` for another program's."""
        self.require_file("`tally coordinator init` makes one")
        with self.reading() as connection:
            if not sa.inspect(connection).has_table(CHARTER.name):
                raise MalformedError(f"{self.name}: no database of a coordinator")
            found = connection.execute(sa.select(CHARTER.c.format, CHARTER.c.document)).one_or_none()
        if found is None or found.format != FORMAT:
            raise MalformedError(f"{self.name}: no coordinator's database of format {FORMAT}")
        return bytes(found.document)
