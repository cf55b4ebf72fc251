"""Compares a receipt with the response that carries it: text, token ids, usage, finish reason, request id."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from tallystick.answers.known_tokens import Ids
from tallystick.answers.report import CheckLog, shown
from tallystick.answers.response import NOT_BILLED, NOT_DELIVERED, REASONS, Response
from tallystick.commitments.digests import digest
from tallystick.transcripts.receipt import PROXY, Tokens, tokens_digest
from tallystick.workloads.language_model import LanguageModel

if TYPE_CHECKING:
    from tallystick.answers.request import ExpectedRequest

UNFINISHED: Final = "\ufffd"
"""What a decoder returns for the first bytes of an incomplete character."""
HELD_MAX: Final = 8
"""Tokens at the end of an answer that may be pieces of one character."""
CONTEXT: Final = 64
"""Tokens of the prompt behind which an answer is decoded; how far back they go changes no text."""


def check_delivery(log: CheckLog, response: Response) -> None:
    """Check usage, token ids, finish reason and request id of the response against the receipt."""
    receipt = response.receipt.receipt
    if response.usage is None:
        log.not_checked.append(NOT_BILLED)
    elif "text" in (receipt.request.prompt.over, receipt.answer.tokens.over):
        log.not_checked.append("what was billed: the receipt counts no tokens of its own")
    else:
        counts = receipt.request.prompt.count, receipt.answer.tokens.count
        billed = response.usage.prompt_tokens, response.usage.completion_tokens
        for name, counted, paid in zip(("prompt_tokens", "completion_tokens"), counts, billed, strict=True):
            _check_bill(log, name, counted, paid)
        if response.usage.total_tokens is not None:
            _check_bill(log, "total_tokens", sum(counts), response.usage.total_tokens)
    _check_ids(log, "prompt", "prompt_token_ids", receipt.request.prompt, response.prompt_token_ids)
    _check_ids(log, "tokens", "choices.0.token_ids", receipt.answer.tokens, response.choice.token_ids)
    _check_bound_text(log, receipt.answer.tokens, response.choice.content)
    told, stated = response.choice.finish_reason, REASONS[receipt.answer.finish]
    if response.choice.calls and stated == "stop":
        stated = "tool_calls"
    if told is not None and (told == stated or told in REASONS.values() or receipt.engine.name != PROXY):
        log.compare("finish", "choices.0.finish_reason", stated, told)
    elif told is not None:
        log.not_checked.append(f"why the answer ended: the server behind the proxy says {shown(told)}")
    if response.request_id is not None:
        log.compare("nonce", "request.id", receipt.request.id, response.request_id)


def check_text(
    log: CheckLog, response: Response, prompt: Ids, answer: Ids, model: LanguageModel, asked: ExpectedRequest | None
) -> bool | None:
    """Check that the delivered text is the text of the tokens, cut at a requested stop text.

    Returns whether a stop text ended it; None if the receipt claims none, or if it cannot be known.
    """
    if response.choice.calls:
        _check_calls(log, response, _texts(prompt, answer, model), asked)
        return None
    delivered, decode = response.choice.content, getattr(model, "decode", None)
    is_stopped = response.receipt.receipt.answer.finish == "stop"
    if delivered is None or decode is None:
        log.not_checked.append(NOT_DELIVERED)
        return None
    texts = _texts(prompt, answer, model)
    whole = next((text for text in texts if text == delivered or (is_stopped and text.startswith(delivered))), None)
    if whole is not None:
        log.agrees("tokens", "text")
    else:
        log.differs("tokens", "text", "the delivered text is not what the answer's tokens say")
    if not is_stopped or asked is None:
        return None
    rest = (whole or texts[0]).removeprefix(delivered)
    return any(rest.startswith(stop) or delivered.endswith(stop) for stop in asked.stop)


def _check_calls(log: CheckLog, response: Response, texts: Sequence[str], asked: ExpectedRequest | None) -> None:
    """Check that the delivered calls and the text beside them are those of the tokens."""
    if asked is None or asked.calls is None:
        log.not_checked.append("whether the calls that were delivered are those of the tokens: give the request")
        return
    from tallystick.transcripts.tool_calls import calls_in

    delivered = response.choice.content or "", response.choice.calls
    if any(calls_in(text, asked.calls) == delivered for text in texts):
        log.agrees("tokens", "tool_calls")
    else:
        log.differs("tokens", "tool_calls", "the delivered calls are not what the answer's tokens say")


def check_stops(log: CheckLog, answer: Ids, model: LanguageModel, asked: ExpectedRequest) -> None:
    """Check that no token comes after a requested stop text.

    A text whose last character is incomplete is skipped: a stop text in it becomes visible with a later token.
    """
    decode = getattr(model, "decode", None)
    if decode is None or not asked.stop:
        return
    before = _finished(answer[:-1], decode) or ""
    if found := [stop for stop in asked.stop if stop and stop in before]:
        log.differs("finish", "stop", f"the answer goes on after {shown(repr(found[0]))}, at which it was to end")
    else:
        log.agrees("finish", "stop", "no token after a stop text")


def is_whole(response: Response, prompt: Ids, answer: Ids, model: LanguageModel) -> bool:
    """Whether the delivered text is the whole text of the tokens."""
    return response.choice.content in _texts(prompt, answer, model)


def _texts(prompt: Ids, answer: Ids, model: LanguageModel) -> tuple[str, ...]:
    """The possible texts of the tokens: a server may omit that of a final end token, or of an unfinished character.

    Decoders of SentencePiece drop a space at the very beginning. Some servers decode the answer by itself, others
    behind its prompt, where the space stays.
    """
    decode = getattr(model, "decode", None)
    if decode is None:
        return ()
    context = prompt[-CONTEXT:]
    before = decode(context)

    def behind(ids: Ids) -> str:
        return str(decode((*context, *ids)))[len(before) :]

    is_ended = bool(answer) and answer[-1] in model.end_tokens
    said = answer[:-1] if is_ended else answer
    texts = [text for way in (decode, behind) for text in (way(answer), way(said), _finished(said, way))]
    return tuple(text for text in texts if text is not None)


def _finished(answer: Ids, decode: Callable[[Ids], str]) -> str | None:
    """The text up to the last token after which no character is incomplete: what a server that streams has sent."""
    texts = (decode(answer[:place]) for place in range(len(answer), max(0, len(answer) - HELD_MAX), -1))
    return next((text for text in texts if not text.endswith(UNFINISHED)), "" if len(answer) <= HELD_MAX else None)


def _check_bill(log: CheckLog, name: str, counted: int, billed: int) -> None:
    if billed == counted:
        log.agrees("usage", name)
    else:
        more = "more" if billed > counted else "fewer"
        detail = f"billed {billed}, {abs(billed - counted)} {more} than the {counted} of the receipt"
        log.differs("usage", name, detail)


def _check_ids(log: CheckLog, check: str, where: str, stated: Tokens, ids: Ids | None) -> None:
    if ids is None or stated.over == "text":
        return
    if (len(ids), tokens_digest(ids)) == (stated.count, stated.digest):
        log.agrees(check, where)
    else:
        log.differs(check, where, "not the tokens of the receipt")


def _check_bound_text(log: CheckLog, stated: Tokens, text: str | None) -> None:
    """Check the delivered text where the receipt binds the text itself."""
    if stated.over != "text" or text is None:
        return
    if digest("blob", text.encode(errors="surrogatepass")) == stated.digest:
        log.agrees("tokens", "text")
    else:
        log.differs("tokens", "text", "the delivered text is not the one that the receipt binds")
