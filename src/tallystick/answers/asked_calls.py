"""One call of a wrapped client: what is asked, with a nonce and a seed, and which line of the program asks it."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

NONCE_BYTES: Final = 16
SEED_LIMIT: Final = 1 << 52


@dataclass(frozen=True)
class AskedCall:
    """The arguments of one call, and the line of the program that made it."""

    body: dict[str, Any]
    file: str
    line: int

    @property
    def nonce(self) -> str:
        """By which the request is known."""
        return str(self.body["extra_body"]["tally_nonce"])

    @property
    def is_stream(self) -> bool:
        """Whether the answer comes in chunks."""
        return self.body.get("stream") is True

    @property
    def asked(self) -> dict[str, Any]:
        """The arguments that are JSON values; the client's marker for an omitted argument is none."""
        return {name: value for name, value in self.body.items() if _is_given(value)}


def with_nonce(asked: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call with a fresh random nonce, and with a seed."""
    extra = dict(asked.get("extra_body") or {})
    extra.setdefault("tally_nonce", secrets.token_hex(NONCE_BYTES))
    body = {**asked, "extra_body": extra}
    if not isinstance(asked.get("seed"), int) and "seed" not in extra:
        body["seed"] = secrets.randbelow(SEED_LIMIT)
    return body


def _is_given(value: object) -> bool:
    """Whether an argument is a JSON value; the client's marker for an omitted argument is none."""
    return value is None or isinstance(value, str | int | float | list | tuple | Mapping)
