"""`tally coordinator`: a coordinator of disputes, kept in a database and served over HTTP."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer

from tallystick.errors import MalformedError, UnavailableError, UsageError

if TYPE_CHECKING:
    from tallystick.attestation import SigningKey
    from tallystick.commitments import Json
    from tallystick.disputes.coordinators.local.book import Book
    from tallystick.disputes.coordinators.local.place import LocalCoordinator
    from tallystick.disputes.rules import Rules

DB_HELP: Final = "A file (SQLite), or the URL of a PostgreSQL database."
KEY_HELP: Final = "The coordinator's key; beside a file, FILE.key by default."
NO_KEY: Final = "0" * 64


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
    group = typer.Typer(no_args_is_help=True, help="A coordinator of disputes, in a database and over HTTP.")
    group.command(name="init")(init)
    group.command(name="serve")(serve)
    group.command(name="grant")(grant)
    group.command(name="show")(show)
    app.add_typer(group, name="coordinator")


def init(
    db: str = typer.Option(..., "--db", help=DB_HELP),
    rules: Path | None = typer.Option(None, help="The rules as JSON; what is left out has its default."),
    members: Path | None = typer.Option(None, help="The committee's keys, one a line."),
    referee: str | None = typer.Option(None, help="The key of the party that rules at once."),
    treasury: str | None = typer.Option(None, help="The key that fines go to; the coordinator's by default."),
    key: Path | None = typer.Option(None, "--key", help=KEY_HELP),
) -> int:
    """Set up a coordinator: its rules never change. Prints its identity and key.

    Where the rules name no beacon, the coordinator brings the nonces that draw committees.
    """
    from tallystick.disputes.coordinators.local.database import Database
    from tallystick.disputes.coordinators.local.place import LocalCoordinator, key_beside

    database = Database(db)
    signing = _read_key(key) or key_beside(database)
    database.close()
    told = {"referee": referee, "treasury": treasury, "members": _lines(members)}
    agreed = _rules(rules, {name: value for name, value in told.items() if value is not None}, signing.public)
    with closing(LocalCoordinator.create(db, agreed, signing)) as place:
        print(f"coordinator {place.identity}\nkey {place.charter.key}")
    return 0


def serve(
    db: str = typer.Option(..., "--db", help=DB_HELP),
    host: str = typer.Option("127.0.0.1", help="The address to listen on."),
    port: int = typer.Option(0, min=0, max=65535, help="The port; 0 takes a free one."),
    key: Path | None = typer.Option(None, "--key", help=KEY_HELP),
    referee: Path | None = typer.Option(None, help="Rule as the referee with the key in this file."),
    poll: float = typer.Option(1.0, min=0.05, max=3600, help="Seconds between looks for moves that are due."),
    due: bool = typer.Option(True, help="Make the moves that anybody may make once they are due."),
) -> int:
    """Serve a coordinator to its parties until Ctrl-C. Prints the address, the identity and the key."""
    _need_extra()
    from tallystick.disputes.coordinators.local.duties import make_due_moves

    with closing(_open(db, key)) as place:
        duties: list[Callable[[], object]] = [lambda: make_due_moves(place)] if due else []
        if referee is not None:
            duties.append(_referee(place, referee))
        _listen(host, port, place, duties, poll)
    return 0


def grant(
    party: str = typer.Argument(help="The party's key, 64 hexadecimal digits."),
    amount: int = typer.Argument(help="How much to put into its purse; a negative amount is paid out of it."),
    db: str = typer.Option(..., "--db", help=DB_HELP),
    key: Path | None = typer.Option(None, "--key", help=KEY_HELP),
) -> int:
    """Put money into a party's purse. Prints what the purse holds then."""
    if len(party) != len(NO_KEY) or set(party) - set("0123456789abcdef"):
        raise UsageError(f"{party[:80]}: no key of 64 hexadecimal digits")
    with closing(_open(db, key)) as place:
        print(place.grant(party, amount))
    return 0


def show(
    db: str = typer.Option(..., "--db", help=DB_HELP),
    key: Path | None = typer.Option(None, "--key", help=KEY_HELP),
    as_json: bool = typer.Option(False, "--json", help="One line of JSON."),
) -> int:
    """Check every entry of a coordinator's database, and print where its claims, disputes and purses stand."""
    with closing(_open(db, key)) as place:
        if as_json:
            from tallystick.cli.output import print_json

            print_json(_summary(place))
        else:
            _print_tables(place, place.book())
    return 0


def _open(db: str, key: Path | None) -> LocalCoordinator:
    from tallystick.disputes.coordinators.local.place import LocalCoordinator

    return LocalCoordinator.open(db, _read_key(key))


def _read_key(path: Path | None) -> SigningKey | None:
    from tallystick.cli.recording import read_key

    return None if path is None else read_key(path)


def _rules(path: Path | None, told: dict[str, Any], own: str) -> Rules:
    """The rules in a file with what the options say; raises `UsageError` for one said in both."""
    from tallystick.commitments import parse
    from tallystick.disputes.rules import Rules

    given = {} if path is None else parse(path.read_bytes(), path.name)
    if not isinstance(given, dict):
        raise MalformedError(f"{path}: no JSON object of rules")
    twice = sorted(given.keys() & told.keys())
    if twice:
        raise UsageError(f"--{twice[0]}: the rules in {path} say it already")
    return Rules.from_json({"treasury": own, "beacon": own, **given, **told}, "rules")


def _lines(path: Path | None) -> list[Json] | None:
    return None if path is None else [line.strip() for line in path.read_text().splitlines() if line.strip()]


def _referee(place: LocalCoordinator, path: Path) -> Callable[[], object]:
    """One look of the referee at all open disputes."""
    from tallystick.disputes.players.referee import referee_of

    key = _read_key(path)
    assert key is not None
    if key.public != place.rules.referee:
        raise UsageError(f"--referee {path}: the rules name another referee")
    return referee_of(place.connect(key), place.board(key)).look


def _listen(host: str, port: int, place: LocalCoordinator, duties: list[Callable[[], object]], seconds: float) -> None:
    """Serve until Ctrl-C, with the duties done in a thread beside."""
    import threading

    from tallystick.cli.output import talk
    from tallystick.disputes.coordinators.local.duties import keep_at
    from tallystick.disputes.coordinators.local.server import create_app
    from tallystick.serving.listening import address_of, bind, http_server

    stop, console = threading.Event(), talk()
    tell = console.print
    with bind(host, port) as listening:
        beside = threading.Thread(target=keep_at, args=(duties, seconds, stop, tell), name="duties")
        beside.start()
        try:
            print(f"{address_of(listening)}\ncoordinator {place.identity}\nkey {place.charter.key}", flush=True)
            with suppress(KeyboardInterrupt):
                http_server(create_app(place)).run(sockets=[listening])
        finally:
            stop.set()
            beside.join()
    console.print("stopped")


def _summary(place: LocalCoordinator) -> Json:
    from pydantic import TypeAdapter

    from tallystick.disputes.state import Claim, Dispute

    book = place.book()
    claims: Json = TypeAdapter(tuple[Claim, ...]).dump_python(book.state.claims, mode="json")
    disputes: Json = TypeAdapter(tuple[Dispute, ...]).dump_python(book.state.disputes, mode="json")
    return {
        "balance": book.state.balance,
        "claims": claims,
        "coordinator": place.identity,
        "disputes": disputes,
        "entries": book.count,
        "head": book.head,
        "purses": {party: place.purse(party) for party in place.parties()},
        "time": place.now(),
    }


def _print_tables(place: LocalCoordinator, book: Book) -> None:
    from rich.table import Table

    from tallystick.cli.output import page

    console = page()
    console.print(f"coordinator {place.identity}\n{book.count} moves, head {book.head}", soft_wrap=True)
    claims = Table("claim", "prover", "status", "leaves", "disputes", "deadline")
    for number, claim in enumerate(book.state.claims):
        claims.add_row(*map(str, (number, claim.prover[:12], claim.status, claim.size, claim.disputes, claim.deadline)))
    disputes = Table("dispute", "claim", "challenger", "phase", "level", "leaves", "fault")
    for number, each in enumerate(book.state.disputes):
        cells = (number, each.claim, each.challenger[:12], each.phase, each.level, f"{each.low}–{each.high}")
        disputes.add_row(*map(str, cells), each.fault or "")
    purses = Table("party", "purse")
    for party in place.parties():
        purses.add_row(party, str(place.purse(party)))
    for table in (claims, disputes, purses):
        if table.row_count:
            console.print(table)


def _need_extra() -> None:
    try:
        import fastapi  # noqa: F401
        import uvicorn  # noqa: F401
    except ModuleNotFoundError as error:
        raise UnavailableError(f"{error.name} is not installed: pip install 'tallystick[serve,disputes]'") from None
