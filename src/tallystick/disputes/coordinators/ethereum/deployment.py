"""The deployment of a contract: its code and its rules, read from the transaction that made it.

A contract's statements about itself prove nothing. But its address is the hash of its creator and of that account's
nonce, `keccak256(rlp([sender, nonce]))` (Ethereum yellow paper, §7). The data of that transaction has to be the code of
this version, followed by the rules.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from eth_utils.crypto import keccak
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from rlp import encode as rlp_encode  # type: ignore[import-untyped]

from tallystick.disputes.coordinators.ethereum import chain
from tallystick.disputes.coordinators.ethereum.chain import AddressHex, DataHex, HashHex, Quantity
from tallystick.disputes.coordinators.ethereum.encoding import artefact, decode_deployment
from tallystick.disputes.coordinators.ethereum.endpoints import Endpoint
from tallystick.disputes.game.rules import Rules
from tallystick.documents.explained import explain
from tallystick.errors import MalformedError, UnavailableError


@dataclass(frozen=True)
class Deployment:
    """A contract's rules, its board if it has one, and the block from which its log begins."""

    rules: Rules
    board: str | None
    block: int


class _Making(BaseModel):
    """The transaction that made a contract."""

    model_config = ConfigDict(frozen=True, extra="ignore")
    hash: HashHex
    sender: Annotated[AddressHex, Field(alias="from")]
    to: None
    nonce: Quantity
    input: DataHex
    block: Annotated[Quantity, Field(alias="blockNumber")]


def read_deployment(server: Endpoint, address: str, first_block: int = 0) -> Deployment:
    """The deployment of the contract at `address`, searched for from `first_block` on.

    Raises:
        UnavailableError: There is no such contract on this chain, it was made from other code or with invalid rules,
            or the server contradicts itself.
    """
    if not chain.code(server, address):
        raise UnavailableError(f"{server.name}: there is no contract at {address}")
    latest = chain.header(server, "latest").number
    found = chain.logs(server, address, artefact().topic("Founded"), min(first_block, latest), latest)
    if not found:
        raise UnavailableError(f"{server.name}: {address} is no coordinator, or was made before block {first_block}")
    making = _making(server, found[0].transaction)
    if contract_address(making.sender, making.nonce) != address or making.block != found[0].block:
        raise UnavailableError(f"{server.name}: {address} was not made by the transaction that is said to have made it")
    try:
        rules, board = decode_deployment(bytes.fromhex(making.input[2:]))
    except MalformedError as error:
        raise UnavailableError(f"{server.name}: {address}: {error}") from None
    return Deployment(rules, board, making.block)


def contract_address(sender: str, nonce: int) -> str:
    """The address of a contract that an account makes with its transaction number `nonce`."""
    return "0x" + keccak(rlp_encode([bytes.fromhex(sender[2:]), nonce]))[12:].hex()


def _making(server: Endpoint, transaction: str) -> _Making:
    answer: Any = server.ask("eth_getTransactionByHash", transaction)
    try:
        return _Making.model_validate(answer)
    except ValidationError as error:
        if isinstance(answer, dict) and answer.get("to"):
            raise UnavailableError(f"{server.name}: the contract was made by another contract") from None
        raise UnavailableError(f"{server.name}: bad transaction {transaction}: {explain(error)}") from None
