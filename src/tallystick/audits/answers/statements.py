"""What a receipt states, compared with the request and with limits on numbers and work."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Final

from tallystick.audits.answers.policy import ReceiptPolicy
from tallystick.audits.answers.report import compare, shown
from tallystick.audits.answers.request import ExpectedRequest
from tallystick.audits.answers.response import Response, split_name
from tallystick.audits.answers.states import KnownTokens
from tallystick.core.digests import digest
from tallystick.core.errors import MalformedError, UnavailableError
from tallystick.formats.claims import ModelCard
from tallystick.formats.receipt import PROXY, Fingerprint, Grammar, Receipt, Sampler, tokens_digest
from tallystick.verdicts.fingerprints import ENTRIES_MAX
from tallystick.verdicts.language_model import LanguageModel
from tallystick.verdicts.sampling.margin import stretch
from tallystick.verdicts.tolerance import Finding
from tallystick.verdicts.verdict import Findings

if TYPE_CHECKING:
    from tallystick.verdicts.language_model import TokenMasks


# Upper limits on the work and memory of a receipt in addition to the one pass, from its counts alone.
#
# An *operation* is one access to one number, about a nanosecond of one core. The counts are those of the most expensive
# answer, because the maker of a receipt chooses its tokens. `benchmarks/sampler_verify.py` measures against them.

FLOAT_BYTES: Final = 4
GREEDY: Final = 8
"""Operations per logit of a row whose largest logit is chosen."""
DRAWN: Final[Mapping[str, int]] = {"gumbel": 400, "cdf": 200, "unknown": 200}
"""Operations per logit of a row whose token fails the fast path: noise, sorting, weights."""
LIKELIHOODS: Final = 200
"""Operations per logit for probabilities, in addition to margins."""
ADJUSTED: Final = 12
"""Operations per logit of a row that penalties, biases and masks change first."""
REMEMBERED: Final = 4
"""Operations per token of a history, for the repetition penalty."""
SORTED: Final = 64
"""Operations per number of a block that is sorted."""
SIGNS: Final = 16
"""Operations per random sign."""
AT_ONCE: Final = 4
"""Multiplications of a matrix product in the time of one operation."""


def operations(receipt: Receipt, card: ModelCard) -> int:
    """The operations for the tokens and the fingerprints of a receipt, in addition to the pass."""
    rows, prompt, sampler = receipt.answer.tokens.count, receipt.request.prompt.count, receipt.sampler
    per_logit = GREEDY if sampler.is_greedy else DRAWN[sampler.form] + LIKELIHOODS
    total = rows * card.vocabulary * per_logit
    if sampler.repetition_penalty != 1.0:
        total += rows * (prompt + rows) * REMEMBERED
    if sampler.adjustments:
        total += rows * (ADJUSTED * card.vocabulary + rows * REMEMBERED)
    return total + sum(_summary(fingerprint, card) for fingerprint in receipt.fingerprints)


def memory(receipt: Receipt, card: ModelCard, layers: Collection[int]) -> int:
    """The bytes of the answer's logits and of the hidden states of `layers`.

    A layer is held for all tokens that are fed, whichever rows are compared.
    """
    rows, prompt = receipt.answer.tokens.count, receipt.request.prompt.count
    copies = 2 if receipt.sampler.adjustments else 1
    return FLOAT_BYTES * (copies * rows * card.vocabulary + len(layers) * (prompt + rows) * card.width)


def _summary(fingerprint: Fingerprint, card: ModelCard) -> int:
    """Operations of one fingerprint: the product with signs; or, for TOPLOC, sorting and one polynomial per block."""
    rows, numbers, width = fingerprint.tokens, fingerprint.width, max(card.width, ENTRIES_MAX)
    if fingerprint.method == "projection":
        layer = rows * width * (1 + numbers // AT_ONCE) + SIGNS * numbers * (rows + width)
    else:
        layer = SORTED * rows * width + AT_ONCE * numbers * numbers * -(-rows // fingerprint.block)
    return layer * len(fingerprint.layers)


# Checks the numbers in a receipt before anything is computed with them.


def check_consistency(receipt: Receipt) -> None:
    """Check that the numbers of rows and tokens agree; raises `MalformedError` naming the field."""
    prompt, answer = receipt.request.prompt.count, receipt.answer.tokens.count
    if prompt < 1:
        raise MalformedError("receipt.request.prompt.count: an answer follows a prompt of at least one token")
    for place, fingerprint in enumerate(receipt.fingerprints):
        if fingerprint.tokens != answer:
            where = f"receipt.fingerprints.{place}.tokens"
            raise MalformedError(f"{where}: {fingerprint.tokens}, and the answer has {answer}")
    states = receipt.states
    rows = answer if states is None or not states.prompt else prompt + answer - 1
    if states is not None and states.rows != rows:
        raise MalformedError(f"receipt.states.rows: {states.rows}, and there are {rows}")


def check_sizes(
    receipt: Receipt, card: ModelCard, policy: ReceiptPolicy, context_length: int | None, layers: Collection[int]
) -> None:
    """Check that the policy allows the work; `layers` are those whose hidden states are compared.

    Raises:
        UnavailableError: more tokens, memory or work than the policy allows; or more tokens than the model's context.
        MalformedError: a layer that the model does not have.
    """
    answer = receipt.answer.tokens.count
    total = receipt.request.prompt.count + answer
    where = "receipt.answer.tokens.count"
    if total > policy.tokens_max:
        raise UnavailableError(f"{where}: {total} tokens, more than tokens_max of {policy.tokens_max}")
    if context_length is not None and total - 1 > context_length:
        raise UnavailableError(f"{where}: {total} tokens do not fit into {context_length} places of the model")
    spent = {
        "memory_max": (memory(receipt, card, layers), "bytes"),
        "work_max": (operations(receipt, card), "operations"),
    }
    for setting, (needed, unit) in spent.items():
        if needed > (allowed := getattr(policy, setting)):
            raise UnavailableError(f"{where}: takes up to {needed} {unit}, more than {setting} of {allowed}")
    named = {f"fingerprints.{place}": (one.layers, card.layers + 1) for place, one in enumerate(receipt.fingerprints)}
    named |= {"states": (receipt.states.layers, card.layers)} if receipt.states else {}
    for place, (layers, last) in named.items():
        if max(layers) > last:
            raise MalformedError(f"receipt.{place}.layers: {max(layers)} is not from 0 to {last}")


def check_vocabulary(tokens: KnownTokens, sampler: Sampler, card: ModelCard) -> None:
    """Raise `MalformedError` for a token that the model does not have."""
    if sampler.largest_token >= card.vocabulary:
        named = f"receipt.sampler: token {sampler.largest_token}"
        raise MalformedError(f"{named} is outside the vocabulary of {card.vocabulary}")
    for name, ids in (("request.prompt", tokens.prompt), ("answer.tokens", tokens.answer)):
        if ids and max(ids) >= card.vocabulary:
            raise MalformedError(f"receipt.{name}.ids: {max(ids)} is outside the vocabulary of {card.vocabulary}")


def context_length_of(model: LanguageModel) -> int | None:
    """The context length of a model of transformers, if its configuration states one."""
    length: int | None = getattr(model, "context_length", None)
    return length


# Compares a receipt's grammar with the one that the customer asked for, and makes its masks from the request.

NO_REQUEST: Final = "the tokens were chosen under a grammar, and its schema is in the request: give the request"
NOT_STATED: Final = "the request asks for JSON of a schema, and the receipt does not say that tokens were held to it"


def check_grammar(findings: Findings, stated: Grammar | None, asked: ExpectedRequest) -> None:
    """Check that the receipt states the grammar that the request asks for, and no other."""
    if asked.wanted is None:
        if stated is not None:
            findings.differs("settings", "grammar", f"{stated.kind} in the receipt, and nobody asked for one")
    elif stated is None:
        findings.leave_open("settings", NOT_STATED)
    else:
        kind, text = asked.wanted
        compare(findings, "settings", "grammar.kind", stated.kind, kind)
        compare(findings, "settings", "grammar.digest", stated.digest, digest("blob", text.encode()))


def masks_of(stated: Grammar, asked: ExpectedRequest | None, model: LanguageModel) -> tuple[TokenMasks | None, str]:
    """The masks of the request's own schema, by the library and version that the receipt states; or why there are none.

    A schema that the receipt does not name was refused before (`check_grammar`).
    """
    if asked is None or asked.wanted is None:
        return None, NO_REQUEST
    try:
        return model.token_masks(stated, asked.wanted[1]), ""
    except UnavailableError as error:
        return None, str(error)


# Compares a receipt with the request: prompt, nonce, limit of tokens and sampler settings.

Ids = tuple[int, ...]


def check_request(
    findings: Findings, response: Response, asked: ExpectedRequest, model: LanguageModel, policy: ReceiptPolicy
) -> Ids | None:
    """Check that the receipt answers this request; returns the prompt by the verifier's own tokenizer."""
    receipt = response.receipt.receipt
    if None not in (response.form, asked.form):
        if response.form == asked.form:  # an answer of another form is read in other fields
            findings.agrees("form", "response")
        else:
            detail = f"an answer of the form {response.form!r}, and the request asks for {asked.form!r}"
            findings.differs("form", "response", detail)
    prompt = asked.prompt_tokens(model)
    _check_prompt(findings, receipt, prompt)
    _check_nonce(findings, receipt, asked.tally_nonce, policy)
    wanted = asked.settings_of(_number(response, asked)) | asked.adjustments(model.end_tokens)
    _check_settings(findings, receipt, wanted, policy)
    wanted_answers, answers = asked.n or 1, response.answers
    apart = max(0, answers - wanted_answers)
    if response.choices:  # a bare receipt is one of any number
        apart = abs(answers - wanted_answers)
    detail = f"{answers} answers, and {wanted_answers} asked for" if apart else ""
    findings.note(Finding(float(apart), 0.0, "settings", "n", detail))
    check_grammar(findings, receipt.sampler.grammar, asked)
    if asked.max_tokens is not None:
        compare(findings, "settings", "max_tokens", receipt.request.max_tokens, asked.max_tokens)
    else:
        findings.not_checked.append("the limit of tokens, which the request left to the provider")
    for name in asked.others:
        findings.leave_open(
            "settings", f"the request's {name} may have had a say in the answer, and no check covers it"
        )
    return prompt


def _number(response: Response, asked: ExpectedRequest) -> int:
    """The index of this answer among those to the request; a bare receipt has it only in the request's id."""
    if response.answers > 1 or asked.n in (None, 1):
        return response.number
    number = split_name(response.receipt.receipt.request.id)[1]
    return response.number if number is None or number >= (asked.n or 1) else number


def _check_prompt(findings: Findings, receipt: Receipt, prompt: Ids | None) -> None:
    if prompt is None:
        findings.leave_open("prompt", "the request has neither messages nor a prompt")
    elif receipt.request.prompt.over == "text":
        findings.leave_open("prompt", "the receipt binds the text of the prompt, and no tokens")
    elif tokens_digest(prompt) == receipt.request.prompt.digest:
        compare(findings, "prompt", "request.prompt.count", receipt.request.prompt.count, len(prompt))
    else:
        where, claimed = "digest", receipt.request.prompt.ids
        if claimed is not None:
            pairs = enumerate(zip(prompt, claimed, strict=False))
            place = next((place for place, (a, b) in pairs if a != b), min(len(prompt), len(claimed)))
            where = f"token {place}"
        findings.differs("prompt", where, "not the prompt that was asked")


def _check_nonce(findings: Findings, receipt: Receipt, nonce: str | None, policy: ReceiptPolicy) -> None:
    if nonce is not None:
        compare(findings, "nonce", "request.nonce", receipt.request.nonce, nonce)
    elif policy.nonce == "required":
        findings.leave_open("nonce", "the policy asks for a nonce of the customer's, and the request has none")
    else:
        findings.not_checked.append("whether the receipt was made for this request: it had no nonce")


def _check_settings(findings: Findings, receipt: Receipt, asked: Mapping[str, object], policy: ReceiptPolicy) -> None:
    for name, value in asked.items():
        if name == "end_token_ids" and receipt.engine.name == PROXY and not receipt.sampler.end_token_ids and value:
            findings.leave_open("settings", "a proxy does not know the end tokens that min_tokens holds back")
        else:
            compare(findings, "settings", name, getattr(receipt.sampler, name), value)
    left = sorted(Sampler.model_fields.keys() - {"form", "grammar"} - asked.keys())
    if receipt.sampler.is_greedy and "seed" in left:
        left.remove("seed")
    elif "seed" in left and policy.seed == "customer":
        findings.leave_open("settings", "the policy asks for a seed of the customer's, and the request has none")
    if left:
        findings.not_checked.append(f"settings that the request left to the provider: {', '.join(left)}")


# Checks of what a receipt states about the sampler that need no request.

STRETCH_MAX: Final = 2.0
"""The largest factor by which a repetition penalty that is not in the request may widen the tie band."""


def check_form(findings: Findings, receipt: Receipt, policy: ReceiptPolicy) -> None:
    """Check that the receipt does not state another form than the promised one; `unknown` is judged as promised."""
    stated, promised = receipt.sampler.form, policy.sampler.form
    if promised is not None and stated != "unknown" and not receipt.sampler.is_greedy:
        compare(findings, "settings", "form", stated, promised)


def check_excuses(findings: Findings, receipt: Receipt, asked: ExpectedRequest | None) -> None:
    """Check that nothing stated makes other tokens right unless the customer asked for it.

    A penalty may widen the tie band by at most `STRETCH_MAX`; adjustments are compared with those of the request.
    """
    sampler = receipt.sampler
    is_asked = asked is not None and asked.repetition_penalty is not None
    if stretch(sampler) > STRETCH_MAX and not is_asked:
        line = (
            f"the receipt states a repetition penalty of {sampler.repetition_penalty:g}, under which tokens show little"
        )
        findings.leave_open("settings", f"{line}: give a request that asks for it")
    if sampler.adjustments and asked is None:
        line = f"the receipt states {', '.join(sampler.adjustments)}, under which other tokens are right"
        findings.leave_open("settings", f"{line}: give the request that asks for it")


def note_statements(findings: Findings, response: Response, asked: ExpectedRequest | None) -> None:
    """Log, in one line, what receipt and response state and nothing is compared with."""
    names = ["engine, batch and number in the receipt"]
    stated = [remark.where for remark in response.remarks if remark.kind == "stated"]
    if response.system_fingerprint not in (None, response.receipt.receipt.model):
        stated.append("system_fingerprint")
    name = None if asked is None else asked.model
    if response.model not in (None, name):
        stated.append("model" if name is None else f"model ({shown(repr(response.model))} for {shown(repr(name))})")
    names += [f"{', '.join(sorted(stated))} in the response"] if stated else []
    findings.not_checked.append(f"what the provider states of itself: {'; '.join(names)}")


def note_missing_request(findings: Findings, policy: ReceiptPolicy) -> None:
    """Log which checks are impossible without the request."""
    findings.not_checked.append("whether prompt, settings and limit are those that were asked for: give the request")
    if policy.nonce == "required":
        findings.leave_open("nonce", "the policy asks for a nonce of the customer's: give the request")
    if policy.seed == "customer":
        findings.leave_open("settings", "the policy asks for a seed of the customer's: give the request")
