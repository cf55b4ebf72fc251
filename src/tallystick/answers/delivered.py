"""What a receipt states compared with the response that carries it: text, token ids, usage, reason, name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from tallystick.answers.ending import NOT_DELIVERED
from tallystick.answers.known_tokens import Ids
from tallystick.answers.report import Notebook, shown
from tallystick.answers.response import NOT_BILLED, REASONS, Response
from tallystick.commitments.digests import digest
from tallystick.transcripts.receipt import Tokens, tokens_digest
from tallystick.workloads.language_model import LanguageModel

if TYPE_CHECKING:
    from tallystick.answers.request import ExpectedRequest

UNFINISHED: Final = "\ufffd"
"""What a decoder gives for bytes that are not yet a whole character."""
HELD_MAX: Final = 8
"""Tokens at the end of an answer that may be pieces of one character."""


def check_delivery(notes: Notebook, response: Response) -> None:
    """What was delivered and billed is what the receipt says: usage, token ids, reason, name of the request."""
    receipt = response.receipt.receipt
    if response.usage is None:
        notes.not_checked.append(NOT_BILLED)
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


def check_text(
    notes: Notebook, response: Response, answer: Ids, model: LanguageModel, asked: ExpectedRequest | None
) -> bool | None:
    """The delivered text is that of the tokens, cut at a stop text that was asked for.

    Returns whether such a text ended it, and None where none is claimed or it cannot be told.
    """
    delivered, decode = response.choice.content, getattr(model, "decode", None)
    is_stopped = response.receipt.receipt.answer.finish == "stop"
    if delivered is None or decode is None:
        notes.not_checked.append(NOT_DELIVERED)
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


def check_stops(notes: Notebook, answer: Ids, model: LanguageModel, asked: ExpectedRequest) -> None:
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


def is_whole(response: Response, answer: Ids, model: LanguageModel) -> bool:
    """Whether all the text that the tokens say was delivered."""
    return response.choice.content in _texts(answer, model)


def _texts(answer: Ids, model: LanguageModel) -> tuple[str, ...]:
    """What the tokens say: the text of an end token that its tokenizer does not count as special may be left out."""
    decode = getattr(model, "decode", None)
    if decode is None:
        return ()
    is_ended = bool(answer) and answer[-1] in model.end_tokens
    return (decode(answer), decode(answer[:-1])) if is_ended else (decode(answer),)


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
