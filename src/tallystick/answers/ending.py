"""Checks where an answer ends and which reason its receipt states, from the answer's tokens."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from tallystick.answers.known_tokens import Ids
from tallystick.answers.report import CheckLog
from tallystick.answers.response import Response
from tallystick.tolerances.tolerance import Finding
from tallystick.transcripts.receipt import Answer
from tallystick.workloads.language_model import LanguageModel

if TYPE_CHECKING:
    from tallystick.answers.request import ExpectedRequest


def check_finish(
    log: CheckLog, response: Response, prompt: Ids, answer: Ids, model: LanguageModel, asked: ExpectedRequest | None
) -> None:
    """Check that the answer ended where and why the receipt says, and that the delivered text belongs to its tokens."""
    receipt, is_stopped = response.receipt.receipt, None
    stops = () if asked is None else asked.stop_token_ids
    ends = {*model.end_tokens, *stops}
    if not response.is_bare:
        from tallystick.answers.delivered import check_text, is_whole

        is_stopped = check_text(log, response, prompt, answer, model, asked)
        if answer and answer[-1] in ends and is_whole(response, prompt, answer, model, stops):
            is_stopped = True  # a proxy cannot tell an end token from a requested stop text
    elif answer and answer[-1] in stops:
        is_stopped = True
    early = next((place for place, token in enumerate(answer[:-1]) if token in ends), None)
    if early is not None:
        log.differs("finish", f"token {early}", "an end token, and the answer goes on")
    if asked is not None:
        from tallystick.answers.delivered import check_stops

        check_stops(log, answer, model, asked)
    limit = receipt.request.max_tokens
    log.add(Finding(float(len(answer)), float(limit), "finish", "answer.tokens.count", "tokens beside the limit"))
    _check_reason(log, receipt.answer, answer, limit, ends, is_stopped)


def _check_reason(
    log: CheckLog, stated: Answer, answer: Ids, limit: int, ends: Collection[int], is_stopped: bool | None
) -> None:
    if stated.finish == "end":
        if answer and answer[-1] in ends:
            log.agrees("finish", "end")
        else:
            log.differs("finish", "end", "the last token is no end token of the model")
    elif stated.finish == "length":
        short = max(0, limit - len(answer))
        log.add(Finding(float(short), 0.0, "finish", "length", "tokens cut off before the limit" if short else ""))
    elif stated.finish == "cancelled":
        log.unavailable("finish", "only the customer knows whether it left before the answer was whole")
    elif is_stopped is None:
        log.unavailable("finish", "a stop text is said to have ended the answer: give the request and the response")
    elif is_stopped:
        log.agrees("finish", "stop")
    else:
        log.differs("finish", "stop", "the answer ends at no stop text that was asked for")
