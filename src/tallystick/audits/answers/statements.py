"""What a receipt states: its signer and model, its numbers, and the request and sampler that it names."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from shlex import quote
from typing import Final

from tallystick.audits.answers.policy import ReceiptPolicy
from tallystick.audits.answers.report import compare, shown
from tallystick.audits.answers.request import ExpectedRequest
from tallystick.audits.answers.response import Response, split_name
from tallystick.audits.answers.subject import Ids, Verification
from tallystick.core.digests import digest
from tallystick.core.errors import MalformedError, UnavailableError
from tallystick.core.files import read_document
from tallystick.formats.claims import TRAINING_CLAIM, Claim, Dtype, ModelCard, named_root
from tallystick.formats.receipt import PROXY, SIGNED, Fingerprint, Grammar, Receipt, Sampler, tokens_digest
from tallystick.formats.signing import check_signature
from tallystick.verdicts.fingerprints import ENTRIES_MAX
from tallystick.verdicts.language_model import LanguageModel, TokenMasks
from tallystick.verdicts.sampling.margin import stretch
from tallystick.verdicts.tolerance import Finding
from tallystick.verdicts.verdict import Findings

# Who signed a receipt, for which model, and from which training claim the weights of that model come.

DTYPES: Final[tuple[Dtype, ...]] = ("F32", "BF16", "F16")
UNKNOWN: Final = "unknown"
SIGNATURE_BYTES: Final = 96


def check_signer(case: Verification) -> None:
    """Check the signature over the receipt's bytes, and that the policy trusts its key."""
    findings, signed, policy = case.findings, case.context.response.receipt, case.policy
    with findings.check("signature"):
        check_signature(signed.key, signed.signature, SIGNED + case.context.body)
    untrusted = f"{signed.key} is not a key that the policy trusts"
    if not policy.keys:
        findings.not_checked.append("whose key signed the receipt: name the keys that you trust with --trust-key")
    elif signed.key in policy.keys:
        findings.agrees("signature", "key")
    elif policy.unknown_key == "rejected":
        findings.differs("signature", "key", untrusted)
    else:
        findings.leave_open("signature", untrusted)


def check_model(case: Verification) -> None:
    """Check that the receipt names the promised model, and an engine that the policy accepts.

    Raises `UnavailableError` if the verifier's model is not the one that the policy asks for.
    """
    findings, model, policy = case.findings, case.model, case.policy
    card, cache = model.card, case.receipt.engine.kv_cache
    if policy.model not in (None, card.identity):
        raise UnavailableError(f"the model given is {card.identity}; the policy asks for {policy.model}")
    if card.dtype not in policy.dtypes or card.quantization not in (None, *policy.quantizations):
        stated = card.dtype if card.quantization is None else f"{card.dtype}, {card.quantization}"
        raise UnavailableError(f"the model given is in {stated}; the policy does not accept that")
    if case.receipt.model == card.identity:
        findings.agrees("model", "model root")
        folder = getattr(model, "directory", None)
        if folder is not None and (folder / TRAINING_CLAIM).is_file():
            note_claim(findings, folder / TRAINING_CLAIM, card)
    else:
        _explain_other_model(case)
    accepted = ", ".join(policy.kv_caches)
    if cache in policy.kv_caches:
        findings.agrees("model", "engine.kv_cache")
    elif cache == UNKNOWN:
        findings.leave_open(
            "model", f"the receipt does not say which cache was used; the policy's `kv_caches` are {accepted}"
        )
    else:
        findings.differs("model", "engine.kv_cache", f"{cache}; the policy accepts {accepted}")


def _explain_other_model(case: Verification) -> None:
    """Say why the root differs: another model, the same one in another precision, or a name without weights.

    The root of a card of version 1 is one of the same model.
    """
    findings, model, policy = case.findings, case.model, case.policy
    card, stated = model.card, case.receipt.model
    own = f"{card.identity} ({card.architecture}, {card.dtype})"
    former = getattr(model, "former_card", lambda: None)()
    if former is not None and stated == former.identity:
        findings.agrees("model", "model root")
        return
    card_in = getattr(model, "card_in", lambda dtype: None)
    others = (card_in(dtype) for dtype in DTYPES if dtype != card.dtype)
    dtype = next((other.dtype for other in others if other is not None and other.identity == stated), None)
    if dtype is not None and policy.model is None and dtype in policy.dtypes:
        line = f"the receipt is for the model in {dtype}, and it was loaded in {card.dtype}: give --dtype {dtype}"
        findings.leave_open("model", f"{line} if that is what was promised")
    elif dtype is not None:
        findings.differs("model", "model root", f"that of the model in {dtype}; the policy was promised {card.dtype}")
    elif _is_name(case):
        findings.leave_open("model", f"the receipt binds a name and no weights: give its proxy the directory of {own}")
    else:
        findings.differs("model", "model root", f"{stated} in the receipt; the model given is {own}")


def _is_name(case: Verification) -> bool:
    """Whether the root is that of the requested name; or, if no name is known, whether a proxy made the receipt."""
    request = case.context.request
    names = {None if request is None else request.model, case.context.response.model} - {None}
    if not names:
        return case.receipt.engine.name == PROXY
    return case.receipt.model in {named_root(str(name)) for name in names}


def note_claim(findings: Findings, file: Path, card: ModelCard) -> None:
    """Note the training claim beside the verifier's own copy; it does not change the verdict on an answer."""
    try:
        claim = Claim.from_bytes(read_document(file), file.name)
    except (MalformedError, UnavailableError) as error:
        findings.not_checked.append(f"where the weights come from: {error}")
        return
    if claim.weights == card.weights:
        audit = f"`tally audit RUN --claim {quote(claim.identity)}`"
        findings.not_checked.append(f"how the weights were trained: they are those of claim {claim.identity}; {audit}")
    else:
        stated = claim.weights or "no weights"
        findings.not_checked.append(
            f"where the weights come from: {file.name} names {stated}, and the model has {card.weights}"
        )


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


def check_vocabulary(case: Verification) -> None:
    """Raise `MalformedError` for a token that the model does not have."""
    vocabulary, largest = case.model.card.vocabulary, case.receipt.sampler.largest_token
    if largest >= vocabulary:
        raise MalformedError(f"receipt.sampler: token {largest} is outside the vocabulary of {vocabulary}")
    for name, ids in (("request.prompt", case.prompt), ("answer.tokens", case.answer)):
        if ids and max(ids) >= vocabulary:
            raise MalformedError(f"receipt.{name}.ids: {max(ids)} is outside the vocabulary of {vocabulary}")


def context_length_of(model: LanguageModel) -> int | None:
    """The context length of a model of transformers, if its configuration states one."""
    length: int | None = getattr(model, "context_length", None)
    return length


# Compares a receipt with the request: prompt, nonce, grammar, limit of tokens and sampler settings.

NO_REQUEST: Final = "the tokens were chosen under a grammar, and its schema is in the request: give the request"
NOT_STATED: Final = "the request asks for JSON of a schema, and the receipt does not say that tokens were held to it"


def check_request(case: Verification) -> Ids | None:
    """Check that the receipt answers the request; returns the prompt by the verifier's own tokenizer.

    Without a request, log which checks are impossible.
    """
    findings, receipt, policy, response = case.findings, case.receipt, case.policy, case.context.response
    request = case.context.request
    if request is None:
        findings.not_checked.append(
            "whether prompt, settings and limit are those that were asked for: give the request"
        )
        if policy.nonce == "required":
            findings.leave_open("nonce", "the policy asks for a nonce of the customer's: give the request")
        if policy.seed == "customer":
            findings.leave_open("settings", "the policy asks for a seed of the customer's: give the request")
        return None
    if None not in (response.form, request.form):
        if response.form == request.form:  # an answer of another form is read in other fields
            findings.agrees("form", "response")
        else:
            detail = f"an answer of the form {response.form!r}, and the request asks for {request.form!r}"
            findings.differs("form", "response", detail)
    prompt = request.prompt_tokens(case.model)
    _check_prompt(findings, receipt, prompt)
    if request.tally_nonce is not None:
        compare(findings, "nonce", "request.nonce", receipt.request.nonce, request.tally_nonce)
    elif policy.nonce == "required":
        findings.leave_open("nonce", "the policy asks for a nonce of the customer's, and the request has none")
    else:
        findings.not_checked.append("whether the receipt was made for this request: it had no nonce")
    wanted = request.settings_of(_number(response, request)) | request.adjustments(case.model.end_tokens)
    _check_settings(findings, receipt, wanted, policy)
    expected, answers = request.n or 1, response.answers
    # a bare receipt is one of any number
    apart = abs(answers - expected) if response.choices else max(0, answers - expected)
    detail = f"{answers} answers, and {expected} asked for" if apart else ""
    findings.note(Finding(float(apart), 0.0, "settings", "n", detail))
    _check_grammar(findings, receipt.sampler.grammar, request)
    if request.max_tokens is not None:
        compare(findings, "settings", "max_tokens", receipt.request.max_tokens, request.max_tokens)
    else:
        findings.not_checked.append("the limit of tokens, which the request left to the provider")
    for name in request.others:
        findings.leave_open(
            "settings", f"the request's {name} may have had a say in the answer, and no check covers it"
        )
    return prompt


def _number(response: Response, request: ExpectedRequest) -> int:
    """The index of this answer among those to the request; a bare receipt has it only in the request's id."""
    if response.answers > 1 or request.n in (None, 1):
        return response.number
    number = split_name(response.receipt.receipt.request.id)[1]
    return response.number if number is None or number >= (request.n or 1) else number


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


def _check_settings(findings: Findings, receipt: Receipt, wanted: Mapping[str, object], policy: ReceiptPolicy) -> None:
    for name, value in wanted.items():
        if name == "end_token_ids" and receipt.engine.name == PROXY and not receipt.sampler.end_token_ids and value:
            findings.leave_open("settings", "a proxy does not know the end tokens that min_tokens holds back")
        else:
            compare(findings, "settings", name, getattr(receipt.sampler, name), value)
    left = sorted(Sampler.model_fields.keys() - {"form", "grammar"} - wanted.keys())
    if receipt.sampler.is_greedy and "seed" in left:
        left.remove("seed")
    elif "seed" in left and policy.seed == "customer":
        findings.leave_open("settings", "the policy asks for a seed of the customer's, and the request has none")
    if left:
        findings.not_checked.append(f"settings that the request left to the provider: {', '.join(left)}")


def _check_grammar(findings: Findings, stated: Grammar | None, request: ExpectedRequest) -> None:
    """Check that the receipt states the grammar that the request asks for, and no other."""
    if request.wanted is None:
        if stated is not None:
            findings.differs("settings", "grammar", f"{stated.kind} in the receipt, and nobody asked for one")
    elif stated is None:
        findings.leave_open("settings", NOT_STATED)
    else:
        kind, text = request.wanted
        compare(findings, "settings", "grammar.kind", stated.kind, kind)
        compare(findings, "settings", "grammar.digest", stated.digest, digest("blob", text.encode()))


def masks_of(case: Verification) -> TokenMasks | str | None:
    """The masks of the receipt's grammar, made from the request's own schema, or why there are none; None without one.

    The library and its version are those that the receipt states. A schema that the receipt does not name was refused
    before (`check_request`).
    """
    stated, request = case.receipt.sampler.grammar, case.context.request
    if stated is None:
        return None
    if request is None or request.wanted is None:
        return NO_REQUEST
    try:
        return case.model.token_masks(stated, request.wanted[1])
    except UnavailableError as error:
        return str(error)


# Checks of what a receipt states about the sampler that need no request.

STRETCH_MAX: Final = 2.0
"""The largest factor by which a repetition penalty that is not in the request may widen the tie band."""


def check_sampler(case: Verification) -> None:
    """Check that nothing stated makes other tokens right unless it was promised or the customer asked for it.

    The form has to be the promised one; `unknown` is judged as promised. A penalty may widen the tie band by at most
    `STRETCH_MAX`; adjustments are compared with those of the request.
    """
    findings, sampler, promised = case.findings, case.receipt.sampler, case.policy.sampler.form
    request = case.context.request
    if promised is not None and sampler.form != "unknown" and not sampler.is_greedy:
        compare(findings, "settings", "form", sampler.form, promised)
    if stretch(sampler) > STRETCH_MAX and (request is None or request.repetition_penalty is None):
        line = (
            f"the receipt states a repetition penalty of {sampler.repetition_penalty:g}, under which tokens show little"
        )
        findings.leave_open("settings", f"{line}: give a request that asks for it")
    if sampler.adjustments and request is None:
        line = f"the receipt states {', '.join(sampler.adjustments)}, under which other tokens are right"
        findings.leave_open("settings", f"{line}: give the request that asks for it")


def note_statements(case: Verification) -> None:
    """Log, in one line, what receipt and response state and nothing is compared with."""
    response, request = case.context.response, case.context.request
    stated = [remark.where for remark in response.remarks if remark.kind == "stated"]
    if response.system_fingerprint not in (None, case.receipt.model):
        stated.append("system_fingerprint")
    name = None if request is None else request.model
    if response.model not in (None, name):
        stated.append("model" if name is None else f"model ({shown(repr(response.model))} for {shown(repr(name))})")
    names = ["engine, batch and number in the receipt"]
    names += [f"{', '.join(sorted(stated))} in the response"] if stated else []
    case.findings.not_checked.append(f"what the provider states of itself: {'; '.join(names)}")
