"""What is verified: a receipt with everything else that the verifier has about an answer, and its verification."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from tallystick.audits.answers.fingerprints import RoundingEvidence
from tallystick.audits.answers.policy import ReceiptPolicy
from tallystick.audits.answers.power import power_at, why_unmeasured
from tallystick.audits.answers.report import RUNG_OF, ReceiptReport, was_opened
from tallystick.audits.answers.request import ExpectedRequest
from tallystick.audits.answers.response import Response
from tallystick.audits.answers.sampler import SamplerEvidence
from tallystick.core.digests import Digest, digest
from tallystick.formats.hidden_states import StatesOpening
from tallystick.formats.receipt import Receipt
from tallystick.verdicts.language_model import LanguageModel
from tallystick.verdicts.verdict import Findings

Ids = tuple[int, ...]
NUMBERS: Final = "numbers"
"""The check of what a receipt states about its own sizes: whether they fit each other, the model and the policy."""


@dataclass(frozen=True)
class StatesChallenge:
    """A challenge that the verifier drew after it had the receipt, and the provider's opening.

    It is for `count` parts that the nonce selects; with `layer`, for those of this layer and the one before.
    """

    nonce: bytes
    count: int
    opening: StatesOpening
    layer: int | None = None

    @property
    def size(self) -> int:
        """The size of the opened hidden states in bytes."""
        return sum(len(part.data) * 3 // 4 for part in self.opening.parts)


@dataclass(frozen=True)
class ReceiptContext:
    """A receipt and everything else that the verifier has about the answer.

    `context_length` is that of the model; `refusal` is the provider's reason for not opening its states.
    """

    response: Response
    request: ExpectedRequest | None = None
    challenge: StatesChallenge | None = None
    context_length: int | None = None
    refusal: str | None = None

    @property
    def receipt(self) -> Receipt:
        """The receipt without its signature."""
        return self.response.receipt.receipt

    @cached_property
    def body(self) -> bytes:
        """The receipt's canonical bytes."""
        return self.receipt.to_bytes()

    @cached_property
    def identity(self) -> Digest:
        """The digest that names the receipt."""
        return digest("receipt", self.body)

    @property
    def layers(self) -> set[int]:
        """The layers whose hidden states are compared: those with fingerprints and those that are opened."""
        layers = {layer for fingerprint in self.receipt.fingerprints for layer in fingerprint.layers}
        if self.challenge is not None and self.receipt.states is not None:
            layers |= {part.layer for part in self.challenge.opening.parts} & set(self.receipt.states.layers)
        return layers


@dataclass
class Verification:
    """The verification of one receipt in progress: its inputs, the findings so far, and the evidence that adds up.

    `prompt` and `answer` are the tokens to compute with. They match the digests of the receipt; None if unknown.
    """

    context: ReceiptContext
    model: LanguageModel
    policy: ReceiptPolicy
    findings: Findings = field(default_factory=Findings)
    prompt: Ids | None = None
    answer: Ids | None = None
    evidence: SamplerEvidence | None = None
    rounding: RoundingEvidence | None = None

    @property
    def receipt(self) -> Receipt:
        """The receipt without its signature."""
        return self.context.receipt

    @property
    def known(self) -> tuple[Ids, Ids]:
        """The tokens of prompt and answer, which are known where `can_compute`."""
        assert self.prompt is not None
        assert self.answer is not None
        return self.prompt, self.answer

    @property
    def fed(self) -> Ids:
        """The tokens that the model was fed: all but the last one of the answer."""
        prompt, answer = self.known
        return (*prompt, *answer[:-1])

    @property
    def can_compute(self) -> bool:
        """Whether tokens are known and signature, model and prompt agree: a pass of another model shows nothing."""
        against = {each.name for each in self.findings.seen if not each.agrees and not each.advisory}
        is_known = bool(self.prompt and self.answer) and self.is_promised
        return is_known and self.numbers_fit and not against & {"signature", "model", "prompt"}

    def judging_numbers(self) -> AbstractContextManager[None]:
        """Run a block that raises where the receipt's numbers do not fit, or ask for too much."""
        return self.findings.judging(NUMBERS)

    @property
    def numbers_fit(self) -> bool:
        """Whether nothing speaks against computing with the receipt's numbers."""
        checks = [each.name for each in self.findings.seen] + [each.check for each in self.findings.undecided]
        return NUMBERS not in checks

    @property
    def is_doubtful(self) -> bool:
        """Whether a higher rung of the ladder may settle what could not be checked."""
        doubts = [each for each in self.findings.undecided if each.check in RUNG_OF and not each.lasting]
        return self.can_compute and bool(doubts) and not self.findings.rejected

    @property
    def is_promised(self) -> bool:
        """Whether the receipt names the verifier's model, by its present root or by that of an earlier card."""
        return any(each.where == "model root" and each.agrees for each in self.findings.seen)

    def report(self, rung: int) -> ReceiptReport:
        """The report on everything checked so far."""
        receipt, findings, card = self.receipt, self.findings, self.model.card
        tokens, opened = receipt.answer.tokens.count, was_opened(findings.seen)
        unmeasured = why_unmeasured(card, receipt, self.policy, rung)
        return ReceiptReport(
            receipt=self.context.identity,
            model=card.identity,
            sequence=receipt.sequence,
            tokens=tokens,
            rung=rung,
            findings=tuple(findings.seen),
            missing=tuple(findings.undecided),
            not_checked=tuple(findings.not_checked),
            assumptions=tuple(findings.assumptions),
            costs=tuple(findings.costs),
            evidence=self.evidence,
            rounding=self.rounding,
            power=() if unmeasured else power_at(card, tokens, wide=self.rounding is not None, opened=opened),
            unmeasured=unmeasured,
        )
