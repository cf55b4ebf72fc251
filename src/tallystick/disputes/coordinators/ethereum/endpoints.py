"""The JSON-RPC servers of a chain, any of which may be dishonest, and their answers as typed values."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, NewType, Protocol, TypeVar
from urllib.parse import urlsplit

import requests
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError
from web3 import HTTPProvider

from tallystick.core.canonical_json import Json, parse
from tallystick.core.documents import explain
from tallystick.core.errors import MalformedError, UnavailableError, UsageError

# The JSON-RPC servers of a chain, any of which may be slow, broken or dishonest.
#
# An answer is limited in bytes and time before it is read. A single server cannot make a party lose a move: every
# operation asks each server, and signed transactions are sent to all of them.

ANSWER_BYTES_MAX: Final = 16 << 20
BLOCK_BYTES: Final = 1 << 16
URLS_MAX: Final = 16
REST_MAX_S: Final = 60.0
T = TypeVar("T")


class RemoteError(UnavailableError):
    """A server's JSON-RPC error, or an answer that is too long; a smaller request may succeed."""

    def __init__(self, sentence: str, code: int, message: str, data: str | None) -> None:
        super().__init__(sentence)
        self.code, self.message, self.data = code, message, data


class Endpoint(Protocol):
    """One server."""

    @property
    def name(self) -> str:
        """Its name in messages: host and port, never the whole URL, which may hold a secret."""
        ...

    def ask(self, method: str, *parameters: Any) -> Any:
        """The result of one call; raises `RemoteError`, `UnavailableError`."""
        ...


class HttpEndpoint(HTTPProvider):
    """A server behind HTTP, with a timeout of `timeout_s` for each answer; it is asked twice if no answer comes."""

    def __init__(self, url: str, timeout_s: float = 10.0) -> None:
        super().__init__(url, exception_retry_configuration=None)
        self.url, self.timeout_s = url, timeout_s
        self.name = _name_of(url)
        self._session = requests.Session()

    def ask(self, method: str, *parameters: Any) -> Any:
        """The result of one call; raises `RemoteError`, `UnavailableError`."""
        question = self.encode_rpc_request(method, list(parameters))  # type: ignore[arg-type]  # a string type
        try:
            return _result(self.name, method, self._post(question))
        except RemoteError:
            raise
        except UnavailableError:
            return _result(self.name, method, self._post(question))

    def _post(self, question: bytes) -> bytes:
        ends_at = time.monotonic() + self.timeout_s
        try:
            with self._session.post(
                self.url, question, headers=self.get_request_headers(), timeout=self.timeout_s, stream=True
            ) as response:
                response.raise_for_status()
                return self._read(response, ends_at)
        except (requests.RequestException, OSError) as error:
            raise UnavailableError(f"{self.name}: {type(error).__name__}") from None

    def _read(self, response: requests.Response, ends_at: float) -> bytes:
        answer = bytearray()
        for block in response.iter_content(BLOCK_BYTES):
            answer += block
            if len(answer) > ANSWER_BYTES_MAX:
                raise RemoteError(f"{self.name}: an answer of more than {ANSWER_BYTES_MAX} bytes", 0, "", None)
            if time.monotonic() > ends_at:
                raise UnavailableError(f"{self.name}: no whole answer within {self.timeout_s:g} s")
        return bytes(answer)


@dataclass(frozen=True)
class RetryRules:
    """How many rounds over all servers are tried, and the seconds between them: doubled each time, up to a limit."""

    rounds: int = 4
    pause_s: float = 0.5
    pause_max_s: float = 8.0

    def pauses(self) -> Sequence[float]:
        """The seconds to wait before each round."""
        waits = [min(self.pause_s * 2.0**i, self.pause_max_s) for i in range(self.rounds - 1)]
        return (0.0, *waits)


class Endpoints:
    """All the servers of one chain that a party knows."""

    def __init__(
        self,
        servers: Sequence[Endpoint],
        patience: RetryRules = RetryRules(),
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if not 0 < len(servers) <= URLS_MAX:
            raise UsageError(f"between one and {URLS_MAX} RPC servers are needed, not {len(servers)}")
        self.servers, self.patience, self.sleep = tuple(servers), patience, sleep
        self._rests: dict[str, tuple[int, float]] = {}

    @property
    def urls(self) -> tuple[str, ...]:
        """The URLs of the servers behind HTTP, as they were given."""
        return tuple(server.url for server in self.servers if isinstance(server, HttpEndpoint))

    def each(
        self, operation: Callable[[Endpoint], T], among: Sequence[Endpoint] | None = None
    ) -> list[tuple[Endpoint, T]]:
        """The answers of all servers that answer, tried again until one does; raises `UnavailableError`."""
        return self.settled(lambda: self._each(operation, self.servers if among is None else among))

    def agreed(self, operation: Callable[[Endpoint], T]) -> T:
        """The answer that most servers give; in a tie, that of the server listed first."""
        answers = [answer for _, answer in self.each(operation)]
        return Counter(answers).most_common(1)[0][0]

    def settled(self, round_of_questions: Callable[[], T]) -> T:
        """The result of the first round without `UnavailableError`, with a pause before each new round."""
        failure: UnavailableError | None = None
        for pause in self.patience.pauses():
            if pause:
                self.sleep(pause)
            try:
                return round_of_questions()
            except UnavailableError as error:
                failure = error
        assert failure is not None  # there is at least one round
        raise failure

    def awake(self, among: Sequence[Endpoint] | None = None) -> Sequence[Endpoint]:
        """The servers that are not resting after a failure, or all if each is; so a silent server costs little time."""
        now, servers = time.monotonic(), self.servers if among is None else among
        return [server for server in servers if self._rests.get(server.name, (0, 0.0))[1] <= now] or servers

    def _each(self, operation: Callable[[Endpoint], T], among: Sequence[Endpoint]) -> list[tuple[Endpoint, T]]:
        answers, failures = [], []
        for server in self.awake(among):
            try:
                answers.append((server, operation(server)))
                self._rests.pop(server.name, None)
            except UnavailableError as error:
                failures.append(str(error))
                if not isinstance(error, RemoteError):
                    self._let_rest(server)
        if not answers:
            raise UnavailableError("; ".join(failures))
        return answers

    def _let_rest(self, server: Endpoint) -> None:
        """Leave a failed server out: twice as long after each failure in a row, at most `REST_MAX_S`."""
        failures = self._rests.get(server.name, (0, 0.0))[0] + 1
        self._rests[server.name] = (failures, time.monotonic() + min(0.5 * 2.0**failures, REST_MAX_S))


def _name_of(url: str) -> str:
    try:
        parts = urlsplit(url)
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        raise UsageError("the URL of the RPC server cannot be read") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError("the URL of an RPC server begins with http:// or https:// and a host")
    return f"{parts.hostname}{port}"


def _result(name: str, method: str, answer: bytes) -> Any:
    try:
        document = parse(answer, f"{name}: answer to {method}", bytes_max=ANSWER_BYTES_MAX)
    except MalformedError as error:
        raise UnavailableError(str(error)) from None
    fields = document if isinstance(document, dict) else {}
    refused = fields.get("error")
    if isinstance(refused, dict):
        raise _refusal(name, method, refused)
    if "result" not in fields:
        raise UnavailableError(f"{name}: answers {method} with neither a result nor an error")
    return fields["result"]


def _refusal(name: str, method: str, error: dict[str, Json]) -> RemoteError:
    code, message, data = error.get("code"), str(error.get("message"))[:200], error.get("data")
    message = "".join(letter for letter in message if letter.isprintable())
    sentence = f"{name}: refuses {method}: {message}"
    return RemoteError(sentence, code if isinstance(code, int) else 0, message, data if isinstance(data, str) else None)


# A server's answers about a chain as typed values; every JSON answer is checked here.

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
    head = _typed(_HEADER, server, "eth_getBlockByNumber", name, False)
    if isinstance(block, int) and head.number != block:
        raise UnavailableError(f"{server.name}: asked for block {block}, it gives block {head.number}")
    return head


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
