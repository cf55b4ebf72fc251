"""Tables, views and rows say the same, on both databases."""

from __future__ import annotations

from dataclasses import fields

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from tallystick.core.errors import MalformedError, UnavailableError
from tallystick.database.rows import NOUNS, RELATIONS
from tallystick.database.schema import METADATA, VIEWS
from tallystick.database.workload_database import VERSION_TABLE, WorkloadDatabase, newest


def test_the_steps_of_migration_give_the_tables_of_the_schema(empty: WorkloadDatabase) -> None:
    with empty.sql.reading() as connection:
        context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
        assert compare_metadata(context, METADATA) == []


def test_every_view_can_be_read_and_has_the_fields_of_its_rows(empty: WorkloadDatabase) -> None:
    assert NOUNS.keys() == VIEWS.keys()
    with empty.sql.reading() as connection:
        for name, noun in NOUNS.items():
            columns = set(connection.execute(sa.text(f'SELECT * FROM "{name}"')).keys())
            assert {each.name for each in fields(noun.row)} | set(noun.key) | set(noun.orders) <= columns, name


def test_relations_name_fields_of_both_nouns() -> None:
    for (one, other), (field, theirs) in RELATIONS.items():
        assert NOUNS[one].types[field] is NOUNS[other].types[theirs], (one, other)


def test_a_second_opening_finds_the_newest_form(empty: WorkloadDatabase, place: str) -> None:
    with WorkloadDatabase(place) as again, again.sql.reading() as connection:
        found = connection.execute(sa.text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar_one()
    assert found == newest()


def test_a_form_of_the_future_is_not_read(empty: WorkloadDatabase, place: str) -> None:
    with empty.writing("") as connection:
        connection.execute(sa.text(f"UPDATE {VERSION_TABLE} SET version_num = '9999'"))
    for writable in (True, False):
        with pytest.raises(UnavailableError, match="written by a newer version"):
            WorkloadDatabase(place, writable=writable)


def test_the_tables_of_another_program_are_left_alone(place: str) -> None:
    engine = sa.create_engine(place.replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE letters (id INTEGER)"))
    for writable in (True, False):
        with pytest.raises(MalformedError, match="it holds the tables letters"):
            WorkloadDatabase(place, writable=writable)
    with engine.begin() as connection:
        assert sa.inspect(connection).get_table_names() == ["letters"]
    engine.dispose()


def test_a_database_without_tables_is_not_read(place: str) -> None:
    with pytest.raises(UnavailableError, match="`tally db add` makes one"):
        WorkloadDatabase(place)
