"""Verifies one receipt: its statements, then sampler and fingerprints from one pass over prompt and answer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Final, Literal

from tallystick.audits.answers.cheaper_tokens import CHEAPER, shows_weights, with_cheaper
from tallystick.audits.answers.delivery import check_delivery, check_finish, check_logprobs, check_spelling
from tallystick.audits.answers.fingerprints import (
    NAME as ROUNDING,
    RoundingEvidence,
    judge_fingerprints,
    judge_rounding,
    unjudged_fingerprints,
    unseen_changes,
)
from tallystick.audits.answers.identity import SIGNATURE_BYTES, check_model, check_signer
from tallystick.audits.answers.policy import STANDARD_DEMANDS, ReceiptPolicy
from tallystick.audits.answers.power import CheatPower, power_at, unmeasured_rounding, unmeasured_tokens, why_unmeasured
from tallystick.audits.answers.report import RUNG_OF, ReceiptReport, was_opened
from tallystick.audits.answers.response import BARE, Response
from tallystick.audits.answers.sampler import SamplerEvidence, SamplerRule, judge_sampler
from tallystick.audits.answers.statements import (
    check_consistency,
    check_excuses,
    check_form,
    check_request,
    check_sizes,
    check_vocabulary,
    masks_of,
    note_missing_request,
    note_statements,
)
from tallystick.audits.answers.states import (
    NAME as RERUN,
    Ids,
    KnownTokens,
    judge_challenge,
    judge_reruns,
    known_tokens,
)
from tallystick.core.digests import Digest, digest
from tallystick.formats.receipt import Receipt, Sampler, SignedReceipt
from tallystick.verdicts.fingerprints import rows_for
from tallystick.verdicts.language_model import LanguageModel, Prefill, Rows, TokenMasks
from tallystick.verdicts.verdict import Findings

if TYPE_CHECKING:
    from tallystick.audits.answers.request import ExpectedRequest
    from tallystick.audits.answers.states import StatesChallenge


Rung = Literal[1, 2]
TOKEN_BYTES: Final = 4
NUMBERS: Final = "numbers"
"""The check of what a receipt states about its own sizes: whether they fit each other, the model and the policy."""
NOTHING: Final = KnownTokens(None, None)
FORGEABLE: Final = (
    "nobody forged the fingerprints: their directions were known beforehand, and whoever runs the promised model "
    "beside another one can meet them; a challenge of committed states cannot be met so"
)


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

    @property
    def layers(self) -> set[int]:
        """The layers whose hidden states are compared: those with fingerprints and those that are opened."""
        receipt, found = self.receipt, {layer for each in self.receipt.fingerprints for layer in each.layers}
        if self.challenge is not None and receipt.states is not None:
            found |= {part.layer for part in self.challenge.opening.parts} & set(receipt.states.layers)
        return found

    @cached_property
    def identity(self) -> Digest:
        """The digest that names the receipt."""
        return digest("receipt", self.body)


@dataclass
class Verification:
    """The verification of one receipt in progress: its inputs, the findings, and the tokens to compute with."""

    context: ReceiptContext
    model: LanguageModel
    policy: ReceiptPolicy
    findings: Findings
    tokens: KnownTokens = NOTHING
    evidence: SamplerEvidence | None = None
    rounding: RoundingEvidence | None = None

    @property
    def can_compute(self) -> bool:
        """Whether tokens are known and signature, model and prompt agree: a pass of another model shows nothing."""
        names = {each.name for each in self.findings.seen if not each.agrees and not each.advisory}
        is_known = bool(self.tokens.prompt and self.tokens.answer) and self.is_promised
        return is_known and self.numbers_fit and not names & {"signature", "model", "prompt"}

    @property
    def numbers_fit(self) -> bool:
        """Whether nothing speaks against computing with the receipt's numbers."""
        named = [each.name for each in self.findings.seen] + [each.check for each in self.findings.undecided]
        return NUMBERS not in named

    @property
    def is_doubtful(self) -> bool:
        """Whether a higher rung of the ladder may settle what could not be checked."""
        doubts = [each for each in self.findings.undecided if each.check in RUNG_OF and not each.lasting]
        return self.can_compute and bool(doubts) and not self.findings.rejected

    @property
    def is_promised(self) -> bool:
        """Whether the receipt names the verifier's model, by its present root or by that of an earlier card."""
        return any(each.where == "model root" and each.agrees for each in self.findings.seen)

    @property
    def _power(self) -> tuple[CheatPower, ...]:
        tokens, opened = self.context.receipt.answer.tokens.count, was_opened(self.findings.seen)
        return power_at(self.model.card, tokens, wide=self.rounding is not None, opened=opened)

    def report(self, rung: int) -> ReceiptReport:
        """The report on everything checked so far."""
        receipt, findings, card = self.context.receipt, self.findings, self.model.card
        unmeasured = why_unmeasured(card, receipt, self.policy, rung)
        return ReceiptReport(
            self.context.identity,
            self.model.card.identity,
            receipt.sequence,
            receipt.answer.tokens.count,
            rung,
            tuple(findings.seen),
            tuple(findings.undecided),
            tuple(findings.not_checked),
            tuple(findings.assumptions),
            tuple(findings.costs),
            self.evidence,
            self.rounding,
            () if unmeasured else self._power,
            unmeasured,
        )


def verify_receipt(
    signed: SignedReceipt,
    model: LanguageModel,
    policy: ReceiptPolicy | None = None,
    request: ExpectedRequest | None = None,
    *,
    response: Response | None = None,
    challenge: StatesChallenge | None = None,
    context_length: int | None = None,
    rung: Rung = 2,
) -> ReceiptReport:
    """Judge a receipt against the promised model, with one pass over its tokens.

    `response` was delivered with the receipt; `context_length` is that of the model. Rung 1 skips the fingerprints.

    Raises:
        UnavailableError: the model is not one that the policy accepts.
        UsageError: the model has no chat template for the request.
    """
    context = ReceiptContext(response or Response(receipt=signed), request, challenge, context_length)
    return verification_of(context, model, policy or ReceiptPolicy(), rung).report(rung)


def verification_of(
    context: ReceiptContext, model: LanguageModel, policy: ReceiptPolicy, rung: Rung = 2
) -> Verification:
    """As `verify_receipt`, but returns the verification, which can be continued."""
    found = begin_verification(context, model, policy)
    check_statements(found)
    compute(found, rung)
    return found


def begin_verification(context: ReceiptContext, model: LanguageModel, policy: ReceiptPolicy) -> Verification:
    """A verification in which only the signature was checked."""
    found = Verification(context, model, policy, Findings())
    with found.findings.timing("signature", SIGNATURE_BYTES):
        check_signer(found.findings, context.response.receipt, context.body, policy)
    return found


def check_statements(found: Verification) -> None:
    """Check what needs no pass: bounds, model root, request, delivery, end. Raises as `verify_receipt`."""
    context, model, policy, findings = found.context, found.model, found.policy, found.findings
    receipt = context.receipt
    with findings.judging(NUMBERS):
        check_consistency(receipt)
    with findings.timing("model"):
        check_model(findings, context, model, policy)
    if findings.rejected:
        return
    with findings.judging(NUMBERS):
        check_sizes(receipt, model.card, policy, context.context_length, context.layers)
    if not found.numbers_fit:
        return
    with findings.timing("request", len(context.body)):
        check_form(findings, receipt, policy)
        check_excuses(findings, receipt, context.request)
        note_statements(findings, context.response, context.request)
        own_prompt = _check_request(found)
        _check_delivery(findings, context.response)
        found.tokens = known_tokens(findings, context.response, own_prompt)
        with findings.judging(NUMBERS):
            check_vocabulary(found.tokens, receipt.sampler, model.card)
        if found.numbers_fit and found.tokens.answer is not None:
            prompt, answer = found.tokens.prompt or (), found.tokens.answer
            check_finish(findings, context.response, prompt, answer, model, context.request)


def _check_request(found: Verification) -> Ids | None:
    """Compare the receipt with the request; returns the prompt by the verifier's own tokenizer."""
    context = found.context
    if context.request is None:
        note_missing_request(found.findings, found.policy)
        return None

    return check_request(found.findings, context.response, context.request, found.model, found.policy)


def _check_delivery(findings: Findings, response: Response) -> None:
    if response.is_bare:
        findings.not_checked.append(BARE)
        return

    check_delivery(findings, response)


def compute(found: Verification, rung: Rung = 2) -> None:
    """Make one pass with the needed layers and judge its results; call `check_statements` before."""
    if not found.can_compute:
        _not_computed(found)
        return
    prompt, answer = found.tokens.prompt, found.tokens.answer
    assert prompt is not None
    assert answer is not None
    findings, receipt = found.findings, found.context.receipt
    passed = _pass(found, (*prompt, *answer[:-1]), rung)
    with findings.timing("sampler", TOKEN_BYTES * len(answer)):
        logits = passed.logits[-len(answer) :]
        rule, sampler = sampler_rule(found), promised_sampler(receipt.sampler, found.policy)
        open_line, ends = unmeasured_tokens(found.policy.sampler, found.model.card), found.model.end_tokens
        masks, lost = _masks(found)
        found.evidence = judge_sampler(logits, prompt, answer, sampler, rule, ends, open_line, masks, lost)
    wide = _wide(found) if rung > 1 else None
    true = None if wide is None else _wide_pass(found, wide, (*prompt, *answer[:-1]), logits, sampler)
    if (reported := found.context.response.choice.logprobs) is not None:
        check_logprobs(findings, reported, logits, answer, rule, open_line)
        check_spelling(findings, reported, logits, answer, rule, found.model)
    for finding in found.evidence.findings:
        findings.note(finding)
    for line in found.evidence.unavailable:
        findings.leave_open("evidence", line.removeprefix("evidence: "))
    findings.not_checked += found.evidence.not_checked
    findings.assumptions.append(error_rates(found.evidence.rule))
    if rung > 1:
        _judge_fingerprints(found, passed)
        _judge_rounding(found, passed, true)
        _judge_states(found, passed, wide, (*prompt, *answer[:-1]))
    elif receipt.fingerprints:
        findings.not_checked.append("fingerprints: they stand on rung 2")
    _check_demands(found, rung)


def _masks(found: Verification) -> tuple[TokenMasks | None, str]:
    """The masks of the receipt's grammar, made from the request; or why there are none."""
    grammar = found.context.receipt.sampler.grammar
    if grammar is None:
        return None, ""

    return masks_of(grammar, found.context.request, found.model)


def error_rates(rule: SamplerRule) -> str:
    """A line that states the largest error rates of the judgement of the sampler."""
    return (
        f"at most {rule.rates.points[0][1]:g} of honest tokens are not the verifier's own choice, and {rule.honest:g} "
        f"lie beyond the tie band of {rule.band:g} logits; then an honest provider is accused with probability "
        f"{rule.alpha:g} at most over all its tokens, and one with {rule.dishonest:.0%} of them beyond the band is "
        f"accepted with probability {rule.beta:g} at most"
    )


def sampler_rule(found: Verification) -> SamplerRule:
    """The policy's rule with the tie band of the model's dtype; `seed` is `customer` if the request named a seed.

    If the policy requires the customer's seed, the seed is checked even where the rule says `unknown`.
    """
    rule, asked = found.policy.sampler.for_model(found.model.card), found.context.request
    if rule.seed == "unknown" and found.policy.seed == "customer":
        rule = rule.model_copy(update={"seed": "provider"})
    is_customers = asked is not None and asked.seed is not None
    return rule.model_copy(update={"seed": "customer"}) if is_customers and rule.seed == "provider" else rule


def promised_sampler(stated: Sampler, policy: ReceiptPolicy) -> Sampler:
    """The sampler to judge by: the stated one; if its form is unknown, with the form that the policy was promised."""
    form = policy.sampler.form
    return stated if form is None or stated.form != "unknown" else stated.model_copy(update={"form": form})


def _pass(found: Verification, tokens: Ids, rung: Rung) -> Prefill:
    """One pass over all tokens that were fed; it returns only the rows and layers that are judged, and the logits."""
    context = found.context
    layers = {each for each in context.layers if each <= found.model.card.layers} if rung > 1 else set()
    first, states = context.receipt.request.prompt.count - 1, context.receipt.states
    if rung > 1 and context.challenge is not None and states is not None:
        first = 0 if states.prompt else first
    with found.findings.timing("prefill"):
        return found.model.prefill(tokens, first, layers)


def _judge_fingerprints(found: Verification, passed: Prefill) -> None:
    findings, receipt, card = found.findings, found.context.receipt, found.model.card
    if not receipt.fingerprints:
        return
    rule = found.policy.fingerprints.for_model(card)
    with (
        findings.timing("fingerprint", sum(len(each.raw) for each in receipt.fingerprints)),
        findings.judging("fingerprint"),
    ):
        for finding in judge_fingerprints(receipt, partial(rows_for, passed=passed, final=card.layers), rule, card):
            findings.note(finding)
        for line in unjudged_fingerprints(receipt, rule, card):
            findings.leave_open("fingerprint", line)
        findings.not_checked += filter(None, [unseen_changes(receipt, rule, card)])
    findings.assumptions.append(FORGEABLE)


def _wide(found: Verification) -> LanguageModel | None:
    """The promised model in F32, where the policy wants its pass and there is a scale for it."""
    receipt, card, rule = found.context.receipt, found.model.card, found.policy.fingerprints
    if not rule.wide or not (receipt.fingerprints or found.context.challenge) or card.dtype == "F32":
        return None
    wide = found.model.widened()
    if wide is None or not rule.rounding_for(card):
        why = "no pass in F32 here" if wide is None else unmeasured_rounding(card)
        found.findings.not_checked.append(f"{ROUNDING}: {why}")
        return None
    return wide


def _wide_pass(found: Verification, wide: LanguageModel, fed: Ids, logits: Rows, sampler: Sampler) -> Prefill:
    """The pass in F32, and the evidence about cheaper weights that it gives."""
    receipt, card, answer = found.context.receipt, found.model.card, found.tokens.answer
    first = receipt.request.prompt.count - 1
    layers = {layer for each in receipt.fingerprints for layer in each.layers if layer <= card.layers}
    with found.findings.timing("wide pass"):
        true = wide.prefill(fed, first, layers)
    assert found.evidence is not None
    assert answer is not None
    if shows_weights(found.evidence, sampler):
        with found.findings.timing("wide pass"):
            coarse = {name: wide.in_fewer_bits(name) for name in CHEAPER}
            cheaper = {name: each.prefill(fed, first).logits for name, each in coarse.items() if each is not None}
        if cheaper:
            seen = (logits, true.logits, cheaper)
            found.evidence = with_cheaper(found.evidence, found.tokens.prompt or (), answer, sampler, seen)
    return true


def _judge_rounding(found: Verification, passed: Prefill, true: Prefill | None) -> None:
    findings, receipt = found.findings, found.context.receipt
    if true is None or not receipt.fingerprints:
        return
    with findings.timing(ROUNDING), findings.judging(ROUNDING):
        found.rounding = judge_rounding(receipt, passed, true, found.policy.fingerprints, found.model.card)
    if found.rounding is not None:
        findings.note(found.rounding.finding)
        findings.assumptions.append(found.rounding.assumption)


def _judge_states(found: Verification, passed: Prefill, wide: LanguageModel | None, fed: Ids) -> None:
    findings, context = found.findings, found.context
    if context.challenge is not None:
        model, policy, challenge = found.model, found.policy, context.challenge
        with findings.judging("states"):
            judge_challenge(findings, context.receipt.states, challenge, passed.hidden, model.card, policy)
        if wide is not None and not findings.rejected:
            with findings.timing(RERUN), findings.judging(RERUN):
                judge_reruns(findings, context.receipt, challenge, fed, (model, wide), policy.fingerprints)
    elif context.refusal is not None:
        findings.leave_open("states", f"the provider does not open its states: {context.refusal}")
    elif context.receipt.states is not None:
        findings.not_checked.append("the hidden states that the receipt commits to: challenge the provider")


def _check_demands(found: Verification, rung: Rung) -> None:
    findings, asked = found.findings, found.policy.demands
    if asked is None:
        asked = STANDARD_DEMANDS if rung > 1 else ()
    for demand in asked:
        if demand.required and rung < 2:
            findings.leave_open("fingerprint", f"the policy asks for {demand}, on rung 2")
        elif not demand.is_met(found.context.receipt, found.model.card.layers):
            line = f"the receipt carries no {demand}{demand.shows}; a policy's `demands` say what has to be there"
            findings.leave_open("fingerprint", line, lasting=True) if demand.required else findings.not_checked.append(
                f"fingerprint: {line}"
            )


def _not_computed(found: Verification) -> None:
    findings = found.findings
    if findings.rejected:
        findings.not_checked.append("sampler and fingerprints: what the receipt states is not what was promised")
    elif not found.numbers_fit:
        findings.not_checked.append("sampler and fingerprints: the pass that they need was not made")
    elif not found.is_promised:
        findings.not_checked.append("sampler and fingerprints: the model that the receipt names is not at hand")
    elif not found.context.receipt.answer.tokens.count:
        findings.leave_open("sampler", "an answer of no tokens shows nothing")
    else:
        findings.leave_open("sampler", "the tokens are not known")
