"""The JSON-RPC servers of a chain, any of which may be slow, broken or dishonest.

An answer is limited in bytes and time before it is read. A single server cannot make a party lose a move: every
operation asks each server, and signed transactions are sent to all of them.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar
from urllib.parse import urlsplit

import requests
from web3 import HTTPProvider

from tallystick.commitments.encoding import Json, parse
from tallystick.errors import MalformedError, UnavailableError, UsageError

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
        now, asked = time.monotonic(), self.servers if among is None else among
        return [each for each in asked if self._rests.get(each.name, (0, 0.0))[1] <= now] or asked

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
    found = document if isinstance(document, dict) else {}
    refused = found.get("error")
    if isinstance(refused, dict):
        raise _refusal(name, method, refused)
    if "result" not in found:
        raise UnavailableError(f"{name}: answers {method} with neither a result nor an error")
    return found["result"]


def _refusal(name: str, method: str, error: dict[str, Json]) -> RemoteError:
    code, message, data = error.get("code"), str(error.get("message"))[:200], error.get("data")
    message = "".join(letter for letter in message if letter.isprintable())
    sentence = f"{name}: refuses {method}: {message}"
    return RemoteError(sentence, code if isinstance(code, int) else 0, message, data if isinstance(data, str) else None)
