"""Converts what callers pass to typed forms, and judges the answers to one request."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

from tallystick.audits.answers.policy import ReceiptPolicy, read_receipt_policy, trusting
from tallystick.audits.answers.reading import UnreadReport, delivered, judge_unread, read_responses
from tallystick.audits.answers.report import ReceiptReport
from tallystick.audits.answers.request import ExpectedRequest, read_request
from tallystick.audits.answers.response import Response
from tallystick.audits.answers.stream import Judge, StreamReport, verify_stream
from tallystick.audits.answers.subject import ReceiptContext, Verification
from tallystick.audits.answers.verify import begin_verification, check_statements, two_rungs
from tallystick.core.canonical_json import Json, parse
from tallystick.core.errors import MalformedError
from tallystick.engines.model_cards import card_of, stated_dtype
from tallystick.formats.claims import Dtype
from tallystick.formats.completions import CompletionReader
from tallystick.formats.receipt import SignedReceipt
from tallystick.verdicts.language_model import LanguageModel

if TYPE_CHECKING:
    from tallystick.engines.torch.generation.language_models import TorchLanguageModel


# Converts responses, policies, requests and models from the forms that callers may pass.

MODELS_HELD: Final = 2
LOADING: Final = Lock()
ModelSource = LanguageModel | Path | str
PolicySource = ReceiptPolicy | Path | str | None
RequestSource = ExpectedRequest | Mapping[str, Any] | Path | str | None


def responses_of(response: object) -> tuple[Response, ...] | UnreadReport:
    """The answers in a `Response`, receipt, JSON text, mapping or client's object, each with its receipt.

    A signed receipt that has not the form of one gets its verdict here. Raises `MalformedError` for what is no receipt.
    """
    if isinstance(response, Response):
        return (response,)
    if isinstance(response, SignedReceipt):
        return (Response(receipt=response),)
    text = response.encode() if isinstance(response, str) else response
    if isinstance(response, CompletionReader):
        body: Json = response.fields
    else:
        body = parse(text, "response") if isinstance(text, bytes) else json_of(response)
    try:
        return delivered(response) if isinstance(response, CompletionReader) else read_responses(body)
    except MalformedError:
        unread = judge_unread("response", body)
        if unread is None:
            raise
        return unread


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
    given = ReceiptPolicy() if policy is None else policy
    return trusting(given if isinstance(given, ReceiptPolicy) else read_receipt_policy(Path(given)), trusted_keys)


def request_of(request: RequestSource) -> ExpectedRequest | None:
    """A request, given as it is, as the arguments of a call, or as its file."""
    if request is None or isinstance(request, ExpectedRequest):
        return request
    return ExpectedRequest.from_body(dict(request)) if isinstance(request, Mapping) else read_request(Path(request))


def model_for(model: ModelSource, root: str, policy: ReceiptPolicy) -> LanguageModel:
    """A model, or the one in a directory, in the precision in which it has the root of a receipt.

    Only the policy's `dtypes` come into question; if it names a root, that one is meant. Where none of them has the
    root, the model has the precision that the directory states. The last `MODELS_HELD` models stay loaded.
    """
    if not isinstance(model, str | Path):
        return model
    path = Path(model).resolve()
    own = stated_dtype(path)
    dtypes = sorted(policy.dtypes, key=lambda each: each != own) or [own]
    meant = policy.model or root
    chosen = next((dtype for dtype in dtypes if _root_in(path, dtype) == meant), dtypes[0])
    return _loaded(path, chosen)


def precision_taken(source: ModelSource, model: LanguageModel, policy: ReceiptPolicy) -> tuple[str, ...]:
    """A line for the report where the precision is the receipt's choice: the policy accepts it, and others too."""
    if not isinstance(source, str | Path) or policy.model is not None or len(policy.dtypes) == 1:
        return ()
    own, dtype = stated_dtype(Path(source)), model.card.dtype
    line = f"whether {dtype} is the promised precision: the directory states {own}, and the policy's `dtypes` list both"
    return () if dtype == own else (line,)


@lru_cache(maxsize=MODELS_HELD * 3)
def _root_in(path: Path, dtype: Dtype) -> str:
    """The model root of a directory in some precision; the model that is loaded says itself what it is."""
    return card_of(path, dtype).identity


def _loaded(path: Path, dtype: Dtype) -> TorchLanguageModel:
    with LOADING:  # the first of several threads loads it for all
        return _load(path, dtype)


@lru_cache(maxsize=MODELS_HELD)
def _load(path: Path, dtype: Dtype) -> TorchLanguageModel:
    from tallystick.engines.torch.generation.kept_pass import load_promised  # PyTorch takes seconds

    return load_promised(path, dtype)


# Judges the answer to one request, or its several answers, in the same way for `tallystick.verify` and `wrap`.

NONCE_BYTES: Final = 16


def judge_answer(
    contexts: Sequence[ReceiptContext],
    model: LanguageModel,
    policy: ReceiptPolicy,
    judge: Judge = two_rungs,
    not_checked: tuple[str, ...] = (),
) -> ReceiptReport | StreamReport:
    """The report on one receipt, or on those of several answers to one request; `not_checked` is said in each.

    Raises as `verify_receipt`.
    """

    def judged(case: Verification) -> ReceiptReport:
        report = judge(case)
        return replace(report, not_checked=(*report.not_checked, *not_checked))

    if len(contexts) > 1:
        whole = policy.model_copy(update={"audit_sample": 1.0})
        return verify_stream(contexts, model, whole, secrets.token_bytes(NONCE_BYTES), judged)
    case = begin_verification(contexts[0], model, policy)
    check_statements(case)
    return judged(case)
