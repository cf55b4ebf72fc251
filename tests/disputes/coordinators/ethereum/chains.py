"""A contract on a local node, with an account for each role, and what a test can do to such a chain."""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import requests

from tallystick.core.digests import digest
from tallystick.core.errors import UnavailableError
from tallystick.disputes.coordinators.ethereum.client import EthereumCoordinator, Settings, connect, deploy
from tallystick.disputes.coordinators.ethereum.contract import ContractLocation
from tallystick.disputes.coordinators.ethereum.endpoints import RetryRules
from tallystick.disputes.coordinators.ethereum.keys import EthereumKey
from tallystick.disputes.coordinators.ethereum.sender import SendingRules
from tallystick.disputes.game.moves import Contest, Post
from tallystick.disputes.game.state import Rules
from tests.support.ethereum_node import LocalNode, running_node

ROLES = ("prover", "challenger", "referee", "treasury", "guardian", "planter", "board")
MEMBERS = tuple(f"member{number}" for number in range(9))
KEYS = {name: EthereumKey(number.to_bytes(32)) for number, name in enumerate((*ROLES, *MEMBERS), start=1001)}
ETHER = 10**18
JSON_TYPE = {"Content-Type": "application/json"}
QUICK = Settings(
    patience=RetryRules(rounds=2, pause_s=0.01), timeout_s=10.0, sending=SendingRules(patience_s=0.6, poll_s=0.02)
)


def rules(**changes: Any) -> Rules:
    """Short clocks, four ways, committees of three; nobody is the beacon, so that the chain draws."""
    given: dict[str, Any] = {
        "treasury": KEYS["treasury"].address,
        "referee": KEYS["referee"].address,
        "ways": 4,
        "committee": 3,
        "guardian": KEYS["guardian"].address,
        "planter": KEYS["planter"].address,
        "appeals": 1,
        "members": tuple(KEYS[name].address for name in MEMBERS),
        "clock": 6000,
        "extension": 900,
        "challenge_window": 50_000,
        **changes,
    }
    return Rules(**given)


@dataclass
class Chain:
    """A node with one contract; `depth` blocks make a block final."""

    node: LocalNode
    folder: Path
    place: ContractLocation
    settings: Settings
    _known: dict[str, EthereumCoordinator] = field(default_factory=dict)

    def at(self, role: str) -> EthereumCoordinator:
        """The connection of a role, the same each time."""
        if role not in self._known:
            self._known[role] = self.anew(role)
        return self._known[role]

    def anew(self, role: str, settings: Settings | None = None, *urls: str, **more: Any) -> EthereumCoordinator:
        """A fresh connection of a role, as its program makes after a crash; through `urls` or the node itself."""
        place = ContractLocation(urls or self.place.urls, self.place.contract)
        return connect(str(place), KEYS[role], self.folder, settings=settings or self.settings, **more)

    def final(self) -> None:
        """Let all that is in a block become final."""
        self.node.mine(3 if self.settings.depth is None else self.settings.depth)

    def height(self) -> int:
        return int(self.node.ask("eth_blockNumber"), 16)

    def transactions(self, role: str) -> int:
        """How many transactions of an account stand in blocks."""
        return int(self.node.ask("eth_getTransactionCount", KEYS[role].address, "latest"), 16)

    def receipts(self, role: str) -> list[tuple[int, bool]]:
        """Nonce and success of every transaction of an account that stands in a block, in order."""
        found = []
        for number in range(self.height() + 1):
            for each in self.node.ask("eth_getBlockByNumber", hex(number), True)["transactions"]:
                if each["from"] == KEYS[role].address:
                    receipt = self.node.ask("eth_getTransactionReceipt", each["hash"])
                    found.append((int(each["nonce"], 16), receipt["status"] == "0x1"))
        return found

    def fees(self, role: str) -> int:
        """What the transactions of an account have cost so far, in wei."""
        paid = 0
        for number in range(self.height() + 1):
            for each in self.node.ask("eth_getBlockByNumber", hex(number), True)["transactions"]:
                if each["from"] == KEYS[role].address:
                    receipt = self.node.ask("eth_getTransactionReceipt", each["hash"])
                    paid += int(receipt["gasUsed"], 16) * int(receipt["effectiveGasPrice"], 16)
        return paid

    def pool(self) -> list[dict[str, Any]]:
        """The transactions that no block has."""
        content = self.node.ask("txpool_content")
        return [each for part in ("pending", "queued") for by in content[part].values() for each in by.values()]


@contextmanager
def running_chain(
    folder: Path, *options: str, settings: Settings = QUICK, board: str | None = None, **changes: Any
) -> Iterator[Chain]:
    """A chain with a contract, its accounts rich; skips the test where there is no node."""
    try:
        with running_node("--slots-in-an-epoch", "1", *options) as node:
            for key in KEYS.values():
                node.ask("anvil_setBalance", key.address, hex(10_000 * ETHER))
            place = deploy([node.url], rules(**changes), KEYS["prover"], board, folder, settings)
            node.mine(3 if settings.depth is None else settings.depth)
            yield Chain(node, folder, place, settings)
    except UnavailableError as error:
        if "anvil" not in str(error):
            raise
        pytest.skip(str(error))


def claim(chain: Chain, size: int = 100, root: str = "11" * 32) -> Post:
    """The prover's claim of a tree; each call makes another one."""
    party, bond = KEYS["prover"].address, chain.at("prover").rules.prover_bond
    statement, seal = digest("blob", b"statement"), secrets.token_hex(32)
    return Post(actor=party, value=bond, root=root, size=size, statement=statement, seal=seal)


def contest(chain: Chain, number: int = 0, low: int = 0, high: int = 100) -> Contest:
    """The challenger's dispute over a claim."""
    given = chain.at("challenger").rules
    value = given.challenger_bond + given.deposit
    return Contest(actor=KEYS["challenger"].address, value=value, claim=number, low=low, high=high)


Ask = Callable[[], Any]
Spoil = Callable[[str, list[Any], Ask], Any]


class Proxy:
    """An RPC server between a client and a node.

    `spoil` gets the method, its parameters and a way to ask the node; it gives the answer, as JSON or as bytes, or
    `None` to hang up without one.
    """

    def __init__(self, url: str, spoil: Spoil | None = None) -> None:
        self.asked: list[str] = []
        self.spoil: Spoil = spoil or honest
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize, disable_nagle_algorithm = 1 << 16, True

            def do_POST(self) -> None:
                question = self.rfile.read(int(self.headers["Content-Length"]))
                document = json.loads(question)
                proxy.asked.append(document["method"])

                def ask() -> Any:
                    return requests.post(url, data=question, headers=JSON_TYPE, timeout=30).json()

                answer = proxy.spoil(document["method"], document["params"], ask)
                if answer is None:
                    self.close_connection = True
                    return
                data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Proxy:
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def honest(method: str, parameters: list[Any], ask: Ask) -> Any:
    return ask()
