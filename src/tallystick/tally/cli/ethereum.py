"""`tally contract`: a coordinator that is an Ethereum contract: its keys, rules and attestations."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer

from tallystick.core.errors import MalformedError, UsageError
from tallystick.tally.cli.options import ALWAYS_JSON, JSON

if TYPE_CHECKING:
    from tallystick.core.canonical_json import Json
    from tallystick.disputes.coordinators.ethereum.keys import EthereumKey
    from tallystick.disputes.game.state import Rules


ADDRESS: Final = re.compile("0x[0-9a-fA-F]{40}")
RPC: Final = typer.Option(..., "--rpc", help="The URL of an Ethereum node's JSON-RPC server; once for each.")
KEY: Final = typer.Option(..., "--key", help="The file with the account's key; `tally contract new-key` makes one.")
PLACE: Final = typer.Argument(help="The contract: ethereum:RPC:ADDRESS.")
DEPTH: Final = typer.Option(None, "--depth", min=0, help="Blocks until one is final; by default what the chain says.")


def new_key(file: Path = typer.Argument(help="The file to write; it must not exist."), json: bool = JSON) -> int:
    """Make the key of an Ethereum account. Prints the account's address."""
    _need_web3()
    from tallystick.disputes.coordinators.ethereum.keys import EthereumKey
    from tallystick.tally.cli.output import show

    key = EthereumKey.generate()
    key.write(file)
    show({"address": key.address, "file": str(file)}, key.address, json)
    return 0


def deploy(
    rpc: list[str] = RPC,
    key: Path = KEY,
    rules: Path | None = typer.Option(None, help="The rules as JSON; what is left out has its default."),
    members: Path | None = typer.Option(None, help="The committee's addresses, one a line."),
    treasury: str | None = typer.Option(None, help="The address that fines go to; the key's own by default."),
    board: str | None = typer.Option(None, help="The address of a board that has to attest the data of moves."),
    depth: int | None = DEPTH,
    json: bool = JSON,
) -> int:
    """Deploy a contract; nobody can change its rules. Prints its address, for --coordinator."""
    _need_web3()
    from tallystick.disputes.coordinators.ethereum.client import Settings, deploy
    from tallystick.tally.cli.output import show

    owner = _key(key)
    told: dict[str, Any] = {"treasury": _address("--treasury", treasury), "members": _lines(members)}
    witness = _address("--board", board)
    agreed = _rules(rules, {name: value for name, value in told.items() if value is not None}, owner.address)
    _require_money(rpc, owner.address)
    place = str(deploy(rpc, agreed, owner, witness, settings=Settings(depth=depth)))
    show({"coordinator": place}, place, json)
    return 0


def show(place: str = PLACE, depth: int | None = DEPTH, json: bool = ALWAYS_JSON) -> int:
    """Check a contract's code and its whole log, and print its rules and the state of claims and disputes."""
    _need_web3()
    from tallystick.disputes.coordinators.ethereum.client import Settings, connect
    from tallystick.tally.cli.output import print_json

    found = connect(place, settings=Settings(depth=depth))
    state = found.state
    print_json(
        {
            "balance": state.balance,
            "board": found.deployment.board,
            "chain": found.chain_id,
            "claims": [{"prover": each.prover, "status": each.status.value} for each in state.claims],
            "contract": found.contract,
            "disputes": [{"claim": each.claim, "phase": each.phase.value} for each in state.disputes],
            "moves": len(found.entries()),
            "rules": found.rules.to_json(),
            "time": found.now(),
        }
    )
    return 0


def attest(
    place: str = PLACE,
    db: str = typer.Option(..., "--db", help="The database of the local coordinator whose board holds the data."),
    key: Path = KEY,
    host: str = typer.Option("127.0.0.1", help="The address to listen on."),
    port: int = typer.Option(0, min=0, max=65535, help="The port; 0 takes a free one."),
) -> int:
    """Attest over HTTP, for a board, that it has the data of moves. Prints the address; Ctrl-C ends it."""
    _need_web3()
    from contextlib import closing, suppress

    from tallystick.core.http.server import address_of, bind, http_server
    from tallystick.disputes.coordinators.ethereum.board import AttestingBoard, create_app
    from tallystick.disputes.coordinators.ethereum.client import connect
    from tallystick.disputes.coordinators.local.coordinator import LocalCoordinator
    from tallystick.formats.signing import SigningKey
    from tallystick.tally.cli.output import talk

    found, owner = connect(place), _key(key)
    if found.deployment.board != owner.address:
        raise UsageError(f"--key {key}: the contract's board is {found.deployment.board}, not {owner.address}")
    with closing(LocalCoordinator.open(db)) as local, bind(host, port) as listening:
        board = AttestingBoard(local.board(SigningKey.generate()), owner, found.chain_id, found.contract)
        print(address_of(listening), flush=True)
        with suppress(KeyboardInterrupt):
            http_server(create_app(board)).run(sockets=[listening])
    talk().print("stopped")
    return 0


def relay(
    file: Path = typer.Argument(help="A move signed by its party, as JSON."),
    place: str = PLACE,
    key: Path = KEY,
    depth: int | None = DEPTH,
    json: bool = JSON,
) -> int:
    """Send a move that another party signed, and pay for it."""
    _need_web3()
    from tallystick.core.files import read_document
    from tallystick.disputes.coordinators.ethereum.client import Relayed, Settings, connect
    from tallystick.tally.cli.output import show

    relayed = Relayed.from_bytes(read_document(file), file.name)
    connect(place, _key(key), settings=Settings(depth=depth)).send_relayed(relayed)
    show({"sent_for": relayed.signer}, f"sent for {relayed.signer}", json)
    return 0


def _address(option: str, text: str | None) -> str | None:
    """An address in lower case; raises `UsageError` for anything else."""
    if text is not None and not ADDRESS.fullmatch(text):
        raise UsageError(f"{option} {text[:80]}: no address, which is 0x and 40 hexadecimal digits")
    return None if text is None else text.lower()


def _require_money(urls: Sequence[str], address: str) -> None:
    """Raise `UsageError` for an account without money: nothing would pay for what it signs."""
    from tallystick.disputes.coordinators.ethereum import endpoints as chain
    from tallystick.disputes.coordinators.ethereum.endpoints import Endpoints, HttpEndpoint

    servers = Endpoints([HttpEndpoint(url) for url in urls])
    if not servers.agreed(lambda server: chain.quantity(server, "eth_getBalance", address, "latest")):
        raise UsageError(f"--key: {address} holds nothing on this chain; fund it first")


def _key(path: Path) -> EthereumKey:
    from tallystick.disputes.coordinators.ethereum.keys import EthereumKey

    return EthereumKey.read(path)


def _rules(path: Path | None, told: dict[str, Any], own: str) -> Rules:
    """The rules in a file with what the options say; raises `UsageError` for one said in both."""
    from tallystick.core.canonical_json import parse
    from tallystick.core.files import read_document
    from tallystick.disputes.game.state import Rules

    given = {} if path is None else parse(read_document(path), path.name)
    if not isinstance(given, dict):
        raise MalformedError(f"{path}: no JSON object of rules")
    if twice := sorted(given.keys() & told.keys()):
        raise UsageError(f"--{twice[0]}: the rules in {path} say it already")
    return Rules.from_json({"treasury": own, **given, **told}, "rules")


def _lines(path: Path | None) -> list[Json] | None:
    from tallystick.tally.cli.output import read_entries

    return None if path is None else [line.lower() for line in read_entries(path)]


def _need_web3() -> None:
    from tallystick.core.lazy import require

    require("web3")
