"""Converts responses, policies, requests and models from the forms that callers may pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from tallystick.answers.policy import ReceiptPolicy, read_receipt_policy
from tallystick.answers.reading import read_response
from tallystick.answers.request import ExpectedRequest, read_request
from tallystick.answers.response import Response
from tallystick.answers.trusted_keys import trusting
from tallystick.commitments.encoding import Json, parse
from tallystick.errors import MalformedError
from tallystick.transcripts.receipt import SignedReceipt
from tallystick.workloads.language_model import LanguageModel

MODELS_HELD: Final = 2
ModelSource = LanguageModel | Path | str
PolicySource = ReceiptPolicy | Path | str | None
RequestSource = ExpectedRequest | Mapping[str, Any] | Path | str | None


def response_of(response: object) -> Response:
    """A response from a `Response`, receipt, JSON text, mapping or client's object; raises `MalformedError`."""
    if isinstance(response, Response):
        return response
    if isinstance(response, SignedReceipt):
        return Response(receipt=response)
    if isinstance(response, str | bytes):
        return read_response(parse(response.encode() if isinstance(response, str) else response, "response"))
    return read_response(json_of(response))


def json_of(response: object) -> Json:
    """The JSON values of a mapping or of an object of the `openai` client; raises `MalformedError` for others."""
    if isinstance(response, Mapping):
        return dict(response)
    dump = getattr(response, "model_dump", None)
    if dump is None:
        raise MalformedError(f"response: a {type(response).__name__} is no response")
    value: Json = dump(mode="json", exclude_unset=True, warnings=False)
    return value


def policy_of(policy: PolicySource, trusted_keys: Sequence[str | Path] = ()) -> ReceiptPolicy:
    """A policy, given as it is or as its file, with more trusted keys; without one, the default policy."""
    held = ReceiptPolicy() if policy is None else policy
    return trusting(held if isinstance(held, ReceiptPolicy) else read_receipt_policy(Path(held)), trusted_keys)


def request_of(request: RequestSource) -> ExpectedRequest | None:
    """A request, given as it is, as the arguments of a call, or as its file."""
    if request is None or isinstance(request, ExpectedRequest):
        return request
    return ExpectedRequest.from_body(dict(request)) if isinstance(request, Mapping) else read_request(Path(request))


def model_of(model: ModelSource) -> LanguageModel:
    """A model, or the one in a directory; the last `MODELS_HELD` directories stay loaded."""
    return _loaded(Path(model).resolve()) if isinstance(model, str | Path) else model


@lru_cache(maxsize=MODELS_HELD)
def _loaded(path: Path) -> LanguageModel:
    from tallystick.frameworks.torch.generation.language_models import load_language_model  # PyTorch takes seconds

    return load_language_model(path)
