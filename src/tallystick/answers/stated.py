"""What a receipt states about the sampler, judged without knowing what was asked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tallystick.answers.policy import ReceiptPolicy
from tallystick.answers.report import CheckLog
from tallystick.sampling.margin import stretch
from tallystick.transcripts.receipt import Receipt

if TYPE_CHECKING:
    from tallystick.answers.request import ExpectedRequest

STRETCH_MAX: Final = 2.0
"""How many times the tie band may be widened by a repetition penalty that nobody is known to have asked for."""


def check_form(log: CheckLog, receipt: Receipt, policy: ReceiptPolicy) -> None:
    """Where the policy was promised a form, the receipt states no other; one that states none is judged by it."""
    stated, promised = receipt.sampler.form, policy.sampler.form
    if promised is not None and stated != "unknown" and not receipt.sampler.is_greedy:
        log.compare("settings", "form", stated, promised)


def check_penalty(log: CheckLog, receipt: Receipt, asked: ExpectedRequest | None) -> None:
    """What is stated widens the tie band little, unless the customer asked for it."""
    penalty = receipt.sampler.repetition_penalty
    is_asked = asked is not None and asked.repetition_penalty is not None
    if stretch(receipt.sampler) > STRETCH_MAX and not is_asked:
        line = f"the receipt states a repetition penalty of {penalty:g}, under which tokens show little"
        log.unavailable("settings", f"{line}: give a request that asks for it")


def note_missing_request(log: CheckLog, policy: ReceiptPolicy) -> None:
    """Without a request nothing says what was asked for; what the policy demands of it stays open."""
    log.not_checked.append("whether prompt, settings and limit are those that were asked for: give the request")
    if policy.nonce == "required":
        log.unavailable("nonce", "the policy asks for a nonce of the customer's: give the request")
    if policy.seed == "customer":
        log.unavailable("settings", "the policy asks for a seed of the customer's: give the request")
