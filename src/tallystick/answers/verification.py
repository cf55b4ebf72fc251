"""`tallystick.verify`: one response, in whatever form it is held, against the promised model."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from tallystick.answers.limits import context_length_of
from tallystick.answers.policy import ReceiptPolicy, read_receipt_policy
from tallystick.answers.reading import read_response
from tallystick.answers.report import ReceiptReport
from tallystick.answers.request import ExpectedRequest, read_request
from tallystick.answers.response import Response
from tallystick.answers.verify import verify_receipt
from tallystick.commitments.encoding import Json, parse
from tallystick.errors import MalformedError
from tallystick.transcripts.receipt import SignedReceipt
from tallystick.workloads.language_model import LanguageModel

MODELS_HELD: Final = 2
ModelSource = LanguageModel | Path | str
PolicySource = ReceiptPolicy | Path | str | None
RequestSource = ExpectedRequest | Mapping[str, Any] | Path | str | None


def verify(
    response: object,
    *,
    model: ModelSource,
    policy: PolicySource = None,
    request: RequestSource = None,
) -> ReceiptReport:
    """Judge one response by its receipt, with one pass of the promised model.

    Args:
        response: a signed receipt, or a response that carries one: as JSON text, as parsed JSON, or as an object of the
            `openai` client.
        model: the promised model, or its directory.
        policy: what the verifier asks, or its file.
        request: what was asked: the arguments of the call, or a file of its JSON.

    Raises:
        MalformedError: something is not what it should be; the line names the field.
        UnavailableError: the model is not there, or verifying takes more than the policy spends.
        UsageError: the model has no chat template for the request.
    """
    read = response_of(response)
    promised = model_of(model)
    return verify_receipt(
        read.receipt,
        promised,
        policy_of(policy),
        request_of(request),
        response=read,
        context_length=context_length_of(promised),
    )


def response_of(response: object) -> Response:
    """A response in any of the forms in which it may be held; raises `MalformedError`."""
    if isinstance(response, Response):
        return response
    if isinstance(response, SignedReceipt):
        return Response(receipt=response)
    if isinstance(response, str | bytes):
        return read_response(parse(response.encode() if isinstance(response, str) else response, "response"))
    return read_response(json_of(response))


def json_of(response: object) -> Json:
    """A response as JSON values: a mapping, or an object of the `openai` client; raises `MalformedError`."""
    if isinstance(response, Mapping):
        return dict(response)
    dump = getattr(response, "model_dump", None)
    if dump is None:
        raise MalformedError(f"response: a {type(response).__name__} is no response")
    value: Json = dump(mode="json", exclude_unset=True, warnings=False)
    return value


def policy_of(policy: PolicySource) -> ReceiptPolicy:
    """A policy, one from its file, or the one that asks least."""
    if policy is None:
        return ReceiptPolicy()
    return policy if isinstance(policy, ReceiptPolicy) else read_receipt_policy(Path(policy))


def request_of(request: RequestSource) -> ExpectedRequest | None:
    """What was asked, from the arguments of a call or from a file."""
    if request is None or isinstance(request, ExpectedRequest):
        return request
    return ExpectedRequest.from_body(dict(request)) if isinstance(request, Mapping) else read_request(Path(request))


def model_of(model: ModelSource) -> LanguageModel:
    """A model, or the one in a directory, loaded once and held for the next response."""
    return _loaded(Path(model).resolve()) if isinstance(model, str | Path) else model


@lru_cache(maxsize=MODELS_HELD)
def _loaded(path: Path) -> LanguageModel:
    from tallystick.frameworks.torch.generation.language_models import load_language_model  # PyTorch takes seconds

    return load_language_model(path)
