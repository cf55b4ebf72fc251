"""A chain inside this process as an RPC server: no node and no binary is needed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eth_tester.exceptions import TransactionFailed
from web3 import Web3
from web3.exceptions import TransactionNotFound, Web3Exception
from web3.providers.eth_tester import EthereumTesterProvider

from tallystick.disputes.coordinators.ethereum.endpoints import RemoteError


class InProcess:
    """An endpoint over `eth-tester`, which answers in its own types and refuses by its own errors."""

    name = "in process"

    def __init__(self) -> None:
        self.provider = EthereumTesterProvider()
        self.web3 = Web3(self.provider)
        self.web3.middleware_onion.clear()  # which would look names of accounts up

    def ask(self, method: str, *parameters: Any) -> Any:
        try:
            return as_json(self.web3.manager.request_blocking(method, checksummed(list(parameters))))  # type: ignore[arg-type]
        except TransactionFailed as error:
            raise RemoteError(f"{self.name}: {error}", 3, "execution reverted", reason(error)) from None
        except TransactionNotFound:
            return None
        except (Web3Exception, ValueError) as error:
            raise RemoteError(f"{self.name}: {error}", -32000, str(error), None) from None

    def mine(self, blocks: int = 1) -> None:
        self.provider.ethereum_tester.mine_blocks(blocks)

    def advance(self, seconds: int) -> None:
        tester = self.provider.ethereum_tester
        tester.time_travel(tester.get_block_by_number("latest")["timestamp"] + seconds)
        self.mine()

    def snapshot(self) -> Any:
        return self.provider.ethereum_tester.take_snapshot()

    def revert(self, snapshot: Any) -> None:
        self.provider.ethereum_tester.revert_to_snapshot(snapshot)

    def fund(self, address: str, wei: int) -> None:
        rich, poor = self.web3.eth.accounts[0], Web3.to_checksum_address(address)
        self.web3.eth.send_transaction({"from": rich, "to": poor, "value": Web3.to_wei(wei, "wei"), "gas": 21_000})


def checksummed(value: Any) -> Any:
    """With addresses as this library wants them: upper and lower case as a checksum (EIP-55)."""
    if isinstance(value, dict):
        return {name: checksummed(each) for name, each in value.items()}
    if isinstance(value, list):
        return [checksummed(each) for each in value]
    return Web3.to_checksum_address(value) if isinstance(value, str) and len(value) == 42 else value


def as_json(value: Any) -> Any:
    """As a node writes it: numbers and bytes as hexadecimal digits after 0x."""
    if isinstance(value, Mapping):
        return {name: as_json(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(each) for each in value]
    if isinstance(value, bytes):
        return "0x" + value.hex()
    return hex(value) if isinstance(value, int) and not isinstance(value, bool) else value


def reason(error: TransactionFailed) -> str:
    """The reverted data, as a node gives it: `eth-tester` has decoded the string in it."""
    text = str(error.args[0]) if error.args else ""
    data = text.removeprefix("execution reverted: ").encode()
    padded = data.ljust(-(-len(data) // 32) * 32, b"\0")
    return "0x08c379a0" + ((32).to_bytes(32) + len(data).to_bytes(32) + padded).hex()
