"""Everything that a workload database holds."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from tallystick.database.schema import METADATA
from tallystick.database.workload_database import WorkloadDatabase


def content(database: WorkloadDatabase) -> dict[str, list[Any]]:
    """Every row of every table."""
    with database.sql.reading() as connection:
        return {
            table.name: [tuple(row) for row in connection.execute(sa.select(table).order_by(*table.primary_key))]
            for table in METADATA.sorted_tables
        }
