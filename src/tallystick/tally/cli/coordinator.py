"""`tally coordinator`: a coordinator of disputes, kept in a database and served over HTTP."""

from __future__ import annotations

import shlex
import threading
from collections.abc import Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Final

import typer

from tallystick.core.canonical_json import Json, parse
from tallystick.core.errors import MalformedError, TallyError, UsageError
from tallystick.core.files import read_document
from tallystick.core.http import server as http
from tallystick.core.lazy import require
from tallystick.disputes.coordinators.local import (
    board,
    coordinator as local_coordinator,
    server,
    signed as signed_moves,
)
from tallystick.disputes.evidence import judging
from tallystick.disputes.game import context, state as game_state
from tallystick.disputes.parties import (
    auditing as party_audits,
    game_view,
    player as players,
    programs,
    progress as dispute_progress,
)
from tallystick.formats import signing as signing_keys
from tallystick.formats.store.folders import OPENING, RUN, require_folder
from tallystick.tally.cli import dispute_display as display
from tallystick.tally.cli.options import AsJson, read_key
from tallystick.tally.cli.output import print_json, read_entries, show as show_result, talk
from tallystick.tally.cli.party_session import BUDGET, PROFILE, dispute_judge

# `tally coordinator init --demo`: a coordinator for trying disputes, with the keys of all parties beside it.

DATABASE: Final = Path("court") / "court.db"
HONEST: Final = Path("run")
"""The run that the printed commands claim."""
PARTIES: Final = ("lab", "forger", "auditor", "referee")
PURSE: Final = 2_000_000
MINUTE_WINDOWS: Final = ("clock", "referee_window", "vote_window", "reveal_window", "appeal_window")
SHORT: Final = dict.fromkeys(MINUTE_WINDOWS, 120) | {
    "challenge_window": 300,
    "committee": 1,
    "extension": 20,
    "withdrawal_delay": 1,
}
"""Seconds in the place of days; the window for contests is longer where an audit takes long."""


def init_demo(database: Path, as_json: bool = False, window: int | None = None) -> None:
    """Set up the coordinator, make and write all keys, fill the purses, and print what to paste next.

    `window` is how long claims can be contested at least. Raises `UsageError` where a file of that name is there.
    """
    taken = [path for path in (database, *(_key(database, name) for name in PARTIES)) if path.exists()]
    if taken:
        raise UsageError(f"{taken[0]}: there is a file already; choose another folder with --db FOLDER/court.db")
    database.parent.mkdir(parents=True, exist_ok=True)
    own, keys = signing_keys.SigningKey.generate(), {name: signing_keys.SigningKey.generate() for name in PARTIES}
    own.write(Path(f"{database}.key"))
    for name, key in keys.items():
        key.write(_key(database, name))
    named = {"treasury": own.public, "beacon": own.public, "referee": keys["referee"].public}
    seconds = max(SHORT["challenge_window"], window or 0)
    slow = {name: SHORT[name] * seconds // SHORT["challenge_window"] for name in ("clock", "extension")}
    rules = game_state.Rules.from_json({**SHORT, **named, **slow, "challenge_window": seconds}, "rules")
    with closing(local_coordinator.LocalCoordinator.create(database, rules, own)) as place:
        for name in PARTIES[:3]:
            place.grant(keys[name].public, PURSE)
        _show_identity(place, as_json)
    for line in next_commands(database):
        talk().print(line, soft_wrap=True)
    talk().print(f"Claims can be contested for {dispute_progress.in_words(seconds)}.")


def _key(database: Path, name: str) -> Path:
    return database.with_name(f"{name}.key")


def next_commands(database: Path) -> list[str]:
    """What to paste into two terminals, with a line about each, and what a coordinator like this one is for."""
    folder = f"{database.parent}/"

    def at(name: str) -> str:
        words = ("--coordinator", str(database), "--key", str(_key(database, name)), "--poll", "0.2")
        return " ".join(map(shlex.quote, words))

    return [
        f"For trying only: clocks are short, and the keys of all parties lie in {folder}, open to anybody.",
        "Terminal 1, who checks; start it first:",
        f"    tally challenger --until-settled {at('auditor')}",
        "Terminal 2, who claims: the honest `run`, and `forged`, which `tally attack wrong-rate run forged` makes:",
        f"    tally prover forged --once {at('forger')}",
        f"    tally prover run --once {at('lab')}",
        f"    tally prover forged --forger wrong-rate {at('forger')}",
        f"    tally prover run {at('lab')}",
        "Where a program waits for the referee's ruling (not for this forgery):",
        f"    tally rule --until-settled {at('referee')}",
    ]


DB_HELP: Final = "A file (SQLite), or the URL of a PostgreSQL database."
NO_KEY: Final = "0" * 64
Key = Annotated[Path | None, typer.Option("--key", help="The coordinator's key; beside a file, FILE.key by default.")]
Database = Annotated[str, typer.Option("--db", help=DB_HELP)]


def init(
    db: str | None = typer.Option(None, "--db", help=f"{DB_HELP} With --demo, court/court.db by default."),
    rules: Path | None = typer.Option(None, help="The rules as JSON; what is left out has its default."),
    members: Path | None = typer.Option(None, help="The committee's keys, one a line."),
    referee: str | None = typer.Option(None, help="The key of the party that rules at once."),
    treasury: str | None = typer.Option(None, help="The key that fines go to; the coordinator's by default."),
    window_for: Path | None = typer.Option(
        None,
        "--window-for",
        help="Claims can be contested for 40 times what auditing this run takes here, at least.",
    ),
    key: Key = None,
    demo: bool = typer.Option(
        False, "--demo", help="For trying: short clocks, all keys beside it, what to paste next."
    ),
    json: AsJson = False,
) -> None:
    """Set up a coordinator: its rules never change. Prints its identity and key.

    Where the rules name no beacon, the coordinator brings the nonces that draw committees.
    """
    if demo:
        others = {"rules": rules, "members": members, "referee": referee, "treasury": treasury, "key": key}
        if given := [name for name, value in others.items() if value is not None]:
            raise UsageError(f"--{given[0]}: --demo brings its own rules and keys; leave one of them away")
        if db is not None and "://" in db:
            raise UsageError("--db: a coordinator for trying is kept in a file, with the keys beside it")
        # Where the run is here that the printed commands claim, the window follows from its audit.
        timed = window_for or (HONEST if (HONEST / "claim.json").is_file() else None)
        init_demo(DATABASE if db is None else Path(db), json, None if timed is None else _window(timed))
        return
    if db is None:
        raise UsageError("--db: where the coordinator is to be kept; --demo sets one up for trying")
    database = board.CoordinatorDatabase(db)
    # a file that no call of `init` began is refused before a key is left beside it
    if database.is_file and database.path.exists() and not local_coordinator.key_path(database).exists():
        raise UsageError(f"{database.path}: there is a file already")
    signing = _read_key(key) or local_coordinator.key_beside(database)
    database.close()
    listed = None if members is None else read_entries(members)
    options = {"referee": referee, "treasury": treasury, "members": listed}
    agreed = read_rules(rules, options, {"treasury": signing.public, "beacon": signing.public})
    if window_for is not None:
        agreed = agreed.model_copy(update={"challenge_window": max(agreed.challenge_window, _window(window_for))})
    with closing(local_coordinator.LocalCoordinator.create(db, agreed, signing)) as place:
        _show_identity(place, json)


def _show_identity(place: local_coordinator.LocalCoordinator, as_json: bool) -> None:
    identity: Json = {"coordinator": place.identity, "key": place.charter.key}
    show_result(identity, f"coordinator {place.identity}\nkey {place.charter.key}", as_json)


def serve(
    *,
    db: Database,
    host: str = typer.Option("127.0.0.1", help="The address to listen on."),
    port: int = typer.Option(0, min=0, max=65535, help="The port; 0 takes a free one."),
    key: Key = None,
    referee: Path | None = typer.Option(None, help="Rule as the referee, with the key in this file."),
    profile: Path | None = PROFILE,
    budget: list[Path] = BUDGET,
    keep: bool = typer.Option(True, help="Make the moves that anybody may make once they are due."),
    poll: float = typer.Option(1.0, min=0.05, max=3600, help="Seconds between checks for moves that are due."),
    grace: float = typer.Option(60.0, min=0, help="Seconds before the first such move, so that parties can come back."),
) -> None:
    """Serve a coordinator to its parties until Ctrl-C. Prints the address, the identity and the key."""
    require("sqlalchemy", "fastapi", "uvicorn")
    if referee is None and (profile or budget):
        raise UsageError("--profile and --budget: for the judge of --referee")

    with closing(_open(db, key)) as place, TemporaryDirectory() as folder, ExitStack() as stack:
        programs = list[players.Player]()
        if keep:  # it makes due moves and brings the beacon's nonces
            workspace = stack.enter_context(players.Workspace(Path(folder, "keeper")))
            due = players.DueMoves(everybody=True, nonce=place.next_nonce)
            programs.append(players.Player(place.own(), workspace, (due,)))
        if referee is not None:
            judge = dispute_judge(profile, budget)
            programs.append(_referee(place, referee, judge, Path(folder, "referee"), stack))
        _listen(host, port, place, programs, (grace, poll))


def grant(
    *,
    party: str = typer.Argument(help="The party's key, 64 hexadecimal digits."),
    amount: int = typer.Argument(min=1, help="How much to put into its purse."),
    out: bool = typer.Option(False, "--out", help="Pay the amount out of the purse instead."),
    db: Database,
    key: Key = None,
    json: AsJson = False,
) -> None:
    """Put money into a party's purse, once it was paid in. Prints what the purse holds then."""
    if len(party) != len(NO_KEY) or set(party) - set("0123456789abcdef"):
        raise UsageError(f"{party[:80]}: no key of 64 hexadecimal digits")
    with closing(_open(db, key)) as place:
        purse = place.grant(party, -amount if out else amount)
        show_result({"party": party, "purse": purse}, str(purse), json)


def show(
    db: Database,
    key: Key = None,
    as_json: bool = typer.Option(False, "--json", help="One line of JSON."),
) -> None:
    """Check every entry of a coordinator's database, and print the state of claims, disputes and purses."""
    with closing(_open(db, key)) as place:
        if as_json:
            print_json(_summary(place))
        else:
            _print_tables(place, place.chain())


def _window(run: Path) -> int:
    """How long a claim like this run is to be open; raises what an audit of it raises."""
    return party_audits.window_for(require_folder(run, RUN, OPENING))


def _open(db: str, key: Path | None) -> local_coordinator.LocalCoordinator:
    return local_coordinator.LocalCoordinator.open(db, _read_key(key))


def _read_key(path: Path | None) -> signing_keys.SigningKey | None:
    return None if path is None else read_key(path)


def read_rules(path: Path | None, options: dict[str, Any], defaults: dict[str, Any]) -> game_state.Rules:
    """The rules in a file with what the options say; raises `UsageError` for one said in both."""
    stated = {name: value for name, value in options.items() if value is not None}
    given = {} if path is None else parse(read_document(path), path.name)
    if not isinstance(given, dict):
        raise MalformedError(f"{path}: no JSON object of rules")
    if twice := sorted(given.keys() & stated.keys()):
        raise UsageError(f"--{twice[0]}: the rules in {path} say it already")
    return game_state.Rules.from_json({**defaults, **given, **stated}, "rules")


def _referee(
    place: local_coordinator.LocalCoordinator, path: Path, judge: judging.DisputeJudge, folder: Path, stack: ExitStack
) -> players.Player:
    """The program of the referee; raises `UsageError` where the rules name another one."""
    key = _read_key(path)
    assert key is not None
    if key.public != place.rules.referee:
        raise UsageError(f"--referee {path}: the rules name another referee")
    workspace = stack.enter_context(players.Workspace(folder))
    cache = game_view.BoardCache(place.board(key), workspace.folder / "data")
    return players.Player(place.connect(key), workspace, programs.referee(cache, judge, judge.is_large))


def _listen(
    host: str,
    port: int,
    place: local_coordinator.LocalCoordinator,
    programs: Sequence[players.Player],
    seconds: tuple[float, float],
) -> None:
    """Serve until Ctrl-C, with the programs in another thread."""
    stop = threading.Event()
    with http.bind(host, port) as listening:
        beside = threading.Thread(target=_keep_at, args=(place, programs, seconds, stop), name="programs")
        beside.start()
        try:
            print(f"{http.address_of(listening)}\ncoordinator {place.identity}\nkey {place.charter.key}", flush=True)
            with suppress(KeyboardInterrupt):
                http.http_server(server.create_app(place)).run(sockets=[listening])
        finally:
            stop.set()
            beside.join()
    talk().print("stopped")


def _keep_at(
    place: local_coordinator.LocalCoordinator,
    programs: Sequence[players.Player],
    seconds: tuple[float, float],
    stop: threading.Event,
) -> None:
    """Run every program in a loop; an outage is reported, and the program is tried again."""
    console = talk()

    def say(line: str) -> None:
        console.print(line, soft_wrap=True)

    for program in programs:
        program.say = say
    grace, poll = seconds
    stop.wait(grace)
    with TemporaryDirectory() as folder:
        changes = display.DisputeChanges(
            place.own(), game_view.BoardCache(place.board(signing_keys.SigningKey.generate()), Path(folder)), say
        )
        while not stop.wait(poll):
            for program in programs:
                try:
                    program.look()
                except TallyError as error:
                    say(str(error))
            view = next((program.view for program in programs if program.view is not None), None)
            if view is not None:  # as the first of the programs sees them
                changes.show(
                    view,
                    [dispute_progress.progress_of(view.state, n, view.now) for n in range(len(view.state.disputes))],
                )


def _summary(place: local_coordinator.LocalCoordinator) -> Json:
    from pydantic import TypeAdapter

    chain = place.chain()
    claims: Json = TypeAdapter(tuple[game_state.PostedClaim, ...]).dump_python(chain.state.claims, mode="json")
    disputes: Json = TypeAdapter(tuple[game_state.Dispute, ...]).dump_python(chain.state.disputes, mode="json")
    return {
        "balance": chain.state.balance,
        "claims": claims,
        "coordinator": place.identity,
        "disputes": disputes,
        "entries": chain.count,
        "head": chain.head,
        "purses": {party: place.purse(party) for party in place.parties()},
        "time": place.now(),
    }


def _print_tables(place: local_coordinator.LocalCoordinator, chain: signed_moves.ChainState) -> None:
    from rich.table import Column, Table

    now, state = place.now(), chain.state
    purses = Table("party", Column("purse", justify="right"), box=None)
    for party in place.parties():
        purses.add_row(party, f"{place.purse(party):,}")
    disputes = display.disputes_table(
        [dispute_progress.progress_of(state, number, now) for number in range(len(state.disputes))], now
    )
    print(f"coordinator {place.identity}\n{chain.count} moves, head {chain.head}")
    for table in (display.claims_table(state, context.game_time(state, now)), disputes, purses):
        if table.row_count:
            display.print_table(table)
