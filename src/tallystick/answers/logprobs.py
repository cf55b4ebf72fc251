"""Compares the log probabilities that a response reports with those of the verifier's own pass.

No receipt binds them: they are compared because they are delivered with it. They are those of the model's logits before
the sampler changes them. The log probability of a token moves by no more than differences of logits do.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tallystick.answers.report import CheckLog
from tallystick.answers.response import DeliveredLogprobs
from tallystick.answers.sampler import SamplerRule
from tallystick.tolerances.tolerance import Finding
from tallystick.workloads.language_model import Rows

LEAST = -100.0
"""What is less likely counts as this: the API has no infinity."""


def check_logprobs(
    log: CheckLog, delivered: DeliveredLogprobs, logits: Rows, answer: Sequence[int], rule: SamplerRule, undecided: str
) -> None:
    """Check each token's log probability, and in chat completions those of the most likely ones in order.

    Args:
        log: gets one finding, on the largest difference; it decides nothing if `undecided` gives a reason.
        delivered: what the response reports.
        logits: the verifier's own, F32[n, V].
        answer: the n token ids.
        rule: its tie band times `far` is the largest honest difference.
        undecided: why differences decide nothing; empty if they decide.
    """
    assert rule.band is not None
    reported = delivered.of_tokens
    if len(reported) != len(answer):
        log.differs("logprobs", "", f"for {len(reported)} tokens, and the answer has {len(answer)}")
        return
    apart = [_apart(*each) for each in zip(logits, answer, reported, delivered.of_the_top, strict=True)]
    worst = int(np.argmax(apart))
    detail = "difference of a log probability; no receipt binds them"
    finding = Finding(
        apart[worst], rule.band * rule.far, "logprobs", f"token {worst}", detail, advisory=bool(undecided)
    )
    log.add(finding)


def _apart(row: Rows, token: int, reported: float, top: Sequence[float]) -> float:
    """The largest difference in one row, F32[V]."""
    x = row.astype(np.float64)
    own = np.maximum(x - x.max() - np.log(np.exp(x - x.max()).sum()), LEAST)
    largest = np.sort(own)[::-1][: len(top)]
    pairs = [(own[token], reported), *zip(largest, sorted(top, reverse=True), strict=True)]
    return float(max(abs(mine - max(theirs, LEAST)) for mine, theirs in pairs))
