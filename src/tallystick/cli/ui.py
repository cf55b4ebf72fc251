"""`tally ui`: the workload database in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import typer

from tallystick.cli.options import JSON, read_token
from tallystick.passwords import without_passwords

HOST: Final = "127.0.0.1"
DB: Final = "tally.db"


def register(app: typer.Typer) -> None:
    """Add the command of this file."""
    app.command()(ui)


def ui(
    places: list[str] = typer.Argument(None, help="What `tally db add` takes; it is read again as it grows."),
    db: str | None = typer.Option(
        None, "--db", help=f"A file, or the URL of PostgreSQL or of a service (`tally serve`); without places, {DB}."
    ),
    token_file: Path | None = typer.Option(None, "--token-file", help="The file of the token for a service."),
    port: int = typer.Option(8090, min=0, max=65535, help="The port on this machine; 0 takes any that is free."),
    json: bool = JSON,
) -> None:
    """Show the database in a browser until Ctrl-C.

    It is served on this machine only, also where the database is a service elsewhere, whose files are not shown. With
    places and without --db, they are read into a temporary database, which is deleted at the end.
    """
    import sys
    from contextlib import ExitStack, suppress
    from tempfile import TemporaryDirectory

    from tallystick.cli.output import show
    from tallystick.extras import require

    require("sqlalchemy", "alembic", "fastapi", "uvicorn", "jinja2")
    from tallystick.api.database import open
    from tallystick.http.listening import address_of, bind, http_server
    from tallystick.store.database.workload_database import WorkloadDatabase
    from tallystick.web.pages.application import create_pages
    from tallystick.web.pages.following import Following

    with ExitStack() as held:
        if db is None and places:
            db = f"{held.enter_context(TemporaryDirectory(prefix='tally-ui-'))}/{DB}"
        place = db or DB
        if places:
            following = Following(held.enter_context(WorkloadDatabase(place, writable=True)), tuple(places), _tell)
            following.read()
            held.enter_context(following)
        database = held.enter_context(open(place, token=read_token(token_file)))
        with bind(HOST, port) as listening:
            show({"database": without_passwords(place), "url": address_of(listening)}, address_of(listening), json)
            sys.stdout.flush()  # whoever reads the address waits for it
            with suppress(KeyboardInterrupt):
                http_server(create_pages(database)).run(sockets=[listening])


def _tell(problem: str) -> None:
    from tallystick.cli.output import talk
    from tallystick.presentation.verdict_text import printable

    talk().print(printable(problem))
