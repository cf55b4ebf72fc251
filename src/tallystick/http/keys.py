"""API keys: the bearer tokens by which clients are admitted, and the files that hold them."""

from __future__ import annotations

import hmac
from collections.abc import Collection
from pathlib import Path
from typing import Final

from fastapi import Request

from tallystick.errors import MalformedError, UsageError
from tallystick.http.problems import Problem

KEYS_MAX: Final = 10_000


def check_key(request: Request, keys: Collection[str]) -> None:
    """Raise `Problem` with status 401 unless the request carries one of `keys` as its bearer token."""
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    token = given.encode("latin-1")  # the bytes on the wire: headers are read as Latin-1
    if scheme.lower() != "bearer" or not any(hmac.compare_digest(token, key.encode()) for key in keys):
        message = "a valid key is needed: Authorization: Bearer KEY"
        raise Problem(401, "invalid_api_key", message, headers={"WWW-Authenticate": "Bearer"})


def read_keys(path: Path) -> frozenset[str]:
    """The lines of a file; raises `UsageError` if there are none, too many, or blanks in one."""
    try:
        lines = [line.strip() for line in path.read_text("utf-8").splitlines() if line.strip()]
    except UnicodeDecodeError as error:
        raise MalformedError(f"{path}: byte {error.start} is not UTF-8") from None
    if not lines or len(lines) > KEYS_MAX or any(len(line.split()) > 1 for line in lines):
        raise UsageError(f"{path}: not 1 to {KEYS_MAX} keys, one a line, without blanks")
    return frozenset(lines)
