"""A challenge of committed states: asked of a provider over HTTP, or its answer in whatever form it is held."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from tallystick.answers.states import StatesChallenge
from tallystick.answers.verify import ReceiptContext
from tallystick.commitments.encoding import Json, parse
from tallystick.documents.files import read_document
from tallystick.errors import MalformedError, UnavailableError, UsageError
from tallystick.transcripts.states_opening import StatesOpening
from tallystick.workloads.hidden_states import drawn_layer, judged_layers

OPENING_BYTES_MAX: Final = 1 << 30
REFUSAL_MAX: Final = 300
NONCE_BYTES: Final = 16
SECONDS: Final = 120.0
API_KEY: Final = "OPENAI_API_KEY"
"""The environment variable with the customer's key, where the provider asks for one."""
OpeningSource = StatesOpening | Mapping[str, Any] | Path | str


def challenged(
    subject: ReceiptContext, opening: OpeningSource, nonce: bytes | str | None, count: int, layer: int | None = None
) -> ReceiptContext:
    """The receipt with what the provider opened, or with the words in which it refused; raises `UsageError`.

    An opening of one layer answers a challenge of `layer`, by default of the one that the nonce draws.
    """
    drawn = read_nonce(nonce)
    if drawn is None:
        raise UsageError("--opening: give the nonce that you challenged with as --nonce, and the --count of parts")
    if not isinstance(opening, StatesOpening):
        told, name = _document(opening)
        if (refusal := _refusal(told)) is not None:
            return replace(subject, refusal=refusal)
        opening = StatesOpening.from_json(told, name)
    asked = None if opening.layer is None else _asked_layer(subject, drawn, layer)
    return replace(subject, challenge=StatesChallenge(drawn, count, opening, asked))


def challenge_provider(
    subject: ReceiptContext,
    url: str,
    nonce: bytes | str | None = None,
    count: int | None = None,
    layer: int | None = None,
) -> tuple[ReceiptContext, bytes]:
    """Ask a provider to open committed states: the receipt with its opening or its refusal, and what it answered.

    Without a `count` of parts the states around one layer are asked for: `layer`, or the one that the nonce draws.
    Without a nonce a new one is drawn. A customer's key is taken from the environment variable `OPENAI_API_KEY`.
    Raises `UsageError` for an address that is none.
    """
    from tallystick.http.client import HttpClient, RequestLimits

    client = HttpClient(url, RequestLimits(SECONDS))
    drawn = read_nonce(nonce) or secrets.token_bytes(NONCE_BYTES)
    chosen = _asked_layer(subject, drawn, layer) if count is None else None
    if subject.receipt.states is None or (count is None and chosen is None):
        return replace(subject, refusal="the receipt commits to none from which a layer can be judged"), b""
    body = {"nonce": drawn.hex()} | ({"layer": chosen} if count is None else {"count": count})
    key = os.environ.get(API_KEY)
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    path = f"/receipts/{subject.receipt.request.id}/challenge"
    try:
        answer = client.ask("POST", path, OPENING_BYTES_MAX, json.dumps(body).encode(), headers).body
        told = parse(answer, "opening", bytes_max=OPENING_BYTES_MAX)
        if not isinstance(told, dict):
            raise MalformedError("opening: no object")
        opened = challenged(subject, told, drawn, count or 1, chosen)
    except (UnavailableError, MalformedError) as error:
        return replace(subject, refusal=str(error)[:REFUSAL_MAX]), b""
    finally:
        client.close()
    return (opened if opened.challenge is None else _as_asked(opened, chosen)), answer


def _as_asked(subject: ReceiptContext, layer: int | None) -> ReceiptContext:
    """The challenge as it was put, whatever the opening says that it answers."""
    assert subject.challenge is not None
    return replace(subject, challenge=replace(subject.challenge, layer=layer))


def _asked_layer(subject: ReceiptContext, nonce: bytes, layer: int | None) -> int | None:
    states = subject.receipt.states
    return drawn_layer(nonce, states, judged_layers(states)) if layer is None and states is not None else layer


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
