"""Verifies one receipt: its statements, then sampler and fingerprints from one pass over prompt and answer."""

from __future__ import annotations

from functools import partial
from typing import Final, Literal

from tallystick.audits.answers.delivery import check_delivery, check_finish, check_logprobs, check_spelling
from tallystick.audits.answers.fingerprints import (
    ROUNDING,
    judge_fingerprints,
    judge_rounding,
    unjudged_fingerprints,
    unseen_changes,
)
from tallystick.audits.answers.likelihoods import CHEAPER
from tallystick.audits.answers.limits import SamplerRule
from tallystick.audits.answers.policy import STANDARD_DEMANDS, ReceiptPolicy
from tallystick.audits.answers.power import unmeasured_rounding, unmeasured_tokens
from tallystick.audits.answers.report import ReceiptReport
from tallystick.audits.answers.request import ExpectedRequest
from tallystick.audits.answers.response import BARE, Response
from tallystick.audits.answers.sampler import judge_sampler, shows_weights, with_cheaper
from tallystick.audits.answers.statements import (
    SIGNATURE_BYTES,
    check_consistency,
    check_model,
    check_request,
    check_sampler,
    check_signer,
    check_sizes,
    check_vocabulary,
    masks_of,
    note_statements,
)
from tallystick.audits.answers.states import RERUN, judge_challenge, judge_reruns, known_tokens
from tallystick.audits.answers.subject import ReceiptContext, StatesChallenge, Verification
from tallystick.formats.receipt import Sampler, SignedReceipt
from tallystick.verdicts.fingerprints import rows_for
from tallystick.verdicts.language_model import LanguageModel, Prefill, Rows

Rung = Literal[1, 2]
TOKEN_BYTES: Final = 4
FORGEABLE: Final = (
    "nobody forged the fingerprints: their directions were known beforehand, and whoever runs the promised model "
    "beside another one can meet them; a challenge of committed states cannot be met so"
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
    case = begin_verification(context, model, policy)
    check_statements(case)
    compute(case, rung)
    return case


def begin_verification(context: ReceiptContext, model: LanguageModel, policy: ReceiptPolicy) -> Verification:
    """A verification in which only the signature was checked."""
    case = Verification(context, model, policy)
    with case.findings.timing("signature", SIGNATURE_BYTES):
        check_signer(case)
    return case


def check_statements(case: Verification) -> None:
    """Check what needs no pass: bounds, model root, request, delivery, end. Raises as `verify_receipt`."""
    context, findings, receipt = case.context, case.findings, case.receipt
    with case.judging_numbers():
        check_consistency(receipt)
    with findings.timing("model"):
        check_model(case)
    if findings.rejected:
        return
    with case.judging_numbers():
        check_sizes(receipt, case.model.card, case.policy, context.context_length, context.layers)
    if not case.numbers_fit:
        return
    with findings.timing("request", len(context.body)):
        check_sampler(case)
        note_statements(case)
        own_prompt = check_request(case)
        if context.response.is_bare:
            findings.not_checked.append(BARE)
        else:
            check_delivery(findings, context.response)
        case.prompt, case.answer = known_tokens(case, own_prompt)
        with case.judging_numbers():
            check_vocabulary(case)
        if case.numbers_fit and case.answer is not None:
            check_finish(case, case.prompt or (), case.answer)


def compute(case: Verification, rung: Rung = 2) -> None:
    """Make one pass with the needed layers and judge its results; call `check_statements` before."""
    if not case.can_compute:
        _note_not_computed(case)
        return
    prompt, answer = case.known
    findings, receipt, policy, card = case.findings, case.receipt, case.policy, case.model.card
    passed = _pass(case, rung)
    logits = passed.logits[-len(answer) :]
    with findings.timing("sampler", TOKEN_BYTES * len(answer)):
        rule, sampler = sampler_rule(case), promised_sampler(receipt.sampler, policy)
        undecided = unmeasured_tokens(policy.sampler, card)
        given = (rule, case.model.end_tokens, undecided, masks_of(case))
        case.evidence = judge_sampler(logits, prompt, answer, sampler, *given)
    wide = _wide(case) if rung > 1 else None
    true = None if wide is None else _wide_pass(case, wide, logits, sampler)
    if (reported := case.context.response.choice.logprobs) is not None:
        check_logprobs(findings, reported, logits, answer, rule, undecided)
        check_spelling(findings, reported, logits, answer, rule, case.model)
    for finding in case.evidence.findings:
        findings.note(finding)
    for line in case.evidence.unavailable:
        findings.leave_open("evidence", line.removeprefix("evidence: "))
    findings.not_checked += case.evidence.not_checked
    findings.assumptions.append(_error_rates(case.evidence.rule))
    if rung > 1:
        _judge_fingerprints(case, passed, true)
        _judge_states(case, passed, wide)
    elif receipt.fingerprints:
        findings.not_checked.append("fingerprints: they stand on rung 2")
    _check_demands(case, rung)


def two_rungs(case: Verification) -> ReceiptReport:
    """Judge tokens and fingerprints with one pass; call `check_statements` before."""
    compute(case)
    return case.report(2)


def _error_rates(rule: SamplerRule) -> str:
    """A line that states the largest error rates of the judgement of the sampler."""
    return (
        f"at most {rule.rates.points[0][1]:g} of honest tokens are not the verifier's own choice, and {rule.honest:g} "
        f"lie beyond the tie band of {rule.band:g} logits; then an honest provider is accused with probability "
        f"{rule.alpha:g} at most over all its tokens, and one with {rule.dishonest:.0%} of them beyond the band is "
        f"accepted with probability {rule.beta:g} at most"
    )


def sampler_rule(case: Verification) -> SamplerRule:
    """The policy's rule with the tie band of the model's dtype; `seed` is `customer` if the request named a seed.

    If the policy requires the customer's seed, the seed is checked even where the rule says `unknown`.
    """
    rule, request = case.policy.sampler.for_model(case.model.card), case.context.request
    if rule.seed == "unknown" and case.policy.seed == "customer":
        rule = rule.model_copy(update={"seed": "provider"})
    is_customers = request is not None and request.seed is not None
    return rule.model_copy(update={"seed": "customer"}) if is_customers and rule.seed == "provider" else rule


def promised_sampler(stated: Sampler, policy: ReceiptPolicy) -> Sampler:
    """The sampler to judge by: the stated one; if its form is unknown, with the form that the policy was promised."""
    form = policy.sampler.form
    return stated if form is None or stated.form != "unknown" else stated.model_copy(update={"form": form})


def _pass(case: Verification, rung: Rung) -> Prefill:
    """One pass over all tokens that were fed; it returns only the rows and layers that are judged, and the logits."""
    context, states, layers = case.context, case.receipt.states, set[int]()
    first = case.receipt.request.prompt.count - 1
    if rung > 1:
        layers = {layer for layer in context.layers if layer <= case.model.card.layers}
        if context.challenge is not None and states is not None and states.prompt:
            first = 0
    with case.findings.timing("prefill"):
        return case.model.prefill(case.fed, first, layers)


def _wide(case: Verification) -> LanguageModel | None:
    """The promised model in F32, where the policy wants its pass and there is a scale for it."""
    card, rule = case.model.card, case.policy.fingerprints
    if not rule.wide or not (case.receipt.fingerprints or case.context.challenge) or card.dtype == "F32":
        return None
    wide = case.model.widened()
    if wide is None or not rule.rounding_for(card):
        why = "no pass in F32 here" if wide is None else unmeasured_rounding(card)
        case.findings.not_checked.append(f"{ROUNDING}: {why}")
        return None
    return wide


def _wide_pass(case: Verification, wide: LanguageModel, logits: Rows, sampler: Sampler) -> Prefill:
    """The pass in F32, and the evidence about cheaper weights that it gives."""
    first, final = case.receipt.request.prompt.count - 1, case.model.card.layers
    layers = {layer for each in case.receipt.fingerprints for layer in each.layers if layer <= final}
    with case.findings.timing("wide pass"):
        true = wide.prefill(case.fed, first, layers)
    assert case.evidence is not None
    if shows_weights(case.evidence, sampler):
        with case.findings.timing("wide pass"):
            coarse = {name: wide.in_fewer_bits(name) for name in CHEAPER}
            cheaper = {name: each.prefill(case.fed, first).logits for name, each in coarse.items() if each is not None}
        if cheaper:
            case.evidence = with_cheaper(case.evidence, *case.known, sampler, (logits, true.logits, cheaper))
    return true


def _judge_fingerprints(case: Verification, passed: Prefill, true: Prefill | None) -> None:
    """Judge fingerprints by limits, and by the pass in F32 where there is one (`true`)."""
    findings, receipt, card = case.findings, case.receipt, case.model.card
    if not receipt.fingerprints:
        return
    rule = case.policy.fingerprints.for_model(card)
    size = sum(len(each.raw) for each in receipt.fingerprints)
    with findings.timing("fingerprint", size), findings.judging("fingerprint"):
        for finding in judge_fingerprints(receipt, partial(rows_for, passed=passed, final=card.layers), rule, card):
            findings.note(finding)
        for line in unjudged_fingerprints(receipt, rule, card):
            findings.leave_open("fingerprint", line)
        findings.not_checked += filter(None, [unseen_changes(receipt, rule, card)])
    findings.assumptions.append(FORGEABLE)
    if true is not None:
        with findings.timing(ROUNDING), findings.judging(ROUNDING):
            case.rounding = judge_rounding(receipt, passed, true, case.policy.fingerprints, card)
    if case.rounding is not None:
        findings.note(case.rounding.finding)
        findings.assumptions.append(case.rounding.assumption)


def _judge_states(case: Verification, passed: Prefill, wide: LanguageModel | None) -> None:
    findings, context = case.findings, case.context
    if context.challenge is not None:
        with findings.judging("states"):
            judge_challenge(case, context.challenge, passed.hidden)
        if wide is not None and not findings.rejected:
            with findings.timing(RERUN), findings.judging(RERUN):
                judge_reruns(case, context.challenge, wide)
    elif context.refusal is not None:
        findings.leave_open("states", f"the provider does not open its states: {context.refusal}")
    elif case.receipt.states is not None:
        findings.not_checked.append("the hidden states that the receipt commits to: challenge the provider")


def _check_demands(case: Verification, rung: Rung) -> None:
    findings, demands = case.findings, case.policy.demands
    if demands is None:
        demands = STANDARD_DEMANDS if rung > 1 else ()
    for demand in demands:
        if demand.required and rung < 2:
            findings.leave_open("fingerprint", f"the policy asks for {demand}, on rung 2")
        elif not demand.is_met(case.receipt, case.model.card.layers):
            line = f"the receipt carries no {demand}{demand.shows}; a policy's `demands` say what has to be there"
            if demand.required:
                findings.leave_open("fingerprint", line, lasting=True)
            else:
                findings.not_checked.append(f"fingerprint: {line}")


def _note_not_computed(case: Verification) -> None:
    findings = case.findings
    if findings.rejected:
        findings.not_checked.append("sampler and fingerprints: what the receipt states is not what was promised")
    elif not case.numbers_fit:
        findings.not_checked.append("sampler and fingerprints: the pass that they need was not made")
    elif not case.is_promised:
        findings.not_checked.append("sampler and fingerprints: the model that the receipt names is not at hand")
    elif not case.receipt.answer.tokens.count:
        findings.leave_open("sampler", "an answer of no tokens shows nothing")
    else:
        findings.leave_open("sampler", "the tokens are not known")
