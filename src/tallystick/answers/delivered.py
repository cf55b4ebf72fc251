"""What a receipt states beside what came with it: text, tokens, usage, and where the answer ends."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tallystick.answers.report import Notebook, shown
from tallystick.answers.response import REASONS, Response
from tallystick.commitments.digests import digest
from tallystick.tolerances.tolerance import Finding
from tallystick.transcripts.receipt import Answer, Tokens, tokens_digest
from tallystick.workloads.language_model import LanguageModel

if TYPE_CHECKING:
    from tallystick.answers.request import ExpectedRequest

Ids = tuple[int, ...]
UNFINISHED: Final = "\ufffd"
"""What a decoder gives for bytes that are not yet a whole character."""
HELD_MAX: Final = 8
"""Tokens at the end of an answer that may be pieces of one character."""


@dataclass(frozen=True)
class KnownTokens:
    """The tokens of prompt and answer as far as the verifier has them; each belongs to the receipt's digest."""

    prompt: Ids | None
    answer: Ids | None


def check_delivery(notes: Notebook, response: Response) -> None:
    """What was delivered and billed is what the receipt says: usage, token ids, reason, name of the request."""
    receipt = response.receipt.receipt
    if response.usage is None:
        notes.not_checked.append("what was billed: give the response with its usage")
    elif "text" in (receipt.request.prompt.over, receipt.answer.tokens.over):
        notes.not_checked.append("what was billed: the receipt counts no tokens of its own")
    else:
        counts = receipt.request.prompt.count, receipt.answer.tokens.count
        billed = response.usage.prompt_tokens, response.usage.completion_tokens
        for name, counted, paid in zip(("prompt_tokens", "completion_tokens"), counts, billed, strict=True):
            _check_bill(notes, name, counted, paid)
        if response.usage.total_tokens is not None:
            _check_bill(notes, "total_tokens", sum(counts), response.usage.total_tokens)
    _check_ids(notes, "prompt", "prompt_token_ids", receipt.request.prompt, response.prompt_token_ids)
    _check_ids(notes, "tokens", "choices.0.token_ids", receipt.answer.tokens, response.choice.token_ids)
    _check_bound_text(notes, receipt.answer.tokens, response.choice.content)
    if response.choice.finish_reason is not None:
        stated = REASONS[receipt.answer.finish]
        notes.compare("finish", "choices.0.finish_reason", stated, response.choice.finish_reason)
    if response.request_id is not None:
        notes.compare("nonce", "request.id", receipt.request.id, response.request_id)


def check_finish(
    notes: Notebook, response: Response, answer: Ids, model: LanguageModel, asked: ExpectedRequest | None
) -> None:
    """The delivered text is what the answer's tokens say, and the answer ended where and why the receipt says."""
    receipt = response.receipt.receipt
    is_stopped = check_text(notes, response, answer, model, asked)
    if answer and answer[-1] in model.end_tokens and _is_whole(response, answer, model):
        is_stopped = True  # a stop text was asked for, and the model ended before it: who forwards cannot tell
    early = next((place for place, token in enumerate(answer[:-1]) if token in model.end_tokens), None)
    if early is not None:
        notes.differs("finish", f"token {early}", "an end token, and the answer goes on")
    if asked is not None:
        _check_stops(notes, answer, model, asked)
    limit = receipt.request.max_tokens
    notes.note(Finding(float(len(answer)), float(limit), "finish", "answer.tokens.count", "tokens beside the limit"))
    _check_reason(notes, receipt.answer, answer, limit, model.end_tokens, is_stopped)


def check_text(
    notes: Notebook, response: Response, answer: Ids, model: LanguageModel, asked: ExpectedRequest | None
) -> bool | None:
    """The delivered text is that of the tokens, cut at a stop text that was asked for.

    Returns whether such a text ended it, and None where none is claimed or it cannot be told.
    """
    delivered, decode = response.choice.content, getattr(model, "decode", None)
    is_stopped = response.receipt.receipt.answer.finish == "stop"
    if delivered is None or decode is None:
        notes.not_checked.append("whether the text that was delivered is that of the tokens: give the response")
        return None
    whole, *others = _texts(answer, model)
    if delivered in (whole, *others) or (is_stopped and whole.startswith(delivered)):
        notes.agrees("tokens", "text")
    else:
        notes.differs("tokens", "text", "the delivered text is not what the answer's tokens say")
    if not is_stopped or asked is None:
        return None
    rest = whole.removeprefix(delivered)
    return any(rest.startswith(stop) or delivered.endswith(stop) for stop in asked.stop)


def _check_stops(notes: Notebook, answer: Ids, model: LanguageModel, asked: ExpectedRequest) -> None:
    """No token comes, and is billed, after a stop text that was asked for.

    A stop text in a piece whose last character is incomplete shows with a later token: such a piece is passed over.
    """
    decode = getattr(model, "decode", None)
    if decode is None or not asked.stop:
        return
    places = range(len(answer) - 1, max(0, len(answer) - 1 - HELD_MAX), -1)
    texts: Iterator[str] = (decode(answer[:place]) for place in places)
    before = next((text for text in texts if not text.endswith(UNFINISHED)), "")
    if found := [stop for stop in asked.stop if stop and stop in before]:
        notes.differs("finish", "stop", f"the answer goes on after {shown(repr(found[0]))}, at which it was to end")
    else:
        notes.agrees("finish", "stop", "no token after a stop text")


def _is_whole(response: Response, answer: Ids, model: LanguageModel) -> bool:
    """Whether all the text that the tokens say was delivered."""
    return response.choice.content in _texts(answer, model)


def _texts(answer: Ids, model: LanguageModel) -> tuple[str, ...]:
    """What the tokens say: the text of an end token that its tokenizer does not count as special may be left out."""
    decode = getattr(model, "decode", None)
    if decode is None:
        return ()
    is_ended = bool(answer) and answer[-1] in model.end_tokens
    return (decode(answer), decode(answer[:-1])) if is_ended else (decode(answer),)


def known_tokens(notes: Notebook, response: Response, own_prompt: Ids | None) -> KnownTokens:
    """The tokens to compute with, from receipt, response and request; what belongs to no digest is left out."""
    receipt = response.receipt.receipt
    prompt = _matching(receipt.request.prompt, (response.prompt_token_ids, own_prompt))
    answer = _matching(receipt.answer.tokens, (response.choice.token_ids,))
    for name, ids in (("prompt", prompt), ("tokens", answer)):
        if ids is None:
            notes.lacks(name, "the receipt holds their digest alone, and nothing else at hand belongs to it")
    return KnownTokens(prompt, answer)


def _check_reason(
    notes: Notebook, stated: Answer, answer: Ids, limit: int, ends: frozenset[int], is_stopped: bool | None
) -> None:
    if stated.finish == "end":
        if answer and answer[-1] in ends:
            notes.agrees("finish", "end")
        else:
            notes.differs("finish", "end", "the last token is no end token of the model")
    elif stated.finish == "length":
        short = max(0, limit - len(answer))
        notes.note(Finding(float(short), 0.0, "finish", "length", "tokens cut off before the limit" if short else ""))
    elif stated.finish == "cancelled":
        notes.lacks("finish", "only the customer knows whether it left before the answer was whole")
    elif is_stopped is None:
        notes.lacks("finish", "a stop text is said to have ended the answer: give the request and the response")
    elif is_stopped:
        notes.agrees("finish", "stop")
    else:
        notes.differs("finish", "stop", "the answer ends at no stop text that was asked for")


def _check_bill(notes: Notebook, name: str, counted: int, billed: int) -> None:
    if billed == counted:
        notes.agrees("usage", name)
    else:
        more = "more" if billed > counted else "fewer"
        detail = f"billed {billed}, {abs(billed - counted)} {more} than the {counted} of the receipt"
        notes.differs("usage", name, detail)


def _check_ids(notes: Notebook, check: str, where: str, stated: Tokens, ids: Ids | None) -> None:
    if ids is None or stated.over == "text":
        return
    if (len(ids), tokens_digest(ids)) == (stated.count, stated.digest):
        notes.agrees(check, where)
    else:
        notes.differs(check, where, "not the tokens of the receipt")


def _check_bound_text(notes: Notebook, stated: Tokens, text: str | None) -> None:
    """Where the text itself is bound, it is the one that was delivered."""
    if stated.over != "text" or text is None:
        return
    if digest("blob", text.encode(errors="surrogatepass")) == stated.digest:
        notes.agrees("tokens", "text")
    else:
        notes.differs("tokens", "text", "the delivered text is not the one that the receipt binds")


def _matching(stated: Tokens, candidates: tuple[Ids | None, ...]) -> Ids | None:
    if stated.ids is not None or stated.over is not None:
        return stated.ids
    known = (ids for ids in candidates if ids is not None)
    return next((ids for ids in known if (len(ids), tokens_digest(ids)) == (stated.count, stated.digest)), None)
