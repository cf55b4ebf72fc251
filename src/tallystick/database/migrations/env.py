"""What Alembic runs: the steps over the connection that `migrating.upgrade` hands over."""

from __future__ import annotations

from alembic import context

from tallystick.database.schema import METADATA

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=METADATA,
    render_as_batch=True,
    version_table="schema_version",
)
with context.begin_transaction():
    context.run_migrations()
