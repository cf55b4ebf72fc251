"""`tally contract`: a coordinator that is an Ethereum contract: its keys, rules and attestations."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

import typer

from tallystick.core.errors import UsageError
from tallystick.core.files import read_document
from tallystick.core.http import server as http
from tallystick.core.lazy import require
from tallystick.disputes.coordinators.ethereum import board, client, endpoints, keys
from tallystick.disputes.coordinators.local import coordinator as local_coordinator
from tallystick.tally.cli.coordinator import read_rules
from tallystick.tally.cli.options import AlwaysJson, AsJson
from tallystick.tally.cli.output import print_json, read_entries, serve_until_interrupted, show as show_result

ADDRESS: Final = re.compile("0x[0-9a-fA-F]{40}")
RPC: Final = typer.Option(..., "--rpc", help="The URL of an Ethereum node's JSON-RPC server; once for each.")
KEY: Final = typer.Option(..., "--key", help="The file with the account's key; `tally contract new-key` makes one.")
PLACE: Final = typer.Argument(help="The contract: ethereum:RPC:ADDRESS.")
DEPTH: Final = typer.Option(None, "--depth", min=0, help="Blocks until one is final; by default what the chain says.")


def new_key(file: Path = typer.Argument(help="The file to write; it must not exist."), json: AsJson = False) -> None:
    """Make the key of an Ethereum account. Prints the account's address."""
    require("web3")
    key = keys.EthereumKey.generate()
    key.write(file)
    show_result({"address": key.address, "file": str(file)}, key.address, json)


def deploy(
    rpc: list[str] = RPC,
    key: Path = KEY,
    rules: Path | None = typer.Option(None, help="The rules as JSON; what is left out has its default."),
    members: Path | None = typer.Option(None, help="The committee's addresses, one a line."),
    treasury: str | None = typer.Option(None, help="The address that fines go to; the key's own by default."),
    board: str | None = typer.Option(None, help="The address of a board that has to attest the data of moves."),
    depth: int | None = DEPTH,
    json: AsJson = False,
) -> None:
    """Deploy a contract; nobody can change its rules. Prints its address, for --coordinator."""
    require("web3")
    owner = keys.EthereumKey.read(key)
    named = None if members is None else [line.lower() for line in read_entries(members)]
    stated = {"treasury": _address("--treasury", treasury), "members": named}
    witness = _address("--board", board)
    agreed = read_rules(rules, stated, {"treasury": owner.address})
    _require_money(rpc, owner.address)
    place = str(client.deploy(rpc, agreed, owner, witness, settings=client.Settings(depth=depth)))
    show_result({"coordinator": place}, place, json)


def show(place: str = PLACE, depth: int | None = DEPTH, json: AlwaysJson = True) -> None:
    """Check a contract's code and its whole log, and print its rules and the state of claims and disputes."""
    require("web3")
    contract = client.connect(place, settings=client.Settings(depth=depth))
    state = contract.state
    print_json(
        {
            "balance": state.balance,
            "board": contract.deployment.board,
            "chain": contract.chain_id,
            "claims": [{"prover": each.prover, "status": each.status.value} for each in state.claims],
            "contract": contract.contract,
            "disputes": [{"claim": each.claim, "phase": each.phase.value} for each in state.disputes],
            "moves": len(contract.entries()),
            "rules": contract.rules.to_json(),
            "time": contract.now(),
        }
    )


def attest(
    place: str = PLACE,
    db: str = typer.Option(..., "--db", help="The database of the local coordinator whose board holds the data."),
    key: Path = KEY,
    host: str = typer.Option("127.0.0.1", help="The address to listen on."),
    port: int = typer.Option(0, min=0, max=65535, help="The port; 0 takes a free one."),
) -> None:
    """Attest over HTTP, for a board, that it has the data of moves. Prints the address; Ctrl-C ends it."""
    require("web3")
    contract, owner = client.connect(place), keys.EthereumKey.read(key)
    if contract.deployment.board != owner.address:
        raise UsageError(f"--key {key}: the contract's board is {contract.deployment.board}, not {owner.address}")
    with closing(local_coordinator.LocalCoordinator.open(db)) as local, http.bind(host, port) as listening:
        attesting = board.AttestingBoard(local.blobs, owner, contract.chain_id, contract.contract)
        print(http.address_of(listening), flush=True)
        serve_until_interrupted(board.create_app(attesting), listening)


def relay(
    file: Path = typer.Argument(help="A move signed by its party, as JSON."),
    place: str = PLACE,
    key: Path = KEY,
    depth: int | None = DEPTH,
    json: AsJson = False,
) -> None:
    """Send a move that another party signed, and pay for it."""
    require("web3")
    relayed = client.Relayed.from_bytes(read_document(file), file.name)
    client.connect(place, keys.EthereumKey.read(key), settings=client.Settings(depth=depth)).send_relayed(relayed)
    show_result({"sent_for": relayed.signer}, f"sent for {relayed.signer}", json)


def _address(option: str, text: str | None) -> str | None:
    """An address in lower case; raises `UsageError` for anything else."""
    if text is not None and not ADDRESS.fullmatch(text):
        raise UsageError(f"{option} {text[:80]}: no address, which is 0x and 40 hexadecimal digits")
    return None if text is None else text.lower()


def _require_money(urls: Sequence[str], address: str) -> None:
    """Raise `UsageError` for an account without money: nothing would pay for what it signs."""
    servers = endpoints.Endpoints([endpoints.HttpEndpoint(url) for url in urls])
    if not servers.agreed(lambda server: endpoints.quantity(server, "eth_getBalance", address, "latest")):
        raise UsageError(f"--key: {address} holds nothing on this chain; fund it first")
