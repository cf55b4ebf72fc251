"""`tally db`, `tally query`: the workload database, and anchors and batches in a store of blobs."""

from __future__ import annotations

import re
import time
from dataclasses import asdict
from pathlib import Path
from typing import Final

import typer

from tallystick.core.canonical_json import Json, encode
from tallystick.core.errors import ProofError, TallyError, UnavailableError, UsageError, without_passwords
from tallystick.core.files import require_empty_folder, write_atomically
from tallystick.core.lazy import require
from tallystick.database import sql as database_sql, trackers, workload_database
from tallystick.database.indexing import add as indexing, checking, discovery, graphs, sources, storing
from tallystick.formats.store import blobs as blob_stores
from tallystick.tally import database as database_api
from tallystick.tally.cli.options import AsJson, Db, open_database
from tallystick.tally.cli.output import print_json, print_table, show, talk
from tallystick.verdicts import words


def add(
    places: list[str] = typer.Argument(
        help="Run directories, traces, receipts, reports that --json printed, coordinators of disputes."
    ),
    db: Db = "tally.db",
    name: str | None = typer.Option(None, help="The name in the database; by default the folder's."),
    tensors: bool = typer.Option(True, help="Read every anchor, and name its tensors by their digests."),
    json: AsJson = False,
) -> None:
    """Read runs, receipts, audits and disputes into the database.

    A second time, what is new of them; the database is made if there is none. What is there already is compared with
    the files. The files stay where they are. Where a place is refused, the others are read all the same.
    """
    if name is not None and len(places) > 1:
        raise UsageError("--name: for one place at a time")
    added: list[Json] = []
    refused: list[tuple[str, TallyError]] = []
    with open_database(db, writable=True) as database:
        for place in places:
            try:
                added.append(indexing.add_place(database, place, name, tensors=tensors))
            except TallyError as error:
                if len(places) == 1:
                    raise
                refused.append((place, error))
    show(
        {"added": added, "database": without_passwords(db)},
        "\n".join(words.printable(str(each)) for each in added),
        json,
    )
    for place, why in refused:
        line = str(why) if str(why).startswith(place) else f"{place}: {why}"
        talk().print(words.printable(f"tally: {line}"), soft_wrap=True)
    if refused:
        raise typer.Exit(refused[0][1].exit_code)


def upgrade(db: Db = "tally.db", json: AsJson = False) -> None:
    """Bring the tables of the database to the form that this version writes."""
    with open_database(db, writable=True):
        show(
            {"database": without_passwords(db), "form": workload_database.newest()},
            f"{without_passwords(db)}: form {workload_database.newest()}",
            json,
        )


def forget(
    names: list[str] = typer.Argument(help="Names in the database."), db: Db = "tally.db", json: AsJson = False
) -> None:
    """Take runs out of the database. Their files stay."""
    with open_database(db, writable=True) as database:
        for name in names:
            with database.writing(name) as connection:
                sources.forget_source(connection, name)
    show({"database": without_passwords(db), "forgotten": list(names)}, "\n".join(names), json)


def link(
    graph: str = typer.Argument(help="The root of a graph in the database, or its first digits."),
    relation: str = typer.Argument(help="What it is: 'logical form of', 'verification form of', 'slice of', …"),
    other: str = typer.Argument(help="The root of the other graph."),
    db: Db = "tally.db",
    json: AsJson = False,
) -> None:
    """State how two graphs are forms of one computation."""
    with open_database(db, writable=True) as database:
        graphs.link_forms(database, graph, relation, other)
    show({"graph": graph, "other": other, "relation": relation}, f"{graph} is the {relation} {other}", json)


def to_tensorboard(
    runs: list[str] = typer.Argument(help="Names of runs in the database."),
    logdir: Path = typer.Option(..., help="The folder that TensorBoard shows; each run gets a folder in it."),
    db: Db = "tally.db",
    json: AsJson = False,
) -> None:
    """Show runs in TensorBoard: their curves, their claims, and what audits found."""
    with database_api.open(db) as database:
        places = [str(trackers.write_tensorboard(database, name, logdir)) for name in runs]
    show({"folders": list(places)}, "\n".join(places), json)


def to_mlflow(
    run: str = typer.Argument(help="The name of a run in the database."),
    tracking: str = typer.Option(..., help="The URI of MLflow's tracking server or store."),
    run_id: str | None = typer.Option(None, help="Add to this run of MLflow; by default to one of the same name."),
    db: Db = "tally.db",
    json: AsJson = False,
) -> None:
    """Show a run in MLflow: its curves as metrics, its claim and its verdicts as tags."""
    with database_api.open(db) as database:
        number = trackers.log_mlflow(database, run, tracking, run_id)
    show({"run_id": number}, number, json)


# What the database holds, and whether the files say the same.


def list_places(db: Db = "tally.db", json: AsJson = False) -> None:
    """List the places that rows came from, and whether they are still there."""
    with open_database(db) as database, database.sql.reading() as connection:
        places = sources.places_of(connection)
    if json:
        listed: list[Json] = [
            {"kind": place.kind, "name": place.name, "place": place.place, "there": place.is_there} for place in places
        ]
        print_json({"places": listed})
        return
    print_table(
        ("kind", "name", "there", "place"),
        [
            (place.kind, place.name, "yes" if place.is_there else "no", "" if place.is_in_database else place.place)
            for place in places
        ],
    )


def show_run(run: str = typer.Argument(help="A run, by its name."), db: Db = "tally.db", json: AsJson = False) -> None:
    """Say which steps of a run can be replayed exactly, which only looked at from outside, and what is missing."""
    with open_database(db) as database:
        discovered = discovery.discover(database, run)
    if json:
        ranges: list[Json] = [{**asdict(part), "replay": str(part.replay)} for part in discovered.ranges]
        print_json({"anchors": list(discovered.anchors), "ranges": ranges, "run": run})
        return
    talk().print(f"{len(discovered.anchors)} states are there", soft_wrap=True)
    rows = [(f"{part.first}–{part.last}", str(part.replay), part.missing, part.mend) for part in discovered.ranges]
    print_table(("steps", "replay", "missing", "mend"), rows)


def check(
    db: Db = "tally.db",
    quick: bool = typer.Option(False, "--quick", help="Leave out the bytes of states and batches."),
    blobs: str | None = typer.Option(None, help="Also compare the store of blobs at this folder or URL."),
    json: AsJson = False,
) -> None:
    """Compare every row with the files that it came from, and the files with the roots that are claimed.

    Ends with 1 where a row is not what the files say, and with 3 where some could not be compared.
    """
    with open_database(db) as database:
        report = checking.check(database, quick, None if blobs is None else blob_stores.Blobs(blobs))
    findings = [words.printable(line) for line in report.findings]
    unchecked = [words.printable(line) for line in report.unchecked]
    notes = [f"could not check: {line}" for line in unchecked]
    notes += [f"no file holds {line}" for line in report.only_here]
    show(
        {
            "findings": list(findings),
            "more": report.more,
            "only_here": list(report.only_here),
            "rows": report.rows,
            "unchecked": list(unchecked),
        },
        "\n".join([*findings, *notes] if findings or unchecked else [f"{report.rows} rows agree", *notes]),
        json,
    )
    if findings:
        talk().print("where files have changed since they were read, `tally db add` reads them again", soft_wrap=True)
        count = len(findings) + report.more
        raise ProofError(f"{db}: findings: {count}; rows are not what the files say, or files not what was claimed")
    if unchecked:
        talk().print(f"{without_passwords(db)}: no row is wrong, and some could not be checked", soft_wrap=True)
        raise typer.Exit(3)


def rebuild(db: Db = "tally.db", json: AsJson = False) -> None:
    """Read all places again, and put their rows in the place of the old ones."""
    with open_database(db, writable=True) as database:
        report = checking.rebuild(database)
    lacking = {name: words.printable(why) for name, why in report.lacking.items()}
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
    db: Db = "tally.db",
    parquet: Path | None = typer.Option(None, help="An empty folder: one Parquet file for each view, as DuckDB reads."),
    datasette: Path | None = typer.Option(None, help="A file: the useful queries, for `datasette tally.db -m FILE`."),
    json: AsJson = False,
) -> None:
    """Write what the database holds for other programs."""
    if parquet is None and datasette is None:
        raise UsageError("--parquet DIR or --datasette FILE says what to write")
    require("sqlalchemy", "alembic", *(["pyarrow"] if parquet else []))
    rows: dict[str, int] = {}
    with open_database(db) as database:
        if datasette is not None:
            write_atomically(datasette, encode(database_sql.datasette_metadata(database.sql.path.stem)))
        if parquet is not None:
            require_empty_folder(parquet)
            rows = database_sql.export_parquet(database, parquet)
    text = [f"{name}\t{count}" for name, count in rows.items()] + ([str(datasette)] if datasette else [])
    show(
        {"database": without_passwords(db), "datasette": str(datasette) if datasette else None, "rows": dict(rows)},
        "\n".join(text),
        json,
    )


# `tally db store`, `restore`, `collect`: the anchors and batches of runs in a store of blobs.

URL: Final[str] = typer.Option(..., "--blobs", help="The store: a folder, or a URL that fsspec knows, as s3://…")
DAY: Final = 24 * 60 * 60


def store(
    runs: list[str] = typer.Argument(help="Runs, by their names in the database."),
    blobs: str = URL,
    again: bool = typer.Option(False, "--again", help="Read what is stored already, and replace what is damaged."),
    db: Db = "tally.db",
    json: AsJson = False,
) -> None:
    """Copy the anchors and batches of runs into a store, and note which file is which blob. The files stay.

    A second time, what is new. `tally thin` may then remove anchors from the run: `tally db restore` fetches them.
    """
    with open_database(db):
        there = blob_stores.Blobs(blobs)
    with open_database(db, writable=True) as database:
        reports = {name: storing.store_files(database, name, there, again) for name in dict.fromkeys(runs)}
    stored: dict[str, Json] = {name: {each.file: each.blob for each in one.stored} for name, one in reports.items()}
    differing: dict[str, Json] = {name: list(one.differing) for name, one in reports.items()}
    text = "\n".join(f"{name}: {len(one.stored)} files are in the store" for name, one in reports.items())
    show({"blobs": without_passwords(blobs), "differing": differing, "stored": stored}, text, json)
    wrong = [f"{name}: {file}" for name, one in reports.items() for file in one.differing]
    if wrong:
        raise ProofError(f"{'; '.join(wrong)}: not what its record states; what was stored before stays")


def restore(
    run: str = typer.Argument(help="A run, by its name in the database."),
    blobs: str = URL,
    steps: str | None = typer.Option(None, help="Only what these steps need: 573, or 100..200."),
    db: Db = "tally.db",
    json: AsJson = False,
) -> None:
    """Fetch the anchors and batches that a run directory lacks. Each is verified before it gets its name."""
    wanted = None if steps is None else _steps(steps)
    with open_database(db):
        there = blob_stores.Blobs(blobs)
    with open_database(db, writable=True) as database:
        report = storing.restore_files(database, run, there, wanted)
    result: Json = {
        "damaged": dict(report.damaged),
        "fetched": [each.file for each in report.fetched],
        "lacking": dict(report.lacking),
    }
    show(result, "\n".join(each.file for each in report.fetched) or "nothing was lacking", json)
    if problem := storing.problem_of(run, report):
        raise problem


def collect(
    blobs: str = URL,
    delete: bool = typer.Option(False, "--delete", help="Delete them; otherwise they are only listed."),
    young: bool = typer.Option(False, "--young", help="Also those younger than a day, while nobody stores."),
    db: Db = "tally.db",
    json: AsJson = False,
) -> None:
    """List or delete the blobs that no run of the database refers to.

    What a run refers to stays until `tally db forget RUN`. A database knows only its own runs: where another database
    uses the same store, its blobs look unused here, and --delete would delete them.
    """
    now = time.time()
    before = None if young else now - DAY
    with open_database(db) as database:
        there = blob_stores.Blobs(blobs)
        unnamed = storing.unreferenced(database, there, before)
    if delete:
        with open_database(db, writable=True) as database:
            unnamed = list(storing.collect(database, there, before))
        there.drop_drafts(now if young else now - DAY)
    if json:
        listed: list[Json] = [{"blob": each.blob, "bytes": each.bytes, "fate": str(each.fate)} for each in unnamed]
        print_json({"blobs": without_passwords(blobs), "unreferenced": listed})
        return
    print_table(("blob", "bytes", ""), [(each.blob, each.bytes, str(each.fate)) for each in unnamed])


def _steps(text: str) -> tuple[int, int]:
    """The first and the last step; raises `UsageError`."""
    parts = re.fullmatch(r"([1-9][0-9]{0,17})(?:\.\.([1-9][0-9]{0,17}))?", text)
    first, last = (int(parts[1]), int(parts[2] or parts[1])) if parts else (1, 0)
    if last < first:
        raise UsageError(f"--steps {text}: a step like 573, or the first and the last one like 100..200")
    return first, last


# `tally query`: SQL over the views.


def query(
    sql: str | None = typer.Argument(None, help="A SELECT over the views; without it, the views and their columns."),
    db: Db = "tally.db",
    limit: int = typer.Option(1000, min=1, help="The largest number of rows."),
    timeout: float = typer.Option(60.0, "--timeout", min=0.001, help="The most seconds that the statement may take."),
    json: AsJson = False,
) -> None:
    """Ask the database in SQL. Nothing can be changed.

    The views and their columns stand in `docs/database.md`; they stay, while the tables below them may change.
    """
    if db.startswith(("http://", "https://")):
        raise UsageError(f"{db}: a service takes no SQL; `tallystick.open` asks it in Python")
    require("sqlalchemy", "alembic")
    if sql is None:
        selected = database_sql.list_views()
    else:
        with open_database(db) as database:
            selected = database_sql.select(database, sql, limit, timeout)
    if json:
        rows: list[Json] = [dict(zip(selected.columns, row, strict=True)) for row in selected.rows]
        print_json({"more": selected.more, "rows": rows})
    else:
        print_table(selected.columns, selected.rows)
    if selected.more:
        talk().print(f"these are the first {limit:,} rows, and there are more: --limit takes more", soft_wrap=True)
