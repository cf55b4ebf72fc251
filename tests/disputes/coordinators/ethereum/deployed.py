"""The contract as it is deployed, on a chain in this process or on a local node, and the game that its log tells."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from eth_abi import decode
from eth_tester.exceptions import TransactionFailed
from eth_utils.abi import event_signature_to_log_topic
from web3 import Web3
from web3.exceptions import ContractLogicError

from tallystick.core.errors import RuleError
from tallystick.disputes.coordinators.ethereum.encoding import (
    GWEI,
    decode_answer,
    decode_move,
    encode_call,
    encode_deployment,
    encode_move,
)
from tallystick.disputes.game.game import apply
from tallystick.disputes.game.moves import Move, value_of
from tallystick.disputes.game.state import Rules, State
from tests.support.ethereum_node import LocalNode

MOVED = event_signature_to_log_topic("Moved(uint64,address,uint64,uint64,bytes)")
FOUNDING_GAS = 16_777_216  # the most that a transaction may use (EIP-7825)
MOVE_GAS = 6_000_000


class Chain(Protocol):
    """A chain of this test's own."""

    @property
    def web3(self) -> Web3:
        """How it is asked."""
        ...

    def advance(self, seconds: int) -> None:
        """Let time pass, and mine a block."""
        ...

    def mine(self, blocks: int = 1) -> None:
        """Mine empty blocks."""
        ...


@dataclass(frozen=True)
class InProcessChain:
    """The chain of `eth-tester`, in this process."""

    web3: Web3

    def advance(self, seconds: int) -> None:
        """Let time pass, and mine a block."""
        now = self.web3.eth.get_block("latest")["timestamp"]
        self._tester.time_travel(now + seconds)
        self.mine()

    def mine(self, blocks: int = 1) -> None:
        """Mine empty blocks."""
        self._tester.mine_blocks(blocks)

    @property
    def _tester(self) -> Any:
        return self.web3.provider.ethereum_tester  # type: ignore[attr-defined]  # of eth-tester's provider


class Deployed:
    """A contract with these rules, and the state to which the moves in its log lead."""

    def __init__(self, chain: Chain | LocalNode, rules: Rules, board: str | None = None) -> None:
        self.chain = chain
        self._eth = chain.web3.eth
        self._sender = str(self._eth.accounts[0])
        receipt = self._sent({"data": encode_deployment(rules, board), "gas": FOUNDING_GAS})
        self.founding_gas = int(receipt["gasUsed"])
        self.address = str(receipt["contractAddress"])
        self.state = State(rules)
        self.gas = 0
        self.moves = 0

    @property
    def now(self) -> int:
        """The time of the latest block."""
        return int(self._eth.get_block("latest")["timestamp"])

    @property
    def balance(self) -> int:
        """What the contract holds, in gwei."""
        return int(self._eth.get_balance(Web3.to_checksum_address(self.address))) // GWEI

    @property
    def code(self) -> bytes:
        """What lies on the chain."""
        return bytes(self._eth.get_code(Web3.to_checksum_address(self.address)))

    def make(self, move: Move, attestation: bytes = b"") -> None:
        """Make a move, and then the same in Python as the log tells it; raises `RuleError` where it is refused."""
        self.send(encode_move(move, attestation), move.actor, value_of(move))

    def send(self, call: bytes, sender: str, value: int = 0) -> None:
        """Make a call from an account of the chain's own."""
        fields = {"from": Web3.to_checksum_address(sender), "to": self.address, "value": value * GWEI}
        receipt = self._sent({**fields, "data": call, "gas": MOVE_GAS})
        self.gas = int(receipt["gasUsed"])
        for log in receipt["logs"]:
            if log["topics"][0] == MOVED:
                self._fold(log)

    def ask(self, function: str, *arguments: Any) -> Sequence[Any]:
        """What one of the contract's functions answers."""
        fields: Any = {"to": Web3.to_checksum_address(self.address), "data": encode_call(function, arguments)}
        return decode_answer(function, bytes(self._eth.call(fields)))

    def _fold(self, log: Any) -> None:
        time, value, call = decode(["uint64", "uint64", "bytes"], bytes(log["data"]))
        move = decode_move(call, "0x" + bytes(log["topics"][2])[12:].hex(), value)
        self.state = apply(self.state, move, time)
        self.moves += 1

    def _sent(self, fields: dict[str, Any]) -> Any:
        gas_price = self._eth.get_block("latest")["baseFeePerGas"] * 2
        given: Any = {"from": self._sender, "gasPrice": gas_price, **fields}
        try:
            self._eth.call(given)
        except (TransactionFailed, ContractLogicError) as error:
            raise RuleError(_code_of(error), str(error)) from None
        receipt = self._eth.wait_for_transaction_receipt(self._eth.send_transaction(given), poll_latency=0.01)
        assert receipt["status"] == 1, "a call was taken, and the same transaction was not"
        return receipt


def _code_of(error: Exception) -> str:
    """The reason for which a call was reverted: the last word of what either kind of chain says."""
    return re.findall(r"[a-z]+", str(error.args[0]))[-1]
