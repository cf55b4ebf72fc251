"""`tally serve` and `tally token`: a workload database over HTTP, and who may use it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import typer

from tallystick.cli.options import DB, JSON
from tallystick.errors import UsageError
from tallystick.passwords import without_passwords

if TYPE_CHECKING:
    from tallystick.commitments.encoding import Json
    from tallystick.store.database.tokens import TokenGrant

DAY_NS = 86_400 * 10**9
NO_TOKENS = "there are none; `tally token new NAME` makes one"


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
    app.command()(serve)
    group = typer.Typer(no_args_is_help=True, help="Say who may use the service.")
    group.command(name="new")(new)
    group.command(name="list")(list_)
    group.command(name="revoke")(revoke)
    app.add_typer(group, name="token")


def serve(
    db: str = DB,
    host: str = typer.Option("127.0.0.1", help="The address to listen on."),
    port: int = typer.Option(0, min=0, max=65535, help="The port; 0 takes a free one."),
    public: str = typer.Option("nothing", help="What anybody may see without a token: nothing, claims, read or open."),
    runs: Path | None = typer.Option(None, help="The folder for runs that are sent here; without it none are taken."),
    rate: int = typer.Option(600, min=1, help="Requests per minute of one address without a token."),
    json: bool = JSON,
) -> None:
    """Serve the database to verifiers until Ctrl-C. Prints the address.

    Tokens say who may do what; `tally token new` makes one. Requests are logged on stderr, one line of JSON each.
    """
    import sys

    from tallystick.cli.output import show, talk
    from tallystick.cli.recording import check_choices
    from tallystick.extras import require

    require("sqlalchemy", "alembic", "fastapi", "uvicorn")
    from tallystick.http.listening import address_of, bind, http_server
    from tallystick.store.database.row_query import RowQuery
    from tallystick.store.database.tokens import list_tokens
    from tallystick.store.database.workload_database import WorkloadDatabase
    from tallystick.web.application import build_application
    from tallystick.web.service.settings import PUBLIC, ServiceOptions

    check_choices(public=(public, PUBLIC))
    with WorkloadDatabase(db, writable=True) as database, bind(host, port) as listening:
        if public == PUBLIC[0] and not list_tokens(database):
            talk().print("nobody may ask anything yet: `tally token new NAME` makes a token; or give --public read")
        if not database.count(RowQuery(noun="runs")):
            mend = "`tally db add` reads one, or let `tally push` send one (--runs)"
            talk().print(f"{without_passwords(db)} holds no run yet: {mend}", soft_wrap=True)
        show({"database": without_passwords(db), "url": address_of(listening)}, address_of(listening), json)
        sys.stdout.flush()  # whoever reads the address waits for it
        with suppress(KeyboardInterrupt):
            options = ServiceOptions(public, runs, requests_per_minute=rate)
            http_server(build_application(database, options)).run(sockets=[listening])
    talk().print("stopped")


def new(
    name: str = typer.Argument(help="Whose token it is."),
    db: str = DB,
    scope: list[str] = typer.Option(["read"], help="read, open, ingest or challenge; may be given several times."),
    run: list[str] = typer.Option([], help="Openings, graphs and uploads of these runs alone; of all runs by default."),
    days: int | None = typer.Option(None, min=1, help="The token ends after so many days; never by default."),
    rate: int = typer.Option(6000, min=1, help="Requests per minute."),
    run_mib: int = typer.Option(65_536, "--run-mib", min=1, help="The largest run that can be sent, in mebibytes."),
    out: Path | None = typer.Option(None, "--out", help="Write the token to this new file, for its owner alone."),
    json: bool = JSON,
) -> None:
    """Make a token, and print it or write it to a file. It is shown once: the database keeps its digest.

    `read` shows rows, claims and records with proofs; `open` also tensors, graphs and data, as an audit needs them;
    `ingest` sends runs; `challenge` asks for openings on record, and needs `open`.
    """
    import time

    from tallystick.cli.output import is_stdout_open_to_others, show, talk
    from tallystick.store.database.tokens import TokenGrant, new_token

    if out is not None:
        from tallystick.documents.files import write_secret
        from tallystick.documents.targets import require_writable

        require_writable(out)
        if out.exists():
            raise UsageError(f"{out}: exists already; a token is never overwritten")
    end = None if days is None else time.time_ns() + days * DAY_NS
    grant = TokenGrant(name, frozenset(scope), frozenset(run) or None, rate, run_mib << 20, end_ns=end)
    with _writable(db) as database:
        token = new_token(database, grant)
    if out is not None:
        write_secret(out, token.encode() + b"\n", "a token")
        show({"file": str(out), "name": name}, str(out), json)
        return
    if is_stdout_open_to_others():
        mend = f"`tally token revoke {quote(name)}` takes it back, and --out FILE writes one that its owner alone reads"
        talk().print(f"warning: other users can read the file to which this token is written: {mend}", soft_wrap=True)
    show({"name": name, "token": token}, token, json)


def list_(db: str = DB, json: bool = JSON) -> None:
    """Show whose tokens there are, and what each allows."""
    from tallystick.cli.output import show
    from tallystick.store.database.tokens import list_tokens

    with _writable(db) as database:
        found = list_tokens(database)
    told: list[Json] = [_json(each) for each in found]
    show({"tokens": told}, "\n".join(_line(each) for each in found) or NO_TOKENS, json)


def revoke(names: list[str] = typer.Argument(help="Whose tokens."), db: str = DB, json: bool = JSON) -> None:
    """Take tokens away. The next request with one of them is refused."""
    from tallystick.cli.output import show
    from tallystick.store.database.tokens import revoke_token

    with _writable(db) as database:
        for name in names:
            revoke_token(database, name)
    show({"revoked": list(names)}, "\n".join(names), json)


def _writable(db: str) -> Any:
    from tallystick.extras import require

    require("sqlalchemy", "alembic")
    from tallystick.store.database.workload_database import WorkloadDatabase

    return WorkloadDatabase(db, writable=True)


def _json(grant: TokenGrant) -> Json:
    runs: list[Json] | None = None if grant.runs is None else [*sorted(grant.runs)]
    return {
        "name": grant.name,
        "scopes": [*sorted(grant.scopes)],
        "runs": runs,
        "requests_per_minute": grant.requests_per_minute,
        "run_bytes_max": grant.run_bytes_max,
        "made": _date(grant.made_ns),
        "end": None if grant.end_ns is None else _date(grant.end_ns),
    }


def _line(grant: TokenGrant) -> str:
    runs = "all runs" if grant.runs is None else " ".join(sorted(grant.runs))
    end = "" if grant.end_ns is None else f"\tuntil {_date(grant.end_ns)}"
    return f"{grant.name}\t{' '.join(sorted(grant.scopes))}\t{runs}\tmade {_date(grant.made_ns)}{end}"


def _date(nanoseconds: int) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(nanoseconds / 1e9, UTC).isoformat(timespec="seconds")
