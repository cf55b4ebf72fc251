"""The tokens that a verifier computes with: they match the digests in the receipt."""

from __future__ import annotations

from dataclasses import dataclass

from tallystick.answers.report import CheckLog
from tallystick.answers.response import Response
from tallystick.transcripts.receipt import Tokens, tokens_digest

Ids = tuple[int, ...]


@dataclass(frozen=True)
class KnownTokens:
    """The tokens of prompt and answer, None if unknown; both match the receipt's digests."""

    prompt: Ids | None
    answer: Ids | None


def known_tokens(log: CheckLog, response: Response, own_prompt: Ids | None) -> KnownTokens:
    """The tokens to compute with, from receipt, response and request; tokens with another digest are ignored."""
    receipt = response.receipt.receipt
    prompt = _matching(receipt.request.prompt, (response.prompt_token_ids, own_prompt))
    answer = _matching(receipt.answer.tokens, (response.choice.token_ids,))
    for name, ids in (("prompt", prompt), ("tokens", answer)):
        if ids is None:
            log.unavailable(name, "the receipt holds their digest alone, and nothing else at hand belongs to it")
    return KnownTokens(prompt, answer)


def _matching(stated: Tokens, candidates: tuple[Ids | None, ...]) -> Ids | None:
    if stated.ids is not None or stated.over is not None:
        return stated.ids
    known = (ids for ids in candidates if ids is not None)
    return next((ids for ids in known if (len(ids), tokens_digest(ids)) == (stated.count, stated.digest)), None)
