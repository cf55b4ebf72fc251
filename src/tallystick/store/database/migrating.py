"""Brings the tables of a database to the form that this version knows, with Alembic, and makes its views."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final

import sqlalchemy as sa

from tallystick.errors import MalformedError, UnavailableError
from tallystick.store.database.views import drop_views, make_views

if TYPE_CHECKING:
    from alembic.config import Config

VERSION_TABLE: Final = "schema_version"


def upgrade(connection: sa.Connection, name: str) -> None:
    """Make or change the tables inside the caller's transaction.

    Raises:
        MalformedError: the database holds the tables of another program.
        UnavailableError: a newer version of this program wrote it.
    """
    from alembic import command

    found = version(connection, name)
    if found == newest():
        return
    settings = _settings()
    settings.attributes["connection"] = connection
    drop_views(connection)
    command.upgrade(settings, "head")
    make_views(connection)


def require_current(connection: sa.Connection, name: str) -> None:
    """Raise `UnavailableError` unless the tables have the newest form."""
    found = version(connection, name)
    if found is None:
        raise UnavailableError(f"{name}: no workload database; `tally db add` makes one")
    if found != newest():
        raise UnavailableError(f"{name}: the tables have form {found}; `tally db upgrade` brings them to {newest()}")


def version(connection: sa.Connection, name: str) -> str | None:
    """The form of the tables; `None` for an empty database. Raises what `upgrade` raises."""
    tables = sa.inspect(connection).get_table_names()
    if VERSION_TABLE not in tables:
        if tables:
            raise MalformedError(f"{name}: no workload database; it holds the tables {', '.join(sorted(tables)[:3])}")
        return None
    found = connection.execute(sa.text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar_one_or_none()
    if found is None or str(found) > newest():
        raise UnavailableError(f"{name}: written by a newer version (form {found}); this one knows {newest()}")
    return str(found)


@cache
def newest() -> str:
    """The form that this version writes."""
    from alembic.script import ScriptDirectory

    head = ScriptDirectory.from_config(_settings()).get_current_head()
    assert head is not None
    return head


def _settings() -> Config:
    from alembic.config import Config

    settings = Config()
    settings.set_main_option("script_location", "tallystick.store.database:migrations")
    settings.set_main_option("path_separator", "os")
    return settings
