"""A provider's honest answers with their receipts, and what its customer asked: what forgeries are made of.

The provider owns the key. It runs the promised model and a cheaper one, and may answer what nobody asked.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from tallystick.audits.answers.policy import ReceiptPolicy
from tallystick.audits.answers.request import ExpectedRequest
from tallystick.audits.answers.subject import StatesChallenge
from tallystick.core.canonical_json import Json
from tallystick.formats.fingerprints import PUBLIC_SEED, standard_fingerprints
from tallystick.formats.hidden_states import CommittedStates
from tallystick.formats.receipt import Sampler
from tallystick.formats.signing import SigningKey
from tallystick.verdicts.fingerprints import logit_rows
from tallystick.verdicts.language_model import LanguageModel, Rows
from tests.support.attacks.cheaper_models import coarse_head

if TYPE_CHECKING:
    from tallystick.engines.torch.generation.language_models import TorchLanguageModel
    from tallystick.formats.fingerprints import FingerprintSettings
    from tallystick.recording.generation import Generated

TEMPERATURE: Final = 0.8
HOTTER: Final = 2.5
HEAD_BITS: Final = 4
OTHER_SEED: Final = 4711
NONCE: Final = bytes(range(32))
"""Drawn by the verifier once the receipts are fixed; any other number would do as well."""
OLD_NONCE: Final = bytes(range(32, 64))
PARTS: Final = 4


@dataclass(frozen=True)
class Answered:
    """One answer: what was asked, the response as JSON with its signed receipt, the states it commits to.

    `logits` are the rows of the layer behind the final norm, numbered `behind`.
    """

    request: ExpectedRequest
    body: dict[str, Json]
    states: CommittedStates
    behind: int
    logits: Rows

    @property
    def receipt(self) -> Any:
        """The JSON of the unsigned receipt."""
        signed: Any = self.body["receipt"]
        return signed["receipt"]

    @property
    def tokens(self) -> tuple[int, ...]:
        """The tokens of the answer."""
        return tuple(self.receipt["answer"]["tokens"]["ids"])

    @property
    def rows(self) -> dict[int, Rows]:
        """The hidden states and logits that the tokens were chosen from, F32 [tokens, width] by layer."""
        hidden = {layer: each.values().astype("float32") for layer, each in self.states.states.items()}
        return {**hidden, self.behind: self.logits}

    def challenge(self, nonce: bytes = NONCE) -> StatesChallenge:
        """The states that a nonce selects, opened."""
        return StatesChallenge(nonce, PARTS, self.states.open(nonce, PARTS))


@dataclass(frozen=True)
class Presented:
    """What a customer is handed: a response as JSON, beside its own request, and an opening if it challenged.

    It is judged against `model` where that is not the scene's.
    """

    body: Json
    request: ExpectedRequest | None = None
    challenge: StatesChallenge | None = None
    model: LanguageModel | None = None


@dataclass(frozen=True)
class Scene:
    """Honest answers of one batch in the order of their receipts, and others from which forgeries are made.

    `worded` answers the first request with words ahead of its prompt, `hotter` at a higher temperature, `reseeded`
    under another seed, `biased` under penalties and a bias, and `cheap` by the cheaper model; each is honest beside its
    own request. `coarse` is by the promised model with an output matrix in few bits, whose hidden states are the right
    ones.
    """

    promised: TorchLanguageModel
    cheaper: TorchLanguageModel
    key: SigningKey
    stranger: SigningKey
    policy: ReceiptPolicy
    answers: tuple[Answered, ...]
    worded: Answered
    hotter: Answered
    reseeded: Answered
    biased: Answered
    cheap: Answered
    coarse: Answered

    @property
    def first(self) -> Answered:
        """The answer that most forgeries start from."""
        return self.answers[0]


@dataclass(frozen=True)
class Wishes:
    """What customers ask: prompts, tokens an answer, and words that a provider puts ahead of one."""

    texts: tuple[str, ...]
    tokens: int
    words: str
    fingerprints: tuple[FingerprintSettings, ...] = ()
    key: SigningKey = field(default_factory=lambda: SigningKey(bytes(range(32))))


def make_scene(
    promised: TorchLanguageModel, cheaper: TorchLanguageModel, wishes: Wishes, policy: ReceiptPolicy
) -> Scene:
    """Have the provider answer everything; `policy` is made one that knows the key and wants nonce, seed and order.

    `cheaper` has a card of its own.
    """
    key, stranger = wishes.key, SigningKey(bytes(range(1, 33)))
    asked = {"keys": (key.public,), "unknown_key": "rejected", "nonce": "required", "seed": "customer"}
    wanted = policy.model_copy(update={**asked, "complete": True})
    requests = [_request(wishes, text, number) for number, text in enumerate(wishes.texts)]
    first, honest = requests[0], answer(promised, wishes, requests)
    return Scene(
        promised,
        cheaper,
        key,
        stranger,
        wanted,
        tuple(honest),
        worded=answer(promised, wishes, [_changed(first, prompt=wishes.words + wishes.texts[0])])[0],
        hotter=answer(promised, wishes, [_changed(first, temperature=HOTTER)])[0],
        reseeded=answer(promised, wishes, [_changed(first, seed=OTHER_SEED)])[0],
        biased=answer(promised, wishes, [_changed(first, **_adjusting(honest[0]))])[0],
        cheap=answer(cheaper, wishes, [first])[0],
        coarse=answer(replace(promised, model=coarse_head(promised, HEAD_BITS)), wishes, [first])[0],
    )


def answer(language_model: TorchLanguageModel, wishes: Wishes, requests: Sequence[ExpectedRequest]) -> list[Answered]:
    """Honest answers to one batch of requests, with receipts that count from 1."""
    from tallystick.recording.generation import AnswerRequest, generate_plain
    from tallystick.recording.receipts import ReceiptIssuer, RecordSettings

    fingerprints = wishes.fingerprints or standard_fingerprints(language_model.card.layers, language_model.card.dtype)
    final = language_model.card.layers
    layers = tuple(sorted({layer for each in fingerprints for layer in each.layers if layer <= final}))
    settings = RecordSettings(fingerprints, committed=layers, block=fingerprints[0].block // 4)
    issuer = ReceiptIssuer(language_model, wishes.key, settings)
    asked = [AnswerRequest(nonce=each.tally_nonce, sampler=sampler_of(each)) for each in requests]
    prompts = [each.prompt_tokens(language_model) or () for each in requests]
    found = generate_plain(language_model, prompts, wishes.tokens, asked, issuer)
    return [
        Answered(request, body_of(language_model, each), _states(each), final + 1, _logits(language_model, each))
        for request, each in zip(requests, found, strict=True)
    ]


def rows_by(
    language_model: LanguageModel, prompt: Sequence[int], tokens: Sequence[int], layers: Collection[int]
) -> dict[int, Rows]:
    """The rows of a fingerprint of `layers` as a model gives them in one pass over prompt and answer."""
    behind = language_model.card.layers + 1
    hidden = [layer for layer in layers if layer < behind]
    passed = language_model.prefill((*prompt, *tokens[:-1]), len(prompt) - 1, hidden)
    logits = {behind: logit_rows(passed.logits, PUBLIC_SEED)} if behind in layers else {}
    return {**passed.hidden, **logits}


def body_of(language_model: TorchLanguageModel, generated: Generated) -> dict[str, Json]:
    """The response in OpenAI's form that delivers an answer with its receipt."""
    assert generated.issued is not None
    signed = generated.issued.signed
    reason = "length" if generated.finish == "length" else "stop"
    return {
        "id": signed.receipt.request.id,
        "object": "text_completion",
        "choices": [choice_of(language_model, generated.tokens, reason)],
        "prompt_token_ids": list(generated.prompt),
        "usage": {"prompt_tokens": len(generated.prompt), "completion_tokens": len(generated.tokens)},
        "receipt": signed.to_json(),
    }


def choice_of(language_model: TorchLanguageModel, tokens: Sequence[int], reason: str) -> dict[str, Json]:
    """One answer as it is delivered."""
    return {"text": language_model.decode(tokens), "finish_reason": reason, "token_ids": list(tokens)}


def sampler_of(request: ExpectedRequest) -> Sampler:
    """The sampler that a request asks for."""
    return Sampler.model_validate(request.settings_of() | request.adjustments(()))


def _request(wishes: Wishes, text: str, number: int) -> ExpectedRequest:
    return ExpectedRequest(
        prompt=text,
        max_tokens=wishes.tokens,
        temperature=TEMPERATURE,
        seed=1000 + number,
        tally_nonce=f"{number + 1:064x}",
    )


def _adjusting(answered: Answered) -> dict[str, Any]:
    """Penalties, and a bias against the first token of an answer."""
    return {"presence_penalty": 1.5, "frequency_penalty": 0.5, "logit_bias": ((answered.tokens[0], -100.0),)}


def _changed(request: ExpectedRequest, **changes: Any) -> ExpectedRequest:
    return request.model_copy(update=changes)


def _logits(language_model: TorchLanguageModel, generated: Generated) -> Rows:
    behind = language_model.card.layers + 1
    return rows_by(language_model, generated.prompt, generated.tokens, [behind])[behind]


def _states(generated: Generated) -> CommittedStates:
    assert generated.issued is not None
    assert generated.issued.states is not None
    return generated.issued.states
