"""A local Ethereum node for the demo, the tests and the benchmarks: Foundry's `anvil`, ended with its context."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import DEVNULL
from typing import Any, Final

from web3 import HTTPProvider, Web3
from web3.types import RPCEndpoint

from tallystick.core.errors import UnavailableError

START_TIMEOUT_S: Final = 120.0
ENVIRONMENT_NAME: Final = "TALLYSTICK_ANVIL"


@dataclass(frozen=True)
class LocalNode:
    """A running node: its address for clients, and what only a test of a chain can do to it."""

    url: str
    web3: Web3
    process: subprocess.Popen[bytes]

    def advance(self, seconds: int) -> None:
        """Move the chain's clock on and mine one block at the new time."""
        self.ask("evm_increaseTime", seconds)
        self.mine()

    def mine(self, blocks: int = 1) -> None:
        """Mine empty blocks, one second apart."""
        self.ask("anvil_mine", hex(blocks))

    def snapshot(self) -> str:
        """The name of the present state of the chain, for `revert`."""
        return str(self.ask("evm_snapshot"))

    def revert(self, snapshot: str) -> None:
        """Go back to a snapshot: every block since then is gone, as in a reorganisation."""
        self.ask("evm_revert", snapshot)

    def ask(self, method: str, *arguments: Any) -> Any:
        """The answer to one JSON-RPC call.

        Raises:
            UnavailableError: The node refuses it.
        """
        answer = self.web3.provider.make_request(RPCEndpoint(method), list(arguments))
        if "error" in answer:
            raise UnavailableError(f"the local node refuses {method}: {answer['error']['message']}")
        return answer.get("result")


def find_anvil() -> Path:
    """Where `anvil` lies: `TALLYSTICK_ANVIL`, the path, or `contracts/node_modules` of a source tree.

    Raises:
        UnavailableError: It is in none of them.
    """
    in_tree = Path(__file__).parents[2] / "contracts" / "node_modules" / ".bin" / "anvil"
    for place in (os.environ.get(ENVIRONMENT_NAME), shutil.which("anvil"), in_tree):
        if place and Path(place).is_file():
            return Path(place)
    raise UnavailableError("anvil is not installed: run `npm ci` in contracts/ or name it in TALLYSTICK_ANVIL")


@contextmanager
def running_node(*options: str) -> Iterator[LocalNode]:
    """A node on a free port of this machine, with ten rich accounts; `options` are further words for `anvil`.

    The states of its blocks, gigabytes after some thousand, are gone from the disk when it ends.

    Raises:
        UnavailableError: `anvil` is not installed or does not start.
    """
    port, anvil = _free_port(), find_anvil()
    with tempfile.TemporaryDirectory(prefix="tally-anvil-") as states:
        command = [str(anvil), "--port", str(port), "--silent", "--cache-path", states, *options]
        process = subprocess.Popen(command, stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL)
        url = f"http://127.0.0.1:{port}"
        try:
            yield LocalNode(url, _connected(url, process), process)
        finally:
            process.terminate()
            process.wait()


def _connected(url: str, process: subprocess.Popen[bytes]) -> Web3:
    web3 = Web3(HTTPProvider(url, request_kwargs={"timeout": 120}))
    ends_at = time.monotonic() + START_TIMEOUT_S
    while not web3.is_connected():
        if process.poll() is not None or time.monotonic() > ends_at:
            raise UnavailableError(f"the local node did not start (exit status {process.poll()})")
        time.sleep(0.05)
    return web3


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
