"""Compares a receipt with the response that carries it: text, usage, end, and log probabilities."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from tallystick.audits.answers.limits import SamplerRule
from tallystick.audits.answers.report import compare, shown
from tallystick.audits.answers.request import ExpectedRequest
from tallystick.audits.answers.response import (
    NOT_BILLED,
    NOT_DELIVERED,
    DeliveredLogprob,
    DeliveredLogprobs,
    Response,
)
from tallystick.audits.answers.subject import Ids, Verification
from tallystick.core.canonical_json import encode, parse
from tallystick.core.digests import digest
from tallystick.core.errors import MalformedError
from tallystick.formats.completions import FINISH_REASONS, Call, calls_in
from tallystick.formats.receipt import PROXY, Tokens, tokens_digest
from tallystick.verdicts.language_model import LanguageModel, Rows
from tallystick.verdicts.tolerance import Finding
from tallystick.verdicts.verdict import Findings

# Compares a receipt with the response that carries it: text, token ids, usage, finish reason, request id.

UNFINISHED: Final = "\ufffd"
"""What a decoder returns for the first bytes of an incomplete character."""
HELD_MAX: Final = 8
"""Tokens at the end of an answer that may be pieces of one character."""
BEGINS: Final = ("<think>", "<reasoning>", "[THINK]")
ENDS: Final = ("</think>", "</reasoning>", "[/THINK]")
"""What a server leaves out where it delivers the reasoning of an answer apart: only such a mark divides the two."""
CONTEXT: Final = 64
"""Tokens of the prompt behind which an answer is decoded; how far back they go changes no text."""


def check_delivery(findings: Findings, response: Response) -> None:
    """Check usage, token ids, finish reason and request id of the response against the receipt."""
    receipt = response.receipt.receipt
    _check_remarks(findings, response)
    if response.usage is None:
        findings.not_checked.append(NOT_BILLED)
    elif "text" in (receipt.request.prompt.over, receipt.answer.tokens.over):
        findings.not_checked.append("what was billed: the receipt counts no tokens of its own")
    else:
        counts = receipt.request.prompt.count, receipt.answer.tokens.count
        usage = response.usage
        billed = usage.prompt_tokens, usage.completion_tokens, usage.total_tokens
        names = ("prompt_tokens", "completion_tokens", "total_tokens")
        for name, counted, paid in zip(names, (*counts, sum(counts)), billed, strict=True):
            if paid is not None and paid == counted:
                findings.agrees("usage", name)
            elif paid is not None:
                more = "more" if paid > counted else "fewer"
                detail = f"billed {paid}, {abs(paid - counted)} {more} than the {counted} of the receipt"
                findings.differs("usage", name, detail)
    listed: tuple[tuple[str, str, Tokens, Ids | None], ...] = (
        ("prompt", "prompt_token_ids", receipt.request.prompt, response.prompt_token_ids),
        ("tokens", "choices.0.token_ids", receipt.answer.tokens, response.choice.token_ids),
    )
    for check, where, stated, ids in listed:
        if ids is None or stated.over == "text":
            continue
        if (len(ids), tokens_digest(ids)) == (stated.count, stated.digest):
            findings.agrees(check, where)
        else:
            findings.differs(check, where, "not the tokens of the receipt")
    text = response.choice.content
    if receipt.answer.tokens.over == "text" and text is not None:
        if digest("blob", text.encode(errors="surrogatepass")) == receipt.answer.tokens.digest:
            findings.agrees("tokens", "text")
        else:
            findings.differs("tokens", "text", "the delivered text is not the one that the receipt binds")
    reported, reason = response.choice.finish_reason, FINISH_REASONS[receipt.answer.finish]
    if response.choice.calls and reason == "stop" and reported == "tool_calls":
        reason = reported
    is_known = reported == reason or reported in FINISH_REASONS.values()
    if reported is not None and (is_known or receipt.engine.name != PROXY):
        compare(findings, "finish", "choices.0.finish_reason", reason, reported)
    elif reported is not None:
        findings.not_checked.append(f"why the answer ended: the server behind the proxy says {shown(reported)}")
    if response.request_id is not None:
        compare(findings, "nonce", "request.id", receipt.request.id, response.request_id)


def check_text(
    findings: Findings, response: Response, texts: Sequence[str], request: ExpectedRequest | None
) -> bool | None:
    """Check that the delivered text is that of the tokens (`texts_of`), cut at a requested stop text.

    Returns whether a stop text ended it; None if the receipt claims none, or if it cannot be known.
    """
    choice = response.choice
    if choice.calls:
        _check_calls(findings, response, texts, request)
        return None
    is_stopped = response.receipt.receipt.answer.finish == "stop"
    if (choice.content is None and choice.reasoning is None) or not texts:
        findings.not_checked.append(NOT_DELIVERED)
        return None
    stop = choice.stop_reason
    if isinstance(stop, str) and (request is None or stop not in request.stop):
        findings.leave_open("finish", f"stop_reason: {shown(repr(stop))} is no stop text of a request at hand")
    delivered = choice.content or ""
    if choice.reasoning is not None:
        _check_reasoning(findings, choice.reasoning, delivered, texts)
        return None
    whole = next((text for text in texts if text == delivered or (is_stopped and text.startswith(delivered))), None)
    if whole is not None:
        findings.agrees("tokens", "text")
    else:
        findings.differs("tokens", "text", "the delivered text is not what the answer's tokens say")
    if not is_stopped or request is None:
        return None
    rest = (whole or texts[0]).removeprefix(delivered)
    return any(rest.startswith(stop) or delivered.endswith(stop) for stop in request.stop)


def _check_calls(findings: Findings, response: Response, texts: Sequence[str], request: ExpectedRequest | None) -> None:
    """Check that the delivered calls and the text beside them are those of the tokens."""
    if request is None:
        findings.leave_open(
            "tokens", "calls of functions were delivered, and the request says how they are read: give it"
        )
        return
    if request.calls is None:
        findings.differs("tokens", "tool_calls", "calls of functions, and the request has no tools")
        return
    text, calls = (response.choice.content or "").strip(), [*map(_plain, response.choice.calls)]
    readings = [calls_in(whole, request.calls) for whole in texts]
    if response.choice.reasoning is not None:
        findings.leave_open("tokens", "calls beside reasoning: nobody says how the tokens are divided between them")
    elif any((rest, [*map(_plain, made)]) == (text, calls) for rest, made in readings):
        findings.agrees("tokens", "tool_calls")
    else:
        findings.differs("tokens", "tool_calls", "the delivered calls are not what the answer's tokens say")


def _plain(call: Call) -> tuple[str, object]:
    """A call that equals another one if its arguments are the same JSON, in whichever layout."""
    name, arguments = call
    try:
        return name, encode(parse(arguments.encode(), "arguments"))
    except (MalformedError, UnicodeEncodeError):
        return name, arguments


def _check_reasoning(findings: Findings, reasoning: str, delivered: str, texts: Sequence[str]) -> None:
    """Check that reasoning and then text stand in the tokens' text, and that only marks were left out."""
    rests = [rest for text in texts if (rest := _left_out(text, (reasoning.strip(), delivered.strip()))) is not None]
    if not rests:
        findings.differs("tokens", "reasoning", "reasoning and text are not what the answer's tokens say")
    elif any(_is_marked(rest, is_open=not delivered) for rest in rests):
        findings.agrees("tokens", "reasoning")
    else:
        findings.leave_open("tokens", "reasoning was delivered apart, and no mark in the tokens' text divides it so")


def _is_marked(rest: Sequence[str], is_open: bool) -> bool:
    """Whether marks are what was left out; reasoning that was cut off (`is_open`) has the first one alone."""
    before, between, behind = rest
    if behind or before not in ("", *BEGINS):
        return False
    return between in ENDS or (is_open and not between and before in BEGINS)


def _left_out(text: str, parts: Sequence[str]) -> list[str] | None:
    """What of a text stands before, between and behind its parts, which are in order; None if they are not in it."""
    left = list[str]()
    for part in parts:
        before, mark, text = text.partition(part) if part else ("", "", text)
        if part and not mark:
            return None
        left.append(before.strip())
    return [*left, text.strip()]


def _check_remarks(findings: Findings, response: Response) -> None:
    """Log what the reader of the response noticed.

    A proxy forwards what another server adds to its text: that is open, and no objection to the proxy.
    """
    is_proxied = response.receipt.receipt.engine.name == PROXY
    for remark in response.remarks:
        if remark.kind == "refused" or (remark.kind == "foreign" and not is_proxied):
            findings.differs("form", remark.where, remark.detail)
        elif remark.kind != "stated":
            findings.leave_open("form", f"{remark.where}: {remark.detail}")


def texts_of(prompt: Ids, answer: Ids, model: LanguageModel, stops: Ids = ()) -> tuple[str, ...]:
    """The possible texts of the tokens: a server may omit that of a final end token, or of an unfinished character.

    `stops` are tokens that the request names to end the answer.

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

    is_ended = bool(answer) and answer[-1] in {*model.end_tokens, *stops}
    shorter = answer[:-1] if is_ended else answer
    texts = [text for way in (decode, behind) for text in (way(answer), way(shorter), _finished(shorter, way))]
    return tuple(text for text in texts if text is not None)


def _finished(answer: Ids, decode: Callable[[Ids], str]) -> str | None:
    """The text up to the last token after which no character is incomplete: what a server that streams has sent."""
    texts = (decode(answer[:place]) for place in range(len(answer), max(0, len(answer) - HELD_MAX), -1))
    return next((text for text in texts if not text.endswith(UNFINISHED)), "" if len(answer) <= HELD_MAX else None)


# Checks where an answer ends and which reason its receipt states, from the answer's tokens.


def check_finish(case: Verification, prompt: Ids, answer: Ids) -> None:
    """Check that the answer ended where and why the receipt says, and that the delivered text belongs to its tokens."""
    findings, receipt, model = case.findings, case.receipt, case.model
    response, request, is_stopped = case.context.response, case.context.request, None
    stops = () if request is None else request.stop_token_ids
    ends = {*model.end_tokens, *stops}
    is_ended = bool(answer) and answer[-1] in ends
    if not response.is_bare:
        texts = texts_of(prompt, answer, model, stops)
        is_stopped = check_text(findings, response, texts, request)
        if is_ended and response.choice.content in texts:
            is_stopped = True  # a proxy cannot tell an end token from a requested stop text
    elif answer and answer[-1] in stops:
        is_stopped = True
    early = next((place for place, token in enumerate(answer[:-1]) if token in ends), None)
    if early is not None:
        findings.differs("finish", f"token {early}", "an end token, and the answer goes on")
    if request is not None:
        _check_stops(findings, answer, model, request)
    limit, stated = receipt.request.max_tokens, receipt.answer.finish
    findings.note(Finding(float(len(answer)), float(limit), "finish", "answer.tokens.count", "tokens beside the limit"))
    if stated == "end":
        if is_ended:
            findings.agrees("finish", "end")
        else:
            findings.differs("finish", "end", "the last token is no end token of the model")
    elif stated == "length":
        short = max(0, limit - len(answer))
        detail = "tokens cut off before the limit" if short else ""
        findings.note(Finding(float(short), 0.0, "finish", "length", detail))
    elif stated == "cancelled":
        findings.leave_open("finish", "only the customer knows whether it left before the answer was whole")
    elif is_stopped is None:
        findings.leave_open("finish", "a stop text is said to have ended the answer: give the request and the response")
    elif is_stopped:
        findings.agrees("finish", "stop")
    else:
        findings.differs("finish", "stop", "the answer ends at no stop text that was asked for")


def _check_stops(findings: Findings, answer: Ids, model: LanguageModel, request: ExpectedRequest) -> None:
    """Check that no token comes after a requested stop text.

    A text whose last character is incomplete is skipped: a stop text in it becomes visible with a later token. A stop
    text inside the first `min_tokens` tokens may be passed over, as vLLM does.
    """
    decode = getattr(model, "decode", None)
    if decode is None or not request.stop:
        return
    before = _finished(answer[:-1], decode) or ""
    least = len(decode(answer[: request.min_tokens])) if request.min_tokens else 0
    if passed := [stop for stop in request.stop if stop and before.find(stop, max(0, least + 1 - len(stop))) >= 0]:
        findings.differs("finish", "stop", f"the answer goes on after {shown(repr(passed[0]))}, at which it was to end")
    else:
        findings.agrees("finish", "stop", "no token after a stop text")


# Compares the log probabilities that a response reports with those of the verifier's own pass.
#
# No receipt binds them: they are compared because they are delivered with it. They are those of the model's logits
# before the sampler changes them. The log probability of a token moves by no more than differences of logits do.
#
# Servers list the most likely tokens in two ways: alone, or (vLLM) the chosen token first and then the others.

Row = npt.NDArray[np.float64]
LEAST: Final = -100.0
"""What is less likely counts as this: the API has no infinity."""
BEFORE: Final = 4
"""Tokens before one that may be a piece of the same character."""
CANDIDATES_MAX: Final = 4096
Spell = Callable[[int], frozenset[str]]


def check_logprobs(
    findings: Findings,
    delivered: DeliveredLogprobs,
    logits: Rows,
    answer: Sequence[int],
    rule: SamplerRule,
    undecided: str,
) -> None:
    """Check each token's log probability, and those of the most likely ones beside it.

    Args:
        findings: gets one finding, on the largest difference; it decides nothing if `undecided` gives a reason.
        delivered: what the response reports.
        logits: the verifier's own, F32[n, V].
        answer: the n token ids.
        rule: its tie band times `far` is the largest honest difference.
        undecided: why differences decide nothing; empty if they decide.
    """
    listed = delivered.listed
    if len(listed) != len(answer):
        findings.differs("logprobs", "", f"for {len(listed)} tokens, and the answer has {len(answer)}")
        return
    is_whole = delivered.content is not None  # in a completion, tokens that look alike share an entry
    rows = zip(logits, answer, listed, strict=True)
    apart = [_apart(_own(row), token, entry, is_whole) for row, token, entry in rows]
    worst = int(np.argmax(apart))
    detail = "difference of a log probability; no receipt binds them"
    findings.note(Finding(apart[worst], _limit(rule), "logprobs", f"token {worst}", detail, advisory=bool(undecided)))


def check_spelling(
    findings: Findings,
    delivered: DeliveredLogprobs,
    logits: Rows,
    answer: Sequence[int],
    rule: SamplerRule,
    model: LanguageModel,
) -> None:
    """Check that the names beside log probabilities are those of the tokens: a client may show them.

    Names in a way of writing that is not known here are open, and no objection.
    """
    spell: Spell | None = getattr(model, "spellings", None)
    decode: Callable[[Sequence[int]], str] | None = getattr(model, "decode", None)
    if spell is None or decode is None:
        findings.leave_open("logprobs", "the names of their tokens: the model has no tokenizer at hand")
        return

    def is_name(entry: DeliveredLogprob, token: int, place: int) -> bool:
        known = spell(token)
        name = entry.token
        if name is not None and name not in known:
            text = decode([*answer[max(0, place - BEFORE) : place], token])
            if not (any("\ufffd" in writing for writing in known) and text.endswith(name)):
                return False
        if entry.bytes is None:
            return True
        given = bytes(entry.bytes)
        return given == (name or "").encode() or given.decode(errors="replace") in known

    for place, (row, token, entry) in enumerate(zip(logits, answer, delivered.listed, strict=False)):
        if not is_name(entry, token, place):
            _leave_name_open(findings, f"token {place}", entry)
            return
        own = _own(row)
        for top in entry.top_logprobs:
            if not any(is_name(top, other, place) for other in _near(own, top.logprob, _limit(rule), token)):
                _leave_name_open(findings, f"token {place}, one of the most likely", top)
                return
    findings.agrees("logprobs", "names")


def _leave_name_open(findings: Findings, where: str, entry: DeliveredLogprob) -> None:
    name = entry.token if entry.token is not None else list(entry.bytes or ())
    findings.leave_open("logprobs", f"{where} is named {shown(repr(name))}, and the tokenizer has no such name for it")


def _near(own: Row, value: float, limit: float, token: int) -> Iterator[int]:
    """The tokens whose own log probability is the reported one, up to the limit; the chosen one first."""
    distances = np.abs(own - max(value, LEAST))
    near = np.flatnonzero(distances <= limit)
    yield from (token,) if distances[token] <= limit else ()
    yield from near[np.argsort(distances[near], kind="stable")][:CANDIDATES_MAX].tolist()


def _limit(rule: SamplerRule) -> float:
    assert rule.band is not None
    return rule.band * rule.far


def _own(row: Rows) -> Row:
    """The log probabilities of one row, F64[V]."""
    x = row.astype(np.float64)
    own: Row = np.maximum(x - x.max() - np.log(np.exp(x - x.max()).sum()), LEAST)
    return own


def _apart(own: Row, token: int, entry: DeliveredLogprob, is_whole: bool) -> float:
    """The largest difference at one token, F64[V]: of its own number, and of the list in the way that fits."""
    top = sorted((max(logprob.logprob, LEAST) for logprob in entry.top_logprobs), reverse=True)
    chosen = abs(own[token] - max(entry.logprob, LEAST))
    if not is_whole:
        return float(max([chosen, *(np.abs(own - logprob).min() for logprob in top)]))
    largest = np.sort(own)[::-1]
    alone = [abs(mine - theirs) for mine, theirs in zip(largest, top, strict=False)]
    place = int(np.argmin([abs(logprob - own[token]) for logprob in top])) if top else 0
    others = np.sort(np.delete(own, token))[::-1]
    beside = [abs(mine - theirs) for mine, theirs in zip(others, top[:place] + top[place + 1 :], strict=False)]
    first = [abs(top[place] - own[token])] if top else []
    return float(max(chosen, min(max(alone, default=0.0), max([*first, *beside], default=0.0))))
