"""Judges the answer to one request, or its several answers, in the same way for `tallystick.verify` and `wrap`."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from tallystick.answers.policy import ReceiptPolicy
from tallystick.answers.report import ReceiptReport
from tallystick.answers.stream import Judge, StreamReport, two_rungs, verify_stream
from tallystick.answers.verify import ReceiptContext, Verification, begin_verification, check_statements
from tallystick.workloads.language_model import LanguageModel

NONCE_BYTES: Final = 16


def judge_answer(
    contexts: Sequence[ReceiptContext],
    model: LanguageModel,
    policy: ReceiptPolicy,
    judge: Judge = two_rungs,
    not_checked: tuple[str, ...] = (),
) -> ReceiptReport | StreamReport:
    """The report on one receipt, or on those of several answers to one request; `not_checked` is said in each.

    Raises as `verify_receipt`.
    """

    def judged(found: Verification) -> ReceiptReport:
        report = judge(found)
        return replace(report, not_checked=(*report.not_checked, *not_checked))

    if len(contexts) > 1:
        whole = policy.model_copy(update={"audit_sample": 1.0})
        return verify_stream(contexts, model, whole, secrets.token_bytes(NONCE_BYTES), judged)
    found = begin_verification(contexts[0], model, policy)
    check_statements(found)
    return judged(found)
