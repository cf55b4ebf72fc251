"""`tally db`, `tally query`: the workload database."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

from tallystick.cli import database_blobs, database_upkeep
from tallystick.cli.options import DB, JSON
from tallystick.passwords import without_passwords

if TYPE_CHECKING:
    from tallystick.commitments.encoding import Json

LIMIT: Final = 1000


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
    group = typer.Typer(no_args_is_help=True, help="Keep runs and audits in a database.")
    group.command(name="add")(add)
    group.command(name="upgrade")(upgrade)
    group.command(name="forget")(forget)
    database_upkeep.register(group)
    database_blobs.register(group)
    group.command(name="link")(link)
    group.command(name="to-tensorboard")(to_tensorboard)
    group.command(name="to-mlflow")(to_mlflow)
    app.add_typer(group, name="db")
    app.command()(query)


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
    from tallystick.cli.output import show, talk
    from tallystick.errors import TallyError, UsageError
    from tallystick.extras import require

    require("sqlalchemy", "alembic")
    from tallystick.indexing.add import add_place
    from tallystick.presentation.verdict_text import printable
    from tallystick.store.database.workload_database import WorkloadDatabase

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
    from tallystick.cli.output import show
    from tallystick.extras import require

    require("sqlalchemy", "alembic")
    from tallystick.store.database.migrating import newest
    from tallystick.store.database.workload_database import WorkloadDatabase

    with WorkloadDatabase(db, writable=True):
        show({"database": without_passwords(db), "form": newest()}, f"{without_passwords(db)}: form {newest()}", json)


def forget(names: list[str] = typer.Argument(help="Names in the database."), db: str = DB, json: bool = JSON) -> None:
    """Take runs out of the database. Their files stay."""
    from tallystick.cli.output import show
    from tallystick.extras import require

    require("sqlalchemy", "alembic")
    from tallystick.indexing.sources import forget_source
    from tallystick.store.database.workload_database import WorkloadDatabase

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
    from tallystick.cli.output import show
    from tallystick.extras import require

    require("sqlalchemy", "alembic")
    from tallystick.indexing.graphs import link_forms
    from tallystick.store.database.workload_database import WorkloadDatabase

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
    from tallystick.api.database import open
    from tallystick.cli.output import show
    from tallystick.exports.tensorboard import write_tensorboard

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
    from tallystick.api.database import open
    from tallystick.cli.output import show
    from tallystick.exports.mlflow import log_mlflow

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
    from tallystick.cli.output import print_json, print_table, talk
    from tallystick.errors import UsageError
    from tallystick.extras import require

    if db.startswith(("http://", "https://")):
        raise UsageError(f"{db}: a service takes no SQL; `tallystick.open` asks it in Python")

    require("sqlalchemy", "alembic")
    from tallystick.store.database.reading_sql import list_views, select
    from tallystick.store.database.workload_database import WorkloadDatabase

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
