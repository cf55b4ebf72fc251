"""API keys: the bearer tokens by which clients are admitted."""

from __future__ import annotations

import hmac
from collections.abc import Collection

from fastapi import Request

from tallystick.http.problems import Problem


def check_key(request: Request, keys: Collection[str]) -> None:
    """Raise `Problem` with status 401 unless the request carries one of `keys` as its bearer token."""
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    token = given.encode("latin-1")  # the bytes on the wire: headers are read as Latin-1
    if scheme.lower() != "bearer" or not any(hmac.compare_digest(token, key.encode()) for key in keys):
        message = "a valid key is needed: Authorization: Bearer KEY"
        raise Problem(401, "invalid_api_key", message, headers={"WWW-Authenticate": "Bearer"})
