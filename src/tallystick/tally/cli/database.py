"""`tally db`, `tally query`: the workload database, and anchors and batches in a store of blobs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

from tallystick.core.errors import without_passwords
from tallystick.tally.cli.options import DB, JSON

if TYPE_CHECKING:
    from tallystick.core.canonical_json import Json


# `tally db store`, `restore`, `collect`: the anchors and batches of runs in a store of blobs.

URL: Final[str] = typer.Option(..., "--blobs", help="The store: a folder, or a URL that fsspec knows, as s3://…")
DAY: Final = 24 * 60 * 60


def store(
    runs: list[str] = typer.Argument(help="Runs, by their names in the database."),
    blobs: str = URL,
    again: bool = typer.Option(False, "--again", help="Read what is stored already, and replace what is damaged."),
    db: str = DB,
    json: bool = JSON,
) -> None:
    """Copy the anchors and batches of runs into a store, and note which file is which blob. The files stay.

    A second time, what is new. `tally thin` may then remove anchors from the run: `tally db restore` fetches them.
    """
    from tallystick.core.errors import ProofError
    from tallystick.core.lazy import require
    from tallystick.tally.cli.output import show

    require("sqlalchemy", "alembic")
    from tallystick.database.indexing.storing import store_files
    from tallystick.database.workload_database import WorkloadDatabase
    from tallystick.formats.store.blobs import Blobs

    with WorkloadDatabase(db):
        there = Blobs(blobs)
    with WorkloadDatabase(db, writable=True) as database:
        reports = {name: store_files(database, name, there, again) for name in dict.fromkeys(runs)}
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
    db: str = DB,
    json: bool = JSON,
) -> None:
    """Fetch the anchors and batches that a run directory lacks. Each is verified before it gets its name."""
    from tallystick.core.lazy import require
    from tallystick.tally.cli.output import show

    require("sqlalchemy", "alembic")
    from tallystick.database.indexing.storing import problem_of, restore_files
    from tallystick.database.workload_database import WorkloadDatabase
    from tallystick.formats.store.blobs import Blobs

    wanted = None if steps is None else _steps(steps)
    with WorkloadDatabase(db):
        there = Blobs(blobs)
    with WorkloadDatabase(db, writable=True) as database:
        report = restore_files(database, run, there, wanted)
    found: Json = {
        "damaged": dict(report.damaged),
        "fetched": [each.file for each in report.fetched],
        "lacking": dict(report.lacking),
    }
    show(found, "\n".join(each.file for each in report.fetched) or "nothing was lacking", json)
    if problem := problem_of(run, report):
        raise problem


def collect(
    blobs: str = URL,
    delete: bool = typer.Option(False, "--delete", help="Delete them; otherwise they are only listed."),
    young: bool = typer.Option(False, "--young", help="Also those younger than a day, while nobody stores."),
    db: str = DB,
    json: bool = JSON,
) -> None:
    """List or delete the blobs that no run of the database refers to.

    What a run refers to stays until `tally db forget RUN`. A database knows only its own runs: where another database
    uses the same store, its blobs look unused here, and --delete would delete them.
    """
    import time

    from tallystick.core.lazy import require
    from tallystick.tally.cli.output import print_json, print_table

    require("sqlalchemy", "alembic")
    from tallystick.database.indexing.storing import collect as collected, unreferenced
    from tallystick.database.workload_database import WorkloadDatabase
    from tallystick.formats.store.blobs import Blobs

    now, there = time.time(), Blobs(blobs)
    before = None if young else now - DAY
    with WorkloadDatabase(db) as database:
        found = unreferenced(database, there, before)
    if delete:
        with WorkloadDatabase(db, writable=True) as database:
            found = list(collected(database, there, before))
        there.drop_drafts(now if young else now - DAY)
    if json:
        listed: list[Json] = [{"blob": each.blob, "bytes": each.bytes, "fate": str(each.fate)} for each in found]
        print_json({"blobs": without_passwords(blobs), "unreferenced": listed})
        return
    print_table(("blob", "bytes", ""), [(each.blob, each.bytes, str(each.fate)) for each in found])


def _steps(text: str) -> tuple[int, int]:
    """The first and the last step; raises `UsageError`."""
    from tallystick.core.errors import UsageError

    found = re.fullmatch(r"([1-9][0-9]{0,17})(?:\.\.([1-9][0-9]{0,17}))?", text)
    first, last = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
    if last < first:
        raise UsageError(f"--steps {text}: a step like 573, or the first and the last one like 100..200")
    return first, last


# `tally db`, `tally query`: the workload database.

LIMIT: Final = 1000


def add(
    places: list[str] = typer.Argument(
        help="Run directories, traces, receipts, reports that --json printed, coordinators of disputes."
    ),
    db: str = DB,
    name: str | None = typer.Option(None, help="The name in the database; by default the folder's."),
    tensors: bool = typer.Option(True, help="Read every anchor, and name its tensors by their digests."),
    json: bool = JSON,
) -> None:
    """Read runs, receipts, audits and disputes into the database.

    A second time, what is new of them; the database is made if there is none. What is there already is compared with
    the files. The files stay where they are. Where a place is refused, the others are read all the same.
    """
    from tallystick.core.errors import TallyError, UsageError
    from tallystick.core.lazy import require
    from tallystick.tally.cli.output import show, talk

    require("sqlalchemy", "alembic")
    from tallystick.database.indexing.add import add_place
    from tallystick.database.workload_database import WorkloadDatabase
    from tallystick.verdicts.words import printable

    if name is not None and len(places) > 1:
        raise UsageError("--name: for one place at a time")
    added: list[Json] = []
    refused: list[tuple[str, TallyError]] = []
    with WorkloadDatabase(db, writable=True) as database:
        for place in places:
            try:
                added.append(add_place(database, place, name, tensors=tensors))
            except TallyError as error:
                if len(places) == 1:
                    raise
                refused.append((place, error))
    show({"added": added, "database": without_passwords(db)}, "\n".join(printable(str(each)) for each in added), json)
    for place, why in refused:
        told = str(why) if str(why).startswith(place) else f"{place}: {why}"
        talk().print(printable(f"tally: {told}"), soft_wrap=True)
    if refused:
        raise typer.Exit(refused[0][1].exit_code)


def upgrade(db: str = DB, json: bool = JSON) -> None:
    """Bring the tables of the database to the form that this version writes."""
    from tallystick.core.lazy import require
    from tallystick.tally.cli.output import show

    require("sqlalchemy", "alembic")
    from tallystick.database.workload_database import WorkloadDatabase, newest

    with WorkloadDatabase(db, writable=True):
        show({"database": without_passwords(db), "form": newest()}, f"{without_passwords(db)}: form {newest()}", json)


def forget(names: list[str] = typer.Argument(help="Names in the database."), db: str = DB, json: bool = JSON) -> None:
    """Take runs out of the database. Their files stay."""
    from tallystick.core.lazy import require
    from tallystick.tally.cli.output import show

    require("sqlalchemy", "alembic")
    from tallystick.database.indexing.sources import forget_source
    from tallystick.database.workload_database import WorkloadDatabase

    with WorkloadDatabase(db, writable=True) as database:
        for name in names:
            with database.writing(name) as connection:
                forget_source(connection, name)
    show({"database": without_passwords(db), "forgotten": list(names)}, "\n".join(names), json)


def link(
    graph: str = typer.Argument(help="The root of a graph in the database, or its first digits."),
    relation: str = typer.Argument(help="What it is: 'logical form of', 'verification form of', 'slice of', …"),
    other: str = typer.Argument(help="The root of the other graph."),
    db: str = DB,
    json: bool = JSON,
) -> None:
    """State how two graphs are forms of one computation."""
    from tallystick.core.lazy import require
    from tallystick.tally.cli.output import show

    require("sqlalchemy", "alembic")
    from tallystick.database.indexing.graphs import link_forms
    from tallystick.database.workload_database import WorkloadDatabase

    with WorkloadDatabase(db, writable=True) as database:
        link_forms(database, graph, relation, other)
    show({"graph": graph, "other": other, "relation": relation}, f"{graph} is the {relation} {other}", json)


def to_tensorboard(
    runs: list[str] = typer.Argument(help="Names of runs in the database."),
    logdir: Path = typer.Option(..., help="The folder that TensorBoard shows; each run gets a folder in it."),
    db: str = DB,
    json: bool = JSON,
) -> None:
    """Show runs in TensorBoard: their curves, their claims, and what audits found."""
    from tallystick.database.open import open
    from tallystick.database.trackers import write_tensorboard
    from tallystick.tally.cli.output import show

    with open(db) as database:
        places = [str(write_tensorboard(database, name, logdir)) for name in runs]
    show({"folders": list(places)}, "\n".join(places), json)


def to_mlflow(
    run: str = typer.Argument(help="The name of a run in the database."),
    tracking: str = typer.Option(..., help="The URI of MLflow's tracking server or store."),
    run_id: str | None = typer.Option(None, help="Add to this run of MLflow; by default to one of the same name."),
    db: str = DB,
    json: bool = JSON,
) -> None:
    """Show a run in MLflow: its curves as metrics, its claim and its verdicts as tags."""
    from tallystick.database.open import open
    from tallystick.database.trackers import log_mlflow
    from tallystick.tally.cli.output import show

    with open(db) as database:
        number = log_mlflow(database, run, tracking, run_id)
    show({"run_id": number}, number, json)


def query(
    sql: str | None = typer.Argument(None, help="A SELECT over the views; without it, the views and their columns."),
    db: str = DB,
    limit: int = typer.Option(LIMIT, min=1, help="The largest number of rows."),
    timeout: float = typer.Option(60.0, "--timeout", min=0.001, help="The most seconds that the statement may take."),
    json: bool = JSON,
) -> None:
    """Ask the database in SQL. Nothing can be changed.

    The views and their columns stand in `docs/database.md`; they stay, while the tables below them may change.
    """
    from tallystick.core.errors import UsageError
    from tallystick.core.lazy import require
    from tallystick.tally.cli.output import print_json, print_table, talk

    if db.startswith(("http://", "https://")):
        raise UsageError(f"{db}: a service takes no SQL; `tallystick.open` asks it in Python")

    require("sqlalchemy", "alembic")
    from tallystick.database.sql import list_views, select
    from tallystick.database.workload_database import WorkloadDatabase

    if sql is None:
        found = list_views()
    else:
        with WorkloadDatabase(db) as database:
            found = select(database, sql, limit, timeout)
    if json:
        rows: list[Json] = [dict(zip(found.columns, row, strict=True)) for row in found.rows]
        print_json({"more": found.more, "rows": rows})
    else:
        print_table(found.columns, found.rows)
    if found.more:
        talk().print(f"these are the first {limit:,} rows, and there are more: --limit takes more", soft_wrap=True)
