"""Checks of what a receipt states about the sampler that need no request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tallystick.answers.policy import ReceiptPolicy
from tallystick.answers.report import CheckLog, shown
from tallystick.answers.response import Response
from tallystick.sampling.margin import stretch
from tallystick.transcripts.receipt import Receipt

if TYPE_CHECKING:
    from tallystick.answers.request import ExpectedRequest

STRETCH_MAX: Final = 2.0
"""The largest factor by which a repetition penalty that is not in the request may widen the tie band."""


def check_form(log: CheckLog, receipt: Receipt, policy: ReceiptPolicy) -> None:
    """Check that the receipt does not state another form than the promised one; `unknown` is judged as promised."""
    stated, promised = receipt.sampler.form, policy.sampler.form
    if promised is not None and stated != "unknown" and not receipt.sampler.is_greedy:
        log.compare("settings", "form", stated, promised)


def check_excuses(log: CheckLog, receipt: Receipt, asked: ExpectedRequest | None) -> None:
    """Check that nothing stated makes other tokens right unless the customer asked for it.

    A penalty may widen the tie band by at most `STRETCH_MAX`; adjustments are compared with those of the request.
    """
    sampler = receipt.sampler
    is_asked = asked is not None and asked.repetition_penalty is not None
    if stretch(sampler) > STRETCH_MAX and not is_asked:
        line = (
            f"the receipt states a repetition penalty of {sampler.repetition_penalty:g}, under which tokens show little"
        )
        log.unavailable("settings", f"{line}: give a request that asks for it")
    if sampler.adjustments and asked is None:
        line = f"the receipt states {', '.join(sampler.adjustments)}, under which other tokens are right"
        log.unavailable("settings", f"{line}: give the request that asks for it")


def note_statements(log: CheckLog, response: Response, asked: ExpectedRequest | None) -> None:
    """Log, in one line, what receipt and response state and nothing is compared with."""
    names = ["engine, batch and number in the receipt"]
    told = [each.where for each in response.remarks if each.kind == "stated"]
    if response.system_fingerprint not in (None, response.receipt.receipt.model):
        told.append("system_fingerprint")
    name = None if asked is None else asked.model
    if response.model not in (None, name):
        told.append("model" if name is None else f"model ({shown(repr(response.model))} for {shown(repr(name))})")
    names += [f"{', '.join(sorted(told))} in the response"] if told else []
    log.not_checked.append(f"what the provider states of itself: {'; '.join(names)}")


def note_missing_request(log: CheckLog, policy: ReceiptPolicy) -> None:
    """Log which checks are impossible without the request."""
    log.not_checked.append("whether prompt, settings and limit are those that were asked for: give the request")
    if policy.nonce == "required":
        log.unavailable("nonce", "the policy asks for a nonce of the customer's: give the request")
    if policy.seed == "customer":
        log.unavailable("settings", "the policy asks for a seed of the customer's: give the request")
