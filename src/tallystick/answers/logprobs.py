"""Compares the log probabilities that a response reports with those of the verifier's own pass.

No receipt binds them: they are compared because they are delivered with it. They are those of the model's logits before
the sampler changes them. The log probability of a token moves by no more than differences of logits do.

Servers list the most likely tokens in two ways: alone, or (vLLM) the chosen token first and then the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from tallystick.answers.report import CheckLog, shown
from tallystick.answers.response import DeliveredLogprob, DeliveredLogprobs
from tallystick.answers.sampler import SamplerRule
from tallystick.tolerances.tolerance import Finding
from tallystick.workloads.language_model import LanguageModel, Rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Row = NDArray[np.float64]
LEAST: Final = -100.0
"""What is less likely counts as this: the API has no infinity."""
BEFORE: Final = 4
"""Tokens before one that may be a piece of the same character."""
CANDIDATES_MAX: Final = 4096
Spell = Callable[[int], frozenset[str]]


def check_logprobs(
    log: CheckLog, delivered: DeliveredLogprobs, logits: Rows, answer: Sequence[int], rule: SamplerRule, undecided: str
) -> None:
    """Check each token's log probability, and those of the most likely ones beside it.

    Args:
        log: gets one finding, on the largest difference; it decides nothing if `undecided` gives a reason.
        delivered: what the response reports.
        logits: the verifier's own, F32[n, V].
        answer: the n token ids.
        rule: its tie band times `far` is the largest honest difference.
        undecided: why differences decide nothing; empty if they decide.
    """
    listed = delivered.listed
    if len(listed) != len(answer):
        log.differs("logprobs", "", f"for {len(listed)} tokens, and the answer has {len(answer)}")
        return
    is_whole = delivered.content is not None  # in a completion, tokens that look alike share an entry
    apart = [_apart(_own(row), token, each, is_whole) for row, token, each in zip(logits, answer, listed, strict=True)]
    worst = int(np.argmax(apart))
    detail = "difference of a log probability; no receipt binds them"
    log.add(Finding(apart[worst], _limit(rule), "logprobs", f"token {worst}", detail, advisory=bool(undecided)))


def check_spelling(
    log: CheckLog,
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
        log.unavailable("logprobs", "the names of their tokens: the model has no tokenizer at hand")
        return

    def is_name(entry: DeliveredLogprob, token: int, place: int) -> bool:
        known = spell(token)
        name = entry.token
        if name is not None and name not in known:
            text = decode([*answer[max(0, place - BEFORE) : place], token])
            if not (any("\ufffd" in each for each in known) and text.endswith(name)):
                return False
        if entry.bytes is None:
            return True
        told = bytes(entry.bytes)
        return told == (name or "").encode() or told.decode(errors="replace") in known

    for place, (row, token, entry) in enumerate(zip(logits, answer, delivered.listed, strict=False)):
        if not is_name(entry, token, place):
            _say(log, f"token {place}", entry)
            return
        own = _own(row)
        for each in entry.top_logprobs:
            if not any(is_name(each, other, place) for other in _near(own, each.logprob, _limit(rule), token)):
                _say(log, f"token {place}, one of the most likely", each)
                return
    log.agrees("logprobs", "names")


def _say(log: CheckLog, where: str, entry: DeliveredLogprob) -> None:
    name = entry.token if entry.token is not None else list(entry.bytes or ())
    log.unavailable("logprobs", f"{where} is named {shown(repr(name))}, and the tokenizer has no such name for it")


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
    top = sorted((max(each.logprob, LEAST) for each in entry.top_logprobs), reverse=True)
    chosen = abs(own[token] - max(entry.logprob, LEAST))
    if not is_whole:
        return float(max([chosen, *(np.abs(own - each).min() for each in top)]))
    largest = np.sort(own)[::-1]
    alone = [abs(mine - theirs) for mine, theirs in zip(largest, top, strict=False)]
    place = int(np.argmin([abs(each - own[token]) for each in top])) if top else 0
    others = np.sort(np.delete(own, token))[::-1]
    beside = [abs(mine - theirs) for mine, theirs in zip(others, top[:place] + top[place + 1 :], strict=False)]
    first = [abs(top[place] - own[token])] if top else []
    return float(max(chosen, min(max(alone, default=0.0), max([*first, *beside], default=0.0))))
