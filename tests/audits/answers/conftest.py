"""A provider with a key, answers of the tiny model with their receipts, and a customer's policy for short answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

PROMPT = "The stick is"


@pytest.fixture(scope="session")
def provider_key() -> Any:
    from tallystick.formats.signing import SigningKey

    return SigningKey(bytes(range(32)))


@pytest.fixture(scope="session")
def answered(language_model: Any, provider_key: Any, one_thread: None) -> Callable[..., Any]:
    """One answer by the plain loop: `answered(seed=3, temperature=0.8, max_tokens=16, nonce=…, settings=…)`."""
    from tallystick.formats.fingerprints import FingerprintSettings
    from tallystick.formats.receipt import Sampler
    from tallystick.recording.generation import AnswerRequest, generate_plain
    from tallystick.recording.receipts import ReceiptIssuer, RecordSettings

    final = language_model.card.layers
    everything = RecordSettings(
        (FingerprintSettings(layers=(0, final, final + 1), block=8),),
        committed=tuple(range(final + 1)),
        block=8,
        prompt=True,
    )

    def answer(
        prompt: str = PROMPT,
        max_tokens: int = 16,
        nonce: str | None = None,
        settings: Any = everything,
        issuer: Any = None,
        request_id: str = "request-1",
        model: Any = language_model,
        **sampler: Any,
    ) -> Any:
        asked = AnswerRequest(request_id, nonce, Sampler(**{"seed": 3, "temperature": 0.8, **sampler}))
        issuer = issuer or ReceiptIssuer(language_model, provider_key, settings)
        return generate_plain(model, [model.encode_text(prompt)], max_tokens, [asked], issuer)[0]

    return answer


@pytest.fixture(scope="session")
def honest_answer(answered: Callable[..., Any]) -> Any:
    """An answer of sixteen tokens with fingerprints and a commitment to the states of every layer and row."""
    return answered()


@pytest.fixture(scope="session")
def short_policy() -> Any:
    """A policy with which sixteen tokens are enough."""
    from tallystick.audits.answers.limits import SamplerRule
    from tallystick.audits.answers.policy import ReceiptPolicy
    from tests.support.limits import rule_of

    return ReceiptPolicy(sampler=SamplerRule(dishonest=0.3, beta=0.05), fingerprints=rule_of(1e-4))


@pytest.fixture(scope="session")
def resigned(provider_key: Any) -> Callable[..., Any]:
    """A receipt with other fields, signed again by its provider: `resigned(signed, {"answer": …})`."""
    from tallystick.formats.receipt import Receipt
    from tallystick.formats.signing import sign_receipt

    def sign(signed: Any, changes: dict[str, Any]) -> Any:
        held = signed.receipt.to_json()
        for path, value in changes.items():
            *parents, name = path.split(".")
            place = held
            for parent in parents:
                place = place[parent]
            if value is None:
                place.pop(name, None)
            else:
                place[name] = value
        return sign_receipt(Receipt.from_json(held, "receipt"), provider_key)

    return sign


@pytest.fixture(scope="session")
def tokens_of() -> Callable[..., Any]:
    """Token ids as they stand in a receipt."""
    from tallystick.formats.receipt import Tokens

    return lambda ids, private=False: Tokens.of(tuple(ids), private).to_json()
