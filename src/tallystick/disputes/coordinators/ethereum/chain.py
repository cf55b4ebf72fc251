"""A server's answers about a chain as typed values; every JSON answer is checked here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Final, NewType, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError

from tallystick.disputes.coordinators.ethereum.endpoints import Endpoint, RemoteError
from tallystick.documents.explained import explain
from tallystick.errors import UnavailableError

Address = NewType("Address", str)
"""0x and 40 lower-case hexadecimal digits."""

LOGS_MAX: Final = 100_000
CODE_REVERTED: Final = 3
"""The JSON-RPC error code of an execution that was reverted, as go-ethereum and anvil give it."""


def _quantity(value: object) -> object:
    if not isinstance(value, str) or not value.startswith("0x") or not 2 < len(value) <= 66:
        raise ValueError("no quantity of the form 0x…")
    return int(value, 16)


def _lowered(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


Quantity = Annotated[int, BeforeValidator(_quantity)]
HashHex = Annotated[str, BeforeValidator(_lowered), Field(pattern=r"^0x[0-9a-f]{64}$")]
AddressHex = Annotated[str, BeforeValidator(_lowered), Field(pattern=r"^0x[0-9a-f]{40}$")]
DataHex = Annotated[str, BeforeValidator(_lowered), Field(pattern=r"^0x([0-9a-f]{2})*$")]
A = TypeVar("A")


class _Answer(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True)


class Header(_Answer):
    """The header of a block; `timestamp` in seconds, `base_fee` in wei."""

    number: Quantity
    hash: HashHex
    timestamp: Quantity
    base_fee: Quantity = Field(alias="baseFeePerGas")


class EventLog(_Answer):
    """One event of a contract, and the block that contains it."""

    address: AddressHex
    topics: Annotated[tuple[HashHex, ...], Field(max_length=4)]
    data: DataHex
    block: Quantity = Field(alias="blockNumber")
    block_hash: HashHex = Field(alias="blockHash")
    index: Quantity = Field(alias="logIndex")
    transaction: HashHex = Field(alias="transactionHash")


class TransactionReceipt(_Answer):
    """The receipt of a transaction in a block; `status` is 0 if it failed."""

    hash: HashHex = Field(alias="transactionHash")
    status: Quantity
    block: Quantity = Field(alias="blockNumber")
    block_hash: HashHex = Field(alias="blockHash")
    gas_used: Quantity = Field(alias="gasUsed")
    contract: AddressHex | None = Field(None, alias="contractAddress")


@dataclass(frozen=True)
class Reverted:
    """A contract refused a call; `data` holds the reason in ABI encoding."""

    data: bytes


_HEADER: TypeAdapter[Header] = TypeAdapter(Header)
_RECEIPT: TypeAdapter[TransactionReceipt] = TypeAdapter(TransactionReceipt)
_LOGS: TypeAdapter[tuple[EventLog, ...]] = TypeAdapter(Annotated[tuple[EventLog, ...], Field(max_length=LOGS_MAX)])
_QUANTITY: TypeAdapter[int] = TypeAdapter(Quantity)
_DATA: TypeAdapter[str] = TypeAdapter(DataHex)


def header(server: Endpoint, block: int | str) -> Header:
    """A block's header by number or tag ("latest", "finalized"); raises `UnavailableError` if there is none."""
    name = hex(block) if isinstance(block, int) else block
    found = _typed(_HEADER, server, "eth_getBlockByNumber", name, False)
    if isinstance(block, int) and found.number != block:
        raise UnavailableError(f"{server.name}: asked for block {block}, it gives block {found.number}")
    return found


def final_header(server: Endpoint, depth: int | None) -> Header:
    """The last block that cannot be undone: the chain's own `finalized` block, or `depth` blocks below the latest."""
    if depth is None:
        return header(server, "finalized")
    latest = header(server, "latest")
    return latest if not depth else header(server, max(0, latest.number - depth))


def logs(server: Endpoint, contract: str, topic: str, first: int, last: int) -> tuple[EventLog, ...]:
    """The contract's events of one kind in blocks [first, last], in order; halves a span that the server refuses."""
    question = {"address": contract, "topics": [topic], "fromBlock": hex(first), "toBlock": hex(last)}
    try:
        return _typed(_LOGS, server, "eth_getLogs", question)
    except RemoteError:
        if first >= last:
            raise
        middle = (first + last) // 2
        return logs(server, contract, topic, first, middle) + logs(server, contract, topic, middle + 1, last)


def receipt(server: Endpoint, transaction: str) -> TransactionReceipt | None:
    """The receipt of a transaction; `None` while no block contains it."""
    answer = server.ask("eth_getTransactionReceipt", transaction)
    return None if answer is None else _read(_RECEIPT, server, "eth_getTransactionReceipt", answer)


def call(server: Endpoint, fields: dict[str, Any], block: int | str = "latest") -> bytes | Reverted:
    """The result of a call at a block, without a transaction."""
    name = hex(block) if isinstance(block, int) else block
    try:
        return bytes.fromhex(_typed(_DATA, server, "eth_call", fields, name)[2:])
    except RemoteError as error:
        return _reverted(error)


def estimate(server: Endpoint, fields: dict[str, Any]) -> int | Reverted:
    """The gas that a transaction would use on the latest block."""
    try:
        return quantity(server, "eth_estimateGas", fields, "latest")
    except RemoteError as error:
        return _reverted(error)


def nonce(server: Endpoint, address: str, block: int | str = "latest") -> int:
    """The number of an account's transactions in the blocks up to this one."""
    return quantity(server, "eth_getTransactionCount", address, hex(block) if isinstance(block, int) else block)


def code(server: Endpoint, address: str) -> bytes:
    """The code of a contract; empty if there is none at this address."""
    return bytes.fromhex(_typed(_DATA, server, "eth_getCode", address, "latest")[2:])


def quantity(server: Endpoint, method: str, *parameters: Any) -> int:
    """The result of a call that gives one number."""
    return _typed(_QUANTITY, server, method, *parameters)


def _reverted(error: RemoteError) -> Reverted:
    """The refusal of a contract in a server's error; an error of the server itself is raised again."""
    data = error.data or ""
    is_of_contract = error.code == CODE_REVERTED or "revert" in error.message.lower()
    if not is_of_contract:
        raise error
    try:
        return Reverted(bytes.fromhex(data.removeprefix("0x")))
    except ValueError:
        return Reverted(b"")


def _typed(adapter: TypeAdapter[A], server: Endpoint, method: str, *parameters: Any) -> A:
    return _read(adapter, server, method, server.ask(method, *parameters))


def _read(adapter: TypeAdapter[A], server: Endpoint, method: str, answer: object) -> A:
    try:
        return adapter.validate_python(answer)
    except ValidationError as error:
        raise UnavailableError(f"{server.name}: answers {method} with a bad {explain(error)}") from None
