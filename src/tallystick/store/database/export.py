"""Writes every view as a Parquet file, for DuckDB, Polars and others."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa

from tallystick.errors import UnavailableError
from tallystick.store.database.views import VIEWS, view
from tallystick.store.database.workload_database import WorkloadDatabase

ROWS: Final = 50_000
"""The rows of a row group, which are held at once."""


def export_parquet(database: WorkloadDatabase, folder: Path) -> dict[str, int]:
    """Write one file a view into `folder`; returns how many rows each has. Views without rows have a file too.

    Raises `UnavailableError` where the disk cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with database.sql.reading() as connection:
        if not database.sql.is_file:
            connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        try:
            return {name: _write(connection, name, folder / f"{name}.parquet") for name in VIEWS}
        except OSError as error:
            raise UnavailableError(f"{folder}: could not be written: {error}") from None


def _write(connection: sa.Connection, name: str, path: Path) -> int:
    import pyarrow as pa
    from pyarrow import parquet

    table, count = view(name), 0
    schema = pa.schema([(column.name, _type_of(column)) for column in table.c])
    with parquet.ParquetWriter(path, schema, compression="zstd") as writer:
        for rows in connection.execute(sa.select(table).execution_options(yield_per=ROWS)).partitions():
            columns = [
                pa.array(values, kind) for values, kind in zip(zip(*rows, strict=True), schema.types, strict=True)
            ]
            writer.write_table(pa.table(columns, schema=schema))
            count += len(rows)
    return count


def _type_of(column: sa.ColumnClause[Any]) -> Any:
    import pyarrow as pa

    kinds = (
        (sa.Boolean, pa.bool_()),
        (sa.Integer, pa.int64()),
        (sa.Float, pa.float64()),
        (sa.LargeBinary, pa.binary()),
    )
    return next((kind for asked, kind in kinds if isinstance(column.type, asked)), pa.string())
