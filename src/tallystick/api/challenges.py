"""A provider's answer to a challenge of committed states, in whatever form it is held."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from tallystick.answers.states import StatesChallenge
from tallystick.answers.verify import ReceiptContext
from tallystick.commitments.encoding import Json, parse
from tallystick.documents.files import read_document
from tallystick.errors import UsageError
from tallystick.transcripts.states_opening import StatesOpening

OPENING_BYTES_MAX: Final = 1 << 30
REFUSAL_MAX: Final = 300
OpeningSource = StatesOpening | Mapping[str, Any] | Path | str


def challenged(
    subject: ReceiptContext, opening: OpeningSource, nonce: bytes | str | None, count: int
) -> ReceiptContext:
    """The receipt with what the provider opened, or with the words in which it refused; raises `UsageError`."""
    drawn = read_nonce(nonce)
    if drawn is None:
        raise UsageError("--opening: give the nonce that you challenged with as --nonce, and the --count of parts")
    if isinstance(opening, StatesOpening):
        return replace(subject, challenge=StatesChallenge(drawn, count, opening))
    told, name = _document(opening)
    if (refusal := _refusal(told)) is not None:
        return replace(subject, refusal=refusal)
    return replace(subject, challenge=StatesChallenge(drawn, count, StatesOpening.from_json(told, name)))


def read_nonce(nonce: bytes | str | None) -> bytes | None:
    """The nonce of a challenge or of a sample, 1 to 64 bytes; raises `UsageError`."""
    if nonce is None:
        return None
    try:
        found = nonce if isinstance(nonce, bytes) else bytes.fromhex(nonce)
    except ValueError:
        raise UsageError("--nonce: not hexadecimal") from None
    if not 1 <= len(found) <= 64:
        raise UsageError(f"--nonce: {len(found)} bytes are not from 1 to 64")
    return found


def _document(opening: Mapping[str, Any] | Path | str) -> tuple[Json, str]:
    if isinstance(opening, Mapping):
        return dict(opening), "opening"
    path = Path(opening)
    return parse(read_document(path, OPENING_BYTES_MAX), path.name, bytes_max=OPENING_BYTES_MAX), path.name


def _refusal(told: Json) -> str | None:
    """The message of an error of the API: what a server answers that holds the states no longer."""
    error = told.get("error") if isinstance(told, dict) else None
    message = error.get("message") if isinstance(error, dict) else None
    return message[:REFUSAL_MAX] if isinstance(message, str) else None
