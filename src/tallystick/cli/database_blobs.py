"""`tally db store`, `restore`, `collect`: the anchors and batches of runs in a store of blobs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import typer

from tallystick.cli.options import DB, JSON
from tallystick.passwords import without_passwords

if TYPE_CHECKING:
    from tallystick.commitments.encoding import Json

URL: Final[str] = typer.Option(..., "--blobs", help="The store: a folder, or a URL that fsspec knows, as s3://…")
DAY: Final = 24 * 60 * 60


def register(group: typer.Typer) -> None:
    """Add the commands of this file to `tally db`."""
    group.command(name="store")(store)
    group.command(name="restore")(restore)
    group.command(name="collect")(collect)


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
    from tallystick.cli.output import show
    from tallystick.errors import ProofError
    from tallystick.extras import require

    require("sqlalchemy", "alembic")
    from tallystick.indexing.storing import store_files
    from tallystick.store.blobs import Blobs
    from tallystick.store.database.workload_database import WorkloadDatabase

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
    from tallystick.cli.output import show
    from tallystick.extras import require

    require("sqlalchemy", "alembic")
    from tallystick.indexing.restoring import problem_of, restore_files
    from tallystick.store.blobs import Blobs
    from tallystick.store.database.workload_database import WorkloadDatabase

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

    from tallystick.cli.output import print_json, print_table
    from tallystick.extras import require

    require("sqlalchemy", "alembic")
    from tallystick.indexing.collecting import collect as collected, unreferenced
    from tallystick.store.blobs import Blobs
    from tallystick.store.database.workload_database import WorkloadDatabase

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
    from tallystick.errors import UsageError

    found = re.fullmatch(r"([1-9][0-9]{0,17})(?:\.\.([1-9][0-9]{0,17}))?", text)
    first, last = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
    if last < first:
        raise UsageError(f"--steps {text}: a step like 573, or the first and the last one like 100..200")
    return first, last
