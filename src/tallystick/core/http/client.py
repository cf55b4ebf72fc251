"""An HTTP client: each request has a time limit whatever the server does, and is retried with the same bytes."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import httpx

from tallystick.core.errors import UnavailableError, UsageError

RETRIED: Final = frozenset({408, 429, 500, 502, 503, 504})
FIRST_ATTEMPTS: Final = 2
SLOWEST: Final = 8
"""How many times slower than `bytes_per_second` an answer may come, as long as all of it comes in time."""


@dataclass(frozen=True)
class RequestLimits:
    """Limits of one request: seconds, plus time for the body at `bytes_per_second`; attempts, and the first pause.

    Of an answer, an eighth of that rate has to come at any time, so that a large limit of bytes is no long wait.
    """

    seconds: float = 20.0
    attempts: int = 4
    pause: float = 0.2
    bytes_per_second: int = 1 << 17


@dataclass(frozen=True)
class HttpAnswer:
    """Status and body of a response; `length` is its Content-Length header, which a response to HEAD has too."""

    status: int
    body: bytes
    length: str = ""


class HttpClient:
    """An HTTP client for one base URL. Any number of threads may use it; requests run one at a time."""

    def __init__(self, url: str, effort: RequestLimits | None = None) -> None:
        if not url.startswith(("http://", "https://")):
            raise UsageError(f"{url}: no URL of an HTTP server")
        self.url, self._effort = url.rstrip("/"), effort or RequestLimits()
        self._lock, self._runner = threading.Lock(), asyncio.Runner()
        self._client: httpx.AsyncClient | None = None
        self._has_answered = False

    def close(self) -> None:
        """Close all connections."""
        with self._lock:
            if self._client is not None:
                self._runner.run(self._client.aclose())
                self._client = None
            self._runner.close()

    def ask(
        self,
        method: str,
        path: str,
        bytes_max: int,
        content: bytes = b"",
        headers: Mapping[str, str] | None = None,
    ) -> HttpAnswer:
        """The first response whose status is not in `RETRIED`; raises `UnavailableError` after the last attempt.

        Until the server has answered once, it is tried `FIRST_ATTEMPTS` times only: an address where nothing listens or
        answers is reported soon, and a server that starts again is waited for.
        """
        reason = ""
        for attempt in range(self._effort.attempts):
            if attempt:
                time.sleep(self._effort.pause * 2**attempt * random.uniform(0.5, 1))
            try:
                with self._lock:
                    answer = self._runner.run(self._respond(method, path, bytes_max, content, headers or {}))
            except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, TimeoutError, OSError) as error:
                is_slow = isinstance(error, httpx.TimeoutException | TimeoutError)
                late = f"not in {self._effort.seconds:g} seconds, or too slowly"
                reason = late if is_slow else str(error) or type(error).__name__
                if not self._has_answered and attempt + 1 >= FIRST_ATTEMPTS:
                    raise UnavailableError(f"{self.url}: nothing answers there: {reason}") from None
                continue
            self._has_answered = True
            if answer.status not in RETRIED:
                return answer
            reason = f"status {answer.status}"
        raise UnavailableError(f"{self.url}{path}: no answer after {self._effort.attempts} attempts: {reason}")

    def _seconds(self, size: int, slower: int = 1) -> float:
        return self._effort.seconds + size * slower / self._effort.bytes_per_second

    async def _respond(
        self, method: str, path: str, bytes_max: int, content: bytes, headers: Mapping[str, str]
    ) -> HttpAnswer:
        """The answer: its head in the time of a request, and its body in time for its size."""
        if self._client is None:
            is_safe = self.url.startswith("https://")  # loading the system's certificates is slow; plain HTTP skips it
            self._client = httpx.AsyncClient(
                timeout=self._effort.seconds, headers={"Accept-Encoding": "identity"}, verify=is_safe, trust_env=True
            )
        body = bytearray()
        async with (
            asyncio.timeout(self._seconds(len(content))) as limit,
            self._client.stream(method, self.url + path, content=content, headers=dict(headers)) as response,
        ):
            begun = asyncio.get_running_loop().time()
            limit.reschedule(begun + self._effort.seconds)
            async for part in response.aiter_raw():
                body += part
                if len(body) > bytes_max:
                    raise httpx.StreamError(f"the answer is larger than {bytes_max} bytes")
                limit.reschedule(begun + min(self._seconds(len(body), SLOWEST), self._seconds(bytes_max)))
        return HttpAnswer(response.status_code, bytes(body), response.headers.get("content-length", ""))
