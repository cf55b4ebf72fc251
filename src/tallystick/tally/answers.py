"""`tallystick.verify`: one answer against the promised model, up to opened states and an exact replay."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from tallystick.audits.answers.ladder import Replay, Tools, check_rung, climb_from
from tallystick.audits.answers.layer import LayerProgram
from tallystick.audits.answers.reading import UnreadReport
from tallystick.audits.answers.report import ReceiptReport
from tallystick.audits.answers.statements import context_length_of
from tallystick.audits.answers.stream import StreamReport
from tallystick.audits.answers.subject import ReceiptContext, StatesChallenge
from tallystick.audits.answers.verification import (
    ModelSource,
    PolicySource,
    RequestSource,
    judge_answer,
    model_for,
    policy_of,
    precision_taken,
    request_of,
    responses_of,
)
from tallystick.core.canonical_json import Json, parse
from tallystick.core.errors import MalformedError, UnavailableError, UsageError
from tallystick.core.files import read_document
from tallystick.core.http import client as http_client
from tallystick.engines.torch import environment as torch_environment
from tallystick.engines.torch.generation import language_models
from tallystick.formats.hidden_states import StatesOpening, drawn_layer, judged_layers
from tallystick.formats.receipt import EngineStatement, Receipt
from tallystick.formats.signing import SigningKey
from tallystick.formats.spec import Environment
from tallystick.recording import generation, receipts as receipt_issuing
from tallystick.tally.auditing import threads_of
from tallystick.verdicts import fingerprints as fingerprint_verdicts
from tallystick.verdicts.language_model import LanguageModel

# Generates an answer again on this stack, as `tally generate` makes it, to be compared bit for bit.


@dataclass(frozen=True)
class PlainReplayer:
    """One answer at a time by the plain loop, with a cache, alone in its batch."""

    language_model: language_models.TorchLanguageModel

    @cached_property
    def environment(self) -> Environment:
        """This process's stack."""
        return torch_environment.describe_environment(
            "cuda" if self.language_model.device.startswith("cuda") else "cpu"
        )

    @cached_property
    def engine(self) -> EngineStatement:
        """This process's engine."""
        return receipt_issuing.describe_engine(self.language_model)

    def replay(self, receipt: Receipt, prompt: tuple[int, ...]) -> Replay:
        """The answer with the receipt's sampler, as many tokens as it claims; raises `UnavailableError`."""
        asked = generation.AnswerRequest(receipt.request.id, receipt.request.nonce, receipt.sampler)
        try:
            issuer = receipt_issuing.ReceiptIssuer(self.language_model, SigningKey.generate(), settings_of(receipt))
            [answer] = generation.generate_plain(
                self.language_model, [prompt], receipt.answer.tokens.count, [asked], issuer
            )
        except UsageError as error:
            raise UnavailableError(str(error)) from None
        assert answer.issued is not None
        own = answer.issued.signed.receipt
        return Replay(answer.tokens, own.fingerprints, own.states)


def settings_of(receipt: Receipt) -> receipt_issuing.RecordSettings:
    """What has to be recorded so that a receipt of the same answer states the same."""
    states = receipt.states
    fingerprints = tuple(map(fingerprint_verdicts.settings_of, receipt.fingerprints))
    if states is None:
        return receipt_issuing.RecordSettings(fingerprints)
    return receipt_issuing.RecordSettings(fingerprints, tuple(states.layers), states.block, states.prompt)


# What the upper rungs of the ladder need on this machine: layers as graphs, and exact replay.


def tools_for(model: LanguageModel, environment: Environment | Path | str | None, layer: int | None) -> Tools:
    """What the upper rungs need on this machine, for a model of PyTorch; other models are judged on the first two."""
    if isinstance(environment, Path | str):
        path = Path(environment)
        environment = Environment.from_bytes(read_document(path).removesuffix(b"\n"), path.name)
    if not isinstance(model, language_models.TorchLanguageModel):
        return Tools(environment=environment, layer=layer)

    def captured(tokens: tuple[int, ...], number: int) -> LayerProgram:
        return language_models.capture_layer(model, tokens, number)

    return Tools(layers=captured, replayer=PlainReplayer(model), environment=environment, layer=layer)


# A challenge of committed states: asked of a provider over HTTP, or its answer in whatever form it is held.

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
        document, name = _document(opening)
        if (refusal := _refusal(document)) is not None:
            return replace(subject, refusal=refusal)
        opening = StatesOpening.from_json(document, name)
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
    client = http_client.HttpClient(url, http_client.RequestLimits(SECONDS))
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
        document = parse(answer, "opening", bytes_max=OPENING_BYTES_MAX)
        if not isinstance(document, dict):
            raise MalformedError("opening: no object")
        opened = challenged(subject, document, drawn, count or 1, chosen)
    except (UnavailableError, MalformedError) as error:
        return replace(subject, refusal=str(error)[:REFUSAL_MAX]), b""
    finally:
        client.close()
    if opened.challenge is not None:  # as it was put, whatever the opening says that it answers
        opened = replace(opened, challenge=replace(opened.challenge, layer=chosen))
    return opened, answer


def _asked_layer(subject: ReceiptContext, nonce: bytes, layer: int | None) -> int | None:
    states = subject.receipt.states
    return drawn_layer(nonce, states, judged_layers(states)) if layer is None and states is not None else layer


def read_nonce(nonce: bytes | str | None) -> bytes | None:
    """The nonce of a challenge or of a sample, 1 to 64 bytes; raises `UsageError`."""
    if nonce is None:
        return None
    try:
        value = nonce if isinstance(nonce, bytes) else bytes.fromhex(nonce)
    except ValueError:
        raise UsageError("--nonce: not hexadecimal") from None
    if not 1 <= len(value) <= 64:
        raise UsageError(f"--nonce: {len(value)} bytes are not from 1 to 64")
    return value


def _document(opening: Mapping[str, Any] | Path | str) -> tuple[Json, str]:
    if isinstance(opening, Mapping):
        return dict(opening), "opening"
    path = Path(opening)
    return parse(read_document(path, OPENING_BYTES_MAX), path.name, bytes_max=OPENING_BYTES_MAX), path.name


def _refusal(document: Json) -> str | None:
    """The message of an error of the API: what a server answers that holds the states no longer."""
    error = document.get("error") if isinstance(document, dict) else None
    message = error.get("message") if isinstance(error, dict) else None
    return message[:REFUSAL_MAX] if isinstance(message, str) else None


# `tallystick.verify`: one answer of a model, in whatever form it is held, against the promised model.


def verify(
    response: object,
    *,
    model: ModelSource,
    policy: PolicySource = None,
    trusted_keys: Sequence[str | Path] = (),
    request: RequestSource = None,
    opening: OpeningSource | None = None,
    challenge: str | None = None,
    nonce: bytes | str | None = None,
    count: int | None = None,
    environment: Environment | Path | str | None = None,
    rung: int | None = None,
    layer: int | None = None,
) -> ReceiptReport | StreamReport | UnreadReport:
    """Judge one response by its receipt: what it states, one pass over its tokens, and higher rungs where needed.

    A response with several answers (`n`) has a report on all of its receipts, and a signed receipt that has not the
    form of one a report without findings about the answer.

    Args:
        response: a signed receipt, or a response that carries one: as JSON text, as parsed JSON, or as an object of the
            `openai` client.
        model: the promised model, or its directory. A directory is loaded in the precision in which it has the
            receipt's model root, if the policy's `dtypes` list it.
        policy: what the verifier asks, or its file.
        trusted_keys: public keys of the provider, or files of them; a receipt that another key signed is rejected.
        request: what was asked: the arguments of the call, or a file of its JSON.
        opening: the provider's answer to a challenge of committed states, or its file.
        challenge: the provider's address, to ask it for an opening: of `count` parts, or of the states around a layer.
        nonce: the nonce of that challenge: 1 to 64 bytes, or their hexadecimal digits.
        count: how many parts were challenged; by default as many as the policy says.
        environment: the provider's environment, or its file, to see where stacks differ.
        rung: go up to 1 tokens, 2 fingerprints, 3 one layer by operators, 4 exact replay; without it, as far as there
            is doubt and the material is there.
        layer: the layer to judge on rung 3, and to challenge; by default the nonce chooses.

    Raises:
        MalformedError: something is not what it should be; the line names the field.
        UnavailableError: the model is not there, or verifying takes more than the policy spends.
        UsageError: there is no such rung, an opening comes without its nonce, or the model has no chat template for
            the request.
    """
    check_rung(rung)
    found, asked = responses_of(response), policy_of(policy, trusted_keys)
    if isinstance(found, UnreadReport):
        return found
    subjects = [ReceiptContext(each, request_of(request)) for each in found]
    if opening is not None or challenge is not None:
        if len(subjects) > 1:
            raise UsageError("opening, challenge: of one receipt; give that one alone")
        if challenge is not None:
            subjects = [challenge_provider(subjects[0], challenge, nonce, count, layer)[0]]
        elif opening is not None:
            subjects = [challenged(subjects[0], opening, nonce, count or asked.fingerprints.parts, layer)]
    promised = model_for(model, found[0].receipt.receipt.model, asked)
    notes, places = precision_taken(model, promised, asked), context_length_of(promised)
    tools = tools_for(promised, environment, layer)
    with threads_of(tools.environment):
        placed = [replace(each, context_length=places) for each in subjects]
        return judge_answer(placed, promised, asked, lambda each: climb_from(each, rung, tools), notes)
