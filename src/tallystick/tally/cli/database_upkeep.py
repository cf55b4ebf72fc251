"""`tally db list`, `show`, `check`, `rebuild`, `export`: what a database holds, and whether the files say the same."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tallystick.core.errors import without_passwords
from tallystick.tally.cli.options import DB, JSON

if TYPE_CHECKING:
    from tallystick.core.canonical_json import Json


def list_places(db: str = DB, json: bool = JSON) -> None:
    """List the places that rows came from, and whether they are still there."""
    from tallystick.core.lazy import require
    from tallystick.tally.cli.output import print_json, print_table

    require("sqlalchemy", "alembic")
    from tallystick.database.indexing.sources import places_of
    from tallystick.database.workload_database import WorkloadDatabase

    with WorkloadDatabase(db) as database, database.sql.reading() as connection:
        places = places_of(connection)
    if json:
        found: list[Json] = [
            {"kind": each.kind, "name": each.name, "place": each.place, "there": each.is_there} for each in places
        ]
        print_json({"places": found})
        return
    print_table(
        ("kind", "name", "there", "place"),
        [
            (each.kind, each.name, "yes" if each.is_there else "no", "" if each.is_in_database else each.place)
            for each in places
        ],
    )


def show_run(run: str = typer.Argument(help="A run, by its name."), db: str = DB, json: bool = JSON) -> None:
    """Say which steps of a run can be replayed exactly, which only looked at from outside, and what is missing."""
    from dataclasses import asdict

    from tallystick.core.lazy import require
    from tallystick.tally.cli.output import print_json, print_table, talk

    require("sqlalchemy", "alembic")
    from tallystick.database.indexing.discovery import discover
    from tallystick.database.workload_database import WorkloadDatabase

    with WorkloadDatabase(db) as database:
        found = discover(database, run)
    if json:
        ranges: list[Json] = [{**asdict(each), "replay": str(each.replay)} for each in found.ranges]
        print_json({"anchors": list(found.anchors), "ranges": ranges, "run": run})
        return
    talk().print(f"{len(found.anchors)} states are there", soft_wrap=True)
    rows = [(f"{each.first}–{each.last}", str(each.replay), each.missing, each.mend) for each in found.ranges]
    print_table(("steps", "replay", "missing", "mend"), rows)


def check(
    db: str = DB,
    quick: bool = typer.Option(False, "--quick", help="Leave out the bytes of states and batches."),
    blobs: str | None = typer.Option(None, help="Also compare the store of blobs at this folder or URL."),
    json: bool = JSON,
) -> None:
    """Compare every row with the files that it came from, and the files with the roots that are claimed.

    Ends with 1 where a row is not what the files say, and with 3 where some could not be compared.
    """
    from tallystick.core.errors import ProofError
    from tallystick.core.lazy import require
    from tallystick.tally.cli.output import show, talk

    require("sqlalchemy", "alembic")
    from tallystick.database.indexing.checking import check as compared
    from tallystick.database.workload_database import WorkloadDatabase
    from tallystick.formats.store.blobs import Blobs
    from tallystick.verdicts.words import printable

    with WorkloadDatabase(db) as database:
        report = compared(database, quick, None if blobs is None else Blobs(blobs))
    findings = [printable(each) for each in report.findings]
    unchecked = [printable(each) for each in report.unchecked]
    said = [f"could not check: {each}" for each in unchecked]
    said += [f"no file holds {each}" for each in report.only_here]
    show(
        {
            "findings": list(findings),
            "more": report.more,
            "only_here": list(report.only_here),
            "rows": report.rows,
            "unchecked": list(unchecked),
        },
        "\n".join([*findings, *said] if findings or unchecked else [f"{report.rows} rows agree", *said]),
        json,
    )
    if findings:
        talk().print("where files have changed since they were read, `tally db add` reads them again", soft_wrap=True)
        found = len(findings) + report.more
        raise ProofError(f"{db}: findings: {found}; rows are not what the files say, or files not what was claimed")
    if unchecked:
        talk().print(f"{without_passwords(db)}: no row is wrong, and some could not be checked", soft_wrap=True)
        raise typer.Exit(3)


def rebuild(db: str = DB, json: bool = JSON) -> None:
    """Read all places again, and put their rows in the place of the old ones."""
    from tallystick.core.errors import UnavailableError
    from tallystick.core.lazy import require
    from tallystick.tally.cli.output import show

    require("sqlalchemy", "alembic")
    from tallystick.database.indexing.checking import rebuild as rebuilt
    from tallystick.database.workload_database import WorkloadDatabase
    from tallystick.verdicts.words import printable

    with WorkloadDatabase(db, writable=True) as database:
        report = rebuilt(database)
    lacking = {name: printable(why) for name, why in report.lacking.items()}
    show(
        {"database": without_passwords(db), "lacking": dict(lacking), "read": list(report.read)},
        "\n".join(report.read),
        json,
    )
    if lacking:
        raise UnavailableError(
            f"{db}: without the rows of {'; '.join(f'{name}: {why}' for name, why in lacking.items())}"
        )


def export(
    db: str = DB,
    parquet: Path | None = typer.Option(None, help="An empty folder: one Parquet file for each view, as DuckDB reads."),
    datasette: Path | None = typer.Option(None, help="A file: the useful queries, for `datasette tally.db -m FILE`."),
    json: bool = JSON,
) -> None:
    """Write what the database holds for other programs."""
    from tallystick.core.canonical_json import encode
    from tallystick.core.errors import UsageError
    from tallystick.core.files import require_empty_folder, write_atomically
    from tallystick.core.lazy import require
    from tallystick.tally.cli.output import show

    if parquet is None and datasette is None:
        raise UsageError("--parquet DIR or --datasette FILE says what to write")
    require("sqlalchemy", "alembic", *(["pyarrow"] if parquet else []))
    from tallystick.database.sql import datasette_metadata, export_parquet
    from tallystick.database.workload_database import WorkloadDatabase

    rows: dict[str, int] = {}
    with WorkloadDatabase(db) as database:
        if datasette is not None:
            write_atomically(datasette, encode(datasette_metadata(database.sql.path.stem)))
        if parquet is not None:
            require_empty_folder(parquet)
            rows = export_parquet(database, parquet)
    text = [f"{name}\t{count}" for name, count in rows.items()] + ([str(datasette)] if datasette else [])
    show(
        {"database": without_passwords(db), "datasette": str(datasette) if datasette else None, "rows": dict(rows)},
        "\n".join(text),
        json,
    )
