"""`tally serve`, `token`, `push`, `ui`: a workload database over HTTP, what is sent to it, and its pages."""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path
from shlex import quote
from tempfile import TemporaryDirectory
from typing import Final

import typer

from tallystick.core.canonical_json import Json
from tallystick.core.errors import UsageError, without_passwords
from tallystick.core.files import require_writable, write_secret
from tallystick.core.http import client as http_client, server as http
from tallystick.core.lazy import require
from tallystick.database import query as queries, remote
from tallystick.database.pages import router
from tallystick.database.service import access, application
from tallystick.formats.store.folders import RUN, require_folder
from tallystick.tally import database as database_api
from tallystick.tally.cli.options import AsJson, Db, Host, Port, TokenFile, check_choices, open_database, read_token
from tallystick.tally.cli.output import is_stdout_open_to_others, progress_bar, serve_until_interrupted, show, talk
from tallystick.verdicts import words

# `tally serve` and `tally token`: a workload database over HTTP, and who may use it.

DAY_NS = 86_400 * 10**9
NO_TOKENS = "there are none; `tally token new NAME` makes one"


def serve(
    db: Db = "tally.db",
    host: Host = "127.0.0.1",
    port: Port = 0,
    public: str = typer.Option("nothing", help="What anybody may see without a token: nothing, claims, read or open."),
    runs: Path | None = typer.Option(None, help="The folder for runs that are sent here; without it none are taken."),
    rate: int = typer.Option(600, min=1, help="Requests per minute of one address without a token."),
    json: AsJson = False,
) -> None:
    """Serve the database to verifiers until Ctrl-C. Prints the address.

    Tokens say who may do what; `tally token new` makes one. Requests are logged on stderr, one line of JSON each.
    """
    require("sqlalchemy", "alembic", "fastapi", "uvicorn")
    check_choices(public=(public, access.PUBLIC))
    with open_database(db, writable=True) as database, http.bind(host, port) as listening:
        if public == access.PUBLIC[0] and not access.list_tokens(database):
            talk().print("nobody may ask anything yet: `tally token new NAME` makes a token; or give --public read")
        if not database.count(queries.RowQuery(noun="runs")):
            mend = "`tally db add` reads one, or let `tally push` send one (--runs)"
            talk().print(f"{without_passwords(db)} holds no run yet: {mend}", soft_wrap=True)
        show({"database": without_passwords(db), "url": http.address_of(listening)}, http.address_of(listening), json)
        sys.stdout.flush()  # whoever reads the address waits for it
        options = access.ServiceOptions(public, runs, requests_per_minute=rate)
        serve_until_interrupted(application.build_application(database, options), listening)


def new(
    name: str = typer.Argument(help="Whose token it is."),
    db: Db = "tally.db",
    scope: list[str] = typer.Option(["read"], help="read, open, ingest or challenge; may be given several times."),
    run: list[str] = typer.Option([], help="Openings, graphs and uploads of these runs alone; of all runs by default."),
    days: int | None = typer.Option(None, min=1, help="The token ends after so many days; never by default."),
    rate: int = typer.Option(6000, min=1, help="Requests per minute."),
    run_mib: int = typer.Option(65_536, "--run-mib", min=1, help="The largest run that can be sent, in mebibytes."),
    out: Path | None = typer.Option(None, "--out", help="Write the token to this new file, for its owner alone."),
    json: AsJson = False,
) -> None:
    """Make a token, and print it or write it to a file. It is shown once: the database keeps its digest.

    `read` shows rows, claims and records with proofs; `open` also tensors, graphs and data, as an audit needs them;
    `ingest` sends runs; `challenge` asks for openings on record, and needs `open`.
    """
    if out is not None:
        require_writable(out)
        if out.exists():
            raise UsageError(f"{out}: exists already; a token is never overwritten")
    end = None if days is None else time.time_ns() + days * DAY_NS
    grant = access.TokenGrant(name, frozenset(scope), frozenset(run) or None, rate, run_mib << 20, end_ns=end)
    with open_database(db, writable=True) as database:
        token = access.new_token(database, grant)
    if out is not None:
        write_secret(out, token.encode() + b"\n", "a token")
        show({"file": str(out), "name": name}, str(out), json)
        return
    if is_stdout_open_to_others():
        mend = f"`tally token revoke {quote(name)}` takes it back, and --out FILE writes one that its owner alone reads"
        talk().print(f"warning: other users can read the file to which this token is written: {mend}", soft_wrap=True)
    show({"name": name, "token": token}, token, json)


def list_(db: Db = "tally.db", json: AsJson = False) -> None:
    """Show whose tokens there are, and what each allows."""
    with open_database(db, writable=True) as database:
        grants = access.list_tokens(database)
    listed: list[Json] = [_json(grant) for grant in grants]
    show({"tokens": listed}, "\n".join(_line(grant) for grant in grants) or NO_TOKENS, json)


def revoke(names: list[str] = typer.Argument(help="Whose tokens."), db: Db = "tally.db", json: AsJson = False) -> None:
    """Take tokens away. The next request with one of them is refused."""
    with open_database(db, writable=True) as database:
        for name in names:
            access.revoke_token(database, name)
    show({"revoked": list(names)}, "\n".join(names), json)


def _json(grant: access.TokenGrant) -> Json:
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


def _line(grant: access.TokenGrant) -> str:
    runs = "all runs" if grant.runs is None else " ".join(sorted(grant.runs))
    end = "" if grant.end_ns is None else f"\tuntil {_date(grant.end_ns)}"
    return f"{grant.name}\t{' '.join(sorted(grant.scopes))}\t{runs}\tmade {_date(grant.made_ns)}{end}"


def _date(nanoseconds: int) -> str:
    return datetime.fromtimestamp(nanoseconds / 1e9, UTC).isoformat(timespec="seconds")


# `tally push`: sends a run directory to a service.


def push(
    run: Path = typer.Argument(help="A run directory, also one that is still being recorded."),
    url: str = typer.Argument(help="The service: http://HOST."),
    name: str | None = typer.Option(None, help="The name in the service; by default the folder's."),
    token_file: Path = typer.Option(..., "--token-file", help="The file of a token with the scope ingest."),
    json: AsJson = False,
) -> None:
    """Send a run to a service, or what is new of it.

    The service verifies it before any of it appears. Given again, it goes on where it was interrupted; a run that is
    being recorded grows.
    """
    require("httpx", "fastapi")
    require_folder(run, RUN)
    token, named = read_token(token_file), name or run.resolve().name
    limits = http_client.RequestLimits(seconds=600.0)  # the service verifies the run before it answers
    with remote.ServiceConnection(url, token, limits) as service, progress_bar() as bar:
        task = bar.add_task("sending, bytes", total=None, seen="")
        files, size = remote.push_run(service, run, named, lambda size: bar.advance(task, size))
    text = f"{named}: {files} files, {size} bytes sent; the service has verified the run"
    show({"name": named, "files": files, "bytes": size}, text, json)


# `tally ui`: the workload database in a browser.

HOST: Final = "127.0.0.1"
DEFAULT_DB: Final = "tally.db"


def ui(
    places: list[str] = typer.Argument(None, help="What `tally db add` takes; it is read again as it grows."),
    db: str | None = typer.Option(
        None,
        "--db",
        help=f"A file, or the URL of PostgreSQL or of a service (`tally serve`); without places, {DEFAULT_DB}.",
    ),
    token_file: TokenFile = None,
    port: int = typer.Option(8090, min=0, max=65535, help="The port on this machine; 0 takes any that is free."),
    json: AsJson = False,
) -> None:
    """Show the database in a browser until Ctrl-C.

    It is served on this machine only, also where the database is a service elsewhere, whose files are not shown. With
    places and without --db, they are read into a temporary database, which is deleted at the end.
    """
    require("sqlalchemy", "alembic", "fastapi", "uvicorn", "jinja2")
    with ExitStack() as stack:
        if db is None and places:
            db = f"{stack.enter_context(TemporaryDirectory(prefix='tally-ui-'))}/{DEFAULT_DB}"
        place = db or DEFAULT_DB
        if places:
            database = stack.enter_context(open_database(place, writable=True))
            following = router.Following(database, tuple(places), lambda line: talk().print(words.printable(line)))
            following.read()
            stack.enter_context(following)
        shown = stack.enter_context(database_api.open(place, token=read_token(token_file)))
        with http.bind(HOST, port) as listening:
            show(
                {"database": without_passwords(place), "url": http.address_of(listening)},
                http.address_of(listening),
                json,
            )
            sys.stdout.flush()  # whoever reads the address waits for it
            with suppress(KeyboardInterrupt):
                http.http_server(router.create_pages(shown)).run(sockets=[listening])
