"""The contract's side of an agreement: the harness on a local node, which plays many moves in one transaction."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from eth_abi import decode, encode
from eth_utils.abi import event_signature_to_log_topic, function_signature_to_4byte_selector, get_abi_input_types

from tallystick.core.errors import RuleError
from tallystick.disputes.coordinators.ethereum.encoding import decode_move, encode_move, refusal, rules_to_abi
from tallystick.disputes.game.moves import Move, value_of
from tallystick.disputes.game.state import Rules
from tests.support.ethereum_node import LocalNode

HERE = Path(__file__).parent
NOBODY = "0x" + "00" * 20
STEPPED = event_signature_to_log_topic("Stepped(bool,bytes,bytes32)")
MOVED = event_signature_to_log_topic("Moved(uint64,address,uint64,uint64,bytes)")
MONEY_WEI = 10**26
NODE_OPTIONS = ("--disable-block-gas-limit", "--disable-code-size-limit", "--block-base-fee-per-gas", "0")
"""For batches of moves in one transaction, and a harness that is larger than a contract may be."""
NO_NUMBER = 2**53 - 1


@dataclass(frozen=True)
class Step:
    """A move at a time, and the claim and dispute that it is about, for the picture that is taken after it."""

    move: Move
    now: int
    claim: int = NO_NUMBER
    dispute: int = NO_NUMBER

    def to_abi(self) -> tuple[Any, ...]:
        """The step as the driver's tuple."""
        move = self.move
        nonce = bytes.fromhex(move.nonce) if move.kind == "draw" else bytes(32)
        return (move.actor, self.now, nonce, value_of(move), self.claim, self.dispute, encode_move(move))


@dataclass(frozen=True)
class Outcome:
    """What came of a step: the code of its refusal or the move in the log, and the digest of the picture after it."""

    code: str | None
    logged: Move | None
    state: bytes


class ContractSide:
    """A harness with these rules, and a driver that has all the money."""

    def __init__(self, node: LocalNode, rules: Rules) -> None:
        self._node = node
        self._sender = node.web3.eth.accounts[0]
        self.address = self._deployed("Harness", _typed("Harness", "constructor"), rules_to_abi(rules), NOBODY)
        self._driver = self._deployed("Driver", ())
        node.ask("anvil_setBalance", self._driver, hex(MONEY_WEI))

    def play(self, steps: Sequence[Step], parties: Sequence[str]) -> list[Outcome]:
        """What came of these steps, in order; all in one transaction."""
        receipt = self._sent(
            _call("Driver", "run", self.address, [each.to_abi() for each in steps], parties), self._driver
        )
        return _outcomes(receipt["logs"])

    def picture(self, claim: int, dispute: int, parties: Sequence[str]) -> bytes:
        """What the harness shows now."""
        data = _call("Harness", "touched", claim, dispute, parties)
        answer = self._node.ask("eth_call", {"to": self.address, "data": data, "gas": hex(2**40)}, "latest")
        return bytes(decode(["bytes"], bytes.fromhex(answer[2:]))[0])

    def _deployed(self, name: str, types: Sequence[str], *arguments: Any) -> str:
        receipt = self._sent("0x" + _artefact(name)["bytecode"] + encode(types, arguments).hex())
        return str(receipt["contractAddress"])

    def _sent(self, data: str, to: str | None = None) -> Any:
        fields = {"from": self._sender, "data": data, "gas": hex(2**40), "gasPrice": "0x0"}
        hash_ = self._node.ask("eth_sendTransaction", fields | ({"to": to} if to else {}))
        receipt = self._node.web3.eth.wait_for_transaction_receipt(hash_, poll_latency=0.005)
        assert receipt["status"] == 1, "the transaction of the test itself failed"
        return receipt


@cache
def _artefact(name: str) -> Any:
    return json.loads((HERE / f"{name}.json").read_bytes())


@cache
def _typed(contract: str, name: str) -> tuple[str, ...]:
    """The types of a function's arguments; a constructor has no name."""
    [entry] = [each for each in _artefact(contract)["abi"] if name in (each.get("name"), each["type"])]
    return tuple(get_abi_input_types(entry))


def _call(contract: str, name: str, *arguments: Any) -> str:
    types = _typed(contract, name)
    selector = function_signature_to_4byte_selector(f"{name}({','.join(types)})")
    return "0x" + (selector + encode(types, arguments)).hex()


def _outcomes(logs: Sequence[Any]) -> list[Outcome]:
    outcomes: list[Outcome] = []
    logged: Move | None = None
    for log in logs:
        if log["topics"][0] == MOVED:
            logged = _move_of(log)
        elif log["topics"][0] == STEPPED:
            is_done, reason, state = decode(["bool", "bytes", "bytes32"], bytes(log["data"]))
            outcomes.append(Outcome(None if is_done else _code(reason), logged, state))
            logged = None
    return outcomes


def _move_of(log: Any) -> Move:
    _, value, call = decode(["uint64", "uint64", "bytes"], bytes(log["data"]))
    return decode_move(call, "0x" + bytes(log["topics"][2])[12:].hex(), value)


def _code(reason: bytes) -> str:
    error = refusal(reason)
    return error.code if isinstance(error, RuleError) else f"no reason: {reason.hex()}"
