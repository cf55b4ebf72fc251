"""A connection to a service: requests with a token, and files in pieces. Nothing that comes back is trusted."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, Self
from urllib.parse import quote, unquote

from tallystick.documents.files import write_atomically
from tallystick.errors import ProofError, RuleError, TallyError, UnavailableError, UsageError
from tallystick.http.client import HttpAnswer, HttpClient, RequestLimits
from tallystick.http.problems import error_of
from tallystick.store.database.row_text import read_json

JSON_BYTES_MAX: Final = 64 << 20
PIECE: Final = 32 << 20
URL_SCHEMES: Final = ("http://", "https://")
_RUN: Final = re.compile(r"(https?://[^?#]+?)/runs/([^/?#]+)/?")
_TOKEN: Final = re.compile(r"[!-~]{1,512}")


@dataclass(frozen=True)
class RunAddress:
    """A run in a service: the URL of the service, and the name of the run."""

    service: str
    run: str


def run_address(url: str) -> RunAddress:
    """The run that `http://HOST/runs/NAME` names; raises `UsageError` for another URL."""
    found = _RUN.fullmatch(url)
    if found is None:
        raise UsageError(f"{url}: a run in a service is named http://HOST/runs/NAME")
    return RunAddress(found[1], unquote(found[2]))


class ServiceConnection:
    """A connection to the service at `url`; a context manager that closes it."""

    def __init__(self, url: str, token: str | None = None, effort: RequestLimits | None = None) -> None:
        if token is not None and _TOKEN.fullmatch(token) is None:
            raise UsageError("the token is not one line without blanks")
        self.url, self._http = url.rstrip("/"), HttpClient(url, effort)
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close it."""
        self._http.close()

    def get(self, path: str, bytes_max: int = JSON_BYTES_MAX, **headers: str) -> bytes:
        """The body of an answer; raises the error that a refusal stands for."""
        return self.ask("GET", path, bytes_max=bytes_max, headers=headers).body

    def get_json(self, path: str) -> Any:
        """The JSON values of an answer."""
        return read_json(self.get(path), f"{self.url}{path}")

    def post(self, path: str, body: bytes) -> bytes:
        """The answer to a JSON document."""
        headers = {"Content-Type": "application/json"}
        return self.ask("POST", path, body, headers=headers).body

    def ask(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        bytes_max: int = JSON_BYTES_MAX,
        headers: Mapping[str, str] | None = None,
    ) -> HttpAnswer:
        """The answer to a request; raises the error that a refusal stands for."""
        answer = self._http.ask(method, path, bytes_max, body, self._headers | dict(headers or {}))
        if answer.status >= 400:
            raise _refusal(answer, f"{self.url}{path}")
        if answer.status not in (200, 201, 204, 206):
            raise UnavailableError(f"{self.url}{path}: answered with status {answer.status}")
        return answer

    def download(self, path: str, target: Path, size: int, sha256: str | None = None) -> None:
        """Write a file of `size` bytes to `target`, in pieces; raises `ProofError` where it has another digest."""
        hashed = hashlib.sha256()

        def write(file: BinaryIO) -> None:
            for start in range(0, size, PIECE):
                end = min(start + PIECE, size)
                piece = self.get(path, end - start, Range=f"bytes={start}-{end - 1}")
                if len(piece) != end - start:
                    raise UnavailableError(f"{self.url}{path}: {len(piece)} bytes came of {end - start}")
                file.write(piece)
                hashed.update(piece)

        write_atomically(target, write, durable=False)
        if sha256 is not None and hashed.hexdigest() != sha256:
            raise ProofError(f"{self.url}{path}: came with another digest than the service stated")


def in_url(name: str) -> str:
    """A name as one part of a URL."""
    return quote(name, safe="")


def _refusal(answer: HttpAnswer, where: str) -> TallyError:
    if answer.status == 404:
        error = error_of(answer.status, answer.body, where)
        return UnavailableError(f"{where}: {error}")
    found = error_of(answer.status, answer.body, where)
    if isinstance(found, RuleError) and answer.status in (401, 403):
        return UnavailableError(f"{where}: {found}")
    return found
