"""`tallystick.verify`: one answer of a model, in whatever form it is held, against the promised model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tallystick.answers.ladder import Tools, climb
from tallystick.answers.limits import context_length_of
from tallystick.answers.report import ReceiptReport
from tallystick.answers.states import StatesChallenge
from tallystick.answers.verification import (
    ModelSource,
    PolicySource,
    RequestSource,
    model_of,
    policy_of,
    request_of,
    response_of,
)
from tallystick.answers.verify import ReceiptContext
from tallystick.api.threads import threads_of
from tallystick.commitments.encoding import Json, parse
from tallystick.documents.files import read_document
from tallystick.errors import UsageError
from tallystick.frameworks.torch.generation.language_models import TorchLanguageModel
from tallystick.transcripts.environment import Environment
from tallystick.transcripts.states_opening import StatesOpening

if TYPE_CHECKING:
    from tallystick.workloads.language_model import LanguageModel

OPENING_BYTES_MAX: Final = 1 << 30
REFUSAL_MAX: Final = 300
OpeningSource = StatesOpening | Mapping[str, Any] | Path | str


def verify(
    response: object,
    *,
    model: ModelSource,
    policy: PolicySource = None,
    request: RequestSource = None,
    opening: OpeningSource | None = None,
    nonce: bytes | str | None = None,
    count: int | None = None,
    environment: Environment | Path | str | None = None,
    rung: int | None = None,
    layer: int | None = None,
) -> ReceiptReport:
    """Judge one response by its receipt: what it states, one pass over its tokens, and higher rungs where needed.

    Args:
        response: a signed receipt, or a response that carries one: as JSON text, as parsed JSON, or as an object of the
            `openai` client.
        model: the promised model, or its directory.
        policy: what the verifier asks, or its file.
        request: what was asked: the arguments of the call, or a file of its JSON.
        opening: the provider's answer to a challenge of committed states, or its file.
        nonce: the nonce of that challenge: 1 to 64 bytes, or their hexadecimal digits.
        count: how many parts were challenged; by default as many as the policy says.
        environment: the provider's environment, or its file, to see where stacks differ.
        rung: go up to 1 tokens, 2 fingerprints, 3 one layer by operators, 4 exact replay; without it, as far as there
            is doubt and the material is there.
        layer: the layer to judge on rung 3; by default the nonce chooses.

    Raises:
        MalformedError: something is not what it should be; the line names the field.
        UnavailableError: the model is not there, or verifying takes more than the policy spends.
        UsageError: there is no such rung, an opening comes without its nonce, or the model has no chat template for
            the request.
    """
    read, asked = response_of(response), policy_of(policy)
    subject = ReceiptContext(read, request_of(request))
    if opening is not None:
        subject = challenged(subject, opening, nonce, asked.fingerprints.parts if count is None else count)
    promised = model_of(model)
    tools = tools_for(promised, environment, layer)
    with threads_of(tools.environment):
        return climb(replace(subject, context_length=context_length_of(promised)), promised, asked, rung, tools)


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


def tools_for(model: LanguageModel, environment: Environment | Path | str | None, layer: int | None) -> Tools:
    """What the upper rungs need on this machine, for a model of PyTorch; other models are judged on the first two."""
    stated = environment if isinstance(environment, Environment) else _environment(environment)
    if not isinstance(model, TorchLanguageModel):
        return Tools(environment=stated, layer=layer)
    from tallystick.api.exact_replay import PlainReplayer
    from tallystick.frameworks.torch.generation.block_replay import capture_layer

    return Tools(
        layers=lambda tokens, number: capture_layer(model, tokens, number),
        replayer=PlainReplayer(model),
        environment=stated,
        layer=layer,
    )


def _document(opening: Mapping[str, Any] | Path | str) -> tuple[Json, str]:
    if isinstance(opening, Mapping):
        return dict(opening), "opening"
    path = Path(opening)
    return parse(read_document(path, OPENING_BYTES_MAX), path.name, bytes_max=OPENING_BYTES_MAX), path.name


def _environment(path: Path | str | None) -> Environment | None:
    if path is None:
        return None
    return Environment.from_bytes(read_document(Path(path)).removesuffix(b"\n"), Path(path).name)


def _refusal(told: Json) -> str | None:
    """The message of an error of the API: what a server answers that holds the states no longer."""
    error = told.get("error") if isinstance(told, dict) else None
    message = error.get("message") if isinstance(error, dict) else None
    return message[:REFUSAL_MAX] if isinstance(message, str) else None
