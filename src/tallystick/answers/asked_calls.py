"""One call of a wrapped client: what is asked, with a nonce and a seed, and which line of the program asks it."""

from __future__ import annotations

import inspect
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from tallystick.transcripts.completion_form import Form
from tallystick.transcripts.responses_reader import form_of_request

NONCE_BYTES: Final = 16
SEED_LIMIT: Final = 1 << 52
LIBRARIES: Final = ("openai", "tallystick")
"""A warning names the line of the program that calls these, and none of theirs."""


@dataclass(frozen=True)
class AskedCall:
    """The arguments of one call, and the line of the program that made it."""

    body: dict[str, Any]
    file: str
    line: int

    @property
    def nonce(self) -> str:
        """By which the request is known."""
        return str({**self.body, **(self.body.get("extra_body") or {})}["tally_nonce"])

    @property
    def form(self) -> Form:
        """The form of the answer that is asked for."""
        return form_of_request(self.body)

    @property
    def is_stream(self) -> bool:
        """Whether the answer comes in chunks."""
        return self.body.get("stream") is True

    def as_sent(self, body: dict[str, Any]) -> AskedCall:
        """The call with the body that was sent: arguments may be objects of the client's library."""
        return replace(self, body=body)

    @property
    def asked(self) -> dict[str, Any]:
        """The arguments that are JSON values; the client's marker for an omitted argument is none."""
        return {name: value for name, value in self.body.items() if _is_given(value)}


def asked_here(asked: Mapping[str, Any], has_seed: bool = True) -> AskedCall:
    """The call that the program makes with these arguments, now; `has_seed` as for `with_nonce`."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in LIBRARIES:
        frame = frame.f_back
    file, line = (frame.f_code.co_filename, frame.f_lineno) if frame else ("tallystick", 0)
    return AskedCall(with_nonce(asked, has_seed), file, line)


def with_nonce(asked: Mapping[str, Any], has_seed: bool = True) -> dict[str, Any]:
    """The arguments of a call with a fresh random nonce, and with a seed; in `extra_body`, where calls have none."""
    extra = dict(asked.get("extra_body") or {})
    extra.setdefault("tally_nonce", secrets.token_hex(NONCE_BYTES))
    body = {**asked, "extra_body": extra}
    if not isinstance(asked.get("seed"), int) and "seed" not in extra:
        (body if has_seed else extra)["seed"] = secrets.randbelow(SEED_LIMIT)
    return body


def _is_given(value: object) -> bool:
    """Whether an argument is a JSON value; the client's marker for an omitted argument is none."""
    return value is None or isinstance(value, str | int | float | list | tuple | Mapping)
