"""Checks the numbers in a receipt before anything is computed with them."""

from __future__ import annotations

from collections.abc import Collection

from tallystick.answers.known_tokens import KnownTokens
from tallystick.answers.policy import ReceiptPolicy
from tallystick.answers.work import memory, operations
from tallystick.errors import MalformedError, UnavailableError
from tallystick.transcripts.model_card import ModelCard
from tallystick.transcripts.receipt import Receipt
from tallystick.transcripts.sampler import Sampler
from tallystick.workloads.language_model import LanguageModel


def check_consistency(receipt: Receipt) -> None:
    """Check that the numbers of rows and tokens agree; raises `MalformedError` naming the field."""
    prompt, answer = receipt.request.prompt.count, receipt.answer.tokens.count
    if prompt < 1:
        raise MalformedError("receipt.request.prompt.count: an answer follows a prompt of at least one token")
    for place, fingerprint in enumerate(receipt.fingerprints):
        if fingerprint.tokens != answer:
            where = f"receipt.fingerprints.{place}.tokens"
            raise MalformedError(f"{where}: {fingerprint.tokens}, and the answer has {answer}")
    states = receipt.states
    rows = answer if states is None or not states.prompt else prompt + answer - 1
    if states is not None and states.rows != rows:
        raise MalformedError(f"receipt.states.rows: {states.rows}, and there are {rows}")


def check_sizes(
    receipt: Receipt, card: ModelCard, policy: ReceiptPolicy, context_length: int | None, layers: Collection[int]
) -> None:
    """Check that the policy allows the work; `layers` are those whose hidden states are compared.

    Raises:
        UnavailableError: more tokens, memory or work than the policy allows; or more tokens than the model's context.
        MalformedError: a layer that the model does not have.
    """
    answer = receipt.answer.tokens.count
    total = receipt.request.prompt.count + answer
    where = "receipt.answer.tokens.count"
    if total > policy.tokens_max:
        raise UnavailableError(f"{where}: {total} tokens, more than tokens_max of {policy.tokens_max}")
    if context_length is not None and total - 1 > context_length:
        raise UnavailableError(f"{where}: {total} tokens do not fit into {context_length} places of the model")
    spent = {
        "memory_max": (memory(receipt, card, layers), "bytes"),
        "work_max": (operations(receipt, card), "operations"),
    }
    for setting, (needed, unit) in spent.items():
        if needed > (allowed := getattr(policy, setting)):
            raise UnavailableError(f"{where}: takes up to {needed} {unit}, more than {setting} of {allowed}")
    named = {f"fingerprints.{place}": (each.layers, card.layers + 1) for place, each in enumerate(receipt.fingerprints)}
    named |= {"states": (receipt.states.layers, card.layers)} if receipt.states else {}
    for place, (layers, last) in named.items():
        if max(layers) > last:
            raise MalformedError(f"receipt.{place}.layers: {max(layers)} is not from 0 to {last}")


def check_vocabulary(tokens: KnownTokens, sampler: Sampler, card: ModelCard) -> None:
    """Raise `MalformedError` for a token that the model does not have."""
    if sampler.largest_token >= card.vocabulary:
        named = f"receipt.sampler: token {sampler.largest_token}"
        raise MalformedError(f"{named} is outside the vocabulary of {card.vocabulary}")
    for name, ids in (("request.prompt", tokens.prompt), ("answer.tokens", tokens.answer)):
        if ids and max(ids) >= card.vocabulary:
            raise MalformedError(f"receipt.{name}.ids: {max(ids)} is outside the vocabulary of {card.vocabulary}")


def context_length_of(model: LanguageModel) -> int | None:
    """The context length of a model of transformers, if its configuration states one."""
    found: int | None = getattr(model, "context_length", None)
    return found
