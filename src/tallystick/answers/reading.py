"""Reads a signed receipt, or a response that carries receipts, from parsed JSON."""

from __future__ import annotations

from collections.abc import Mapping

from tallystick.answers.response import Response
from tallystick.commitments.encoding import Json
from tallystick.errors import MalformedError
from tallystick.transcripts.receipt import SignedReceipt


def read_response(value: Json, what: str = "response") -> Response:
    """Read a signed receipt, or a response of one answer whose field `receipt` holds one; raises `MalformedError`."""
    found = read_responses(value, what)
    if len(found) > 1:
        raise MalformedError(f"{what}: receipts: {len(found)} answers, not one")
    return found[0]


def read_responses(value: Json, what: str = "response") -> tuple[Response, ...]:
    """Read a signed receipt, or a response with a receipt for each of its answers; raises `MalformedError`."""
    if not isinstance(value, Mapping):
        raise MalformedError(f"{what}: a signed receipt or a response is an object")
    if value.get("object") == "response":
        from tallystick.transcripts.responses_form import chat_answer

        value = chat_answer(value)
    if "receipts" in value:
        from tallystick.answers.several_choices import ChoicesResponse

        return ChoicesResponse.from_json(dict(value), what).each()
    if "receipt" not in value:
        raise MalformedError(f"{what}: receipt: the response carries none")
    if "signature" in value or "key" in value:
        return (Response(receipt=SignedReceipt.from_json(value, what)),)
    fields = {name: each for name, each in value.items() if name not in ("number", "answers")}
    return (Response.from_json(fields, what),)
