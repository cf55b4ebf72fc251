"""Compares a receipt with the request: prompt, nonce, limit of tokens and sampler settings."""

from __future__ import annotations

from collections.abc import Mapping

from tallystick.answers.grammar import check_grammar
from tallystick.answers.policy import ReceiptPolicy
from tallystick.answers.report import CheckLog
from tallystick.answers.request import ExpectedRequest
from tallystick.answers.response import Response, split_name
from tallystick.tolerances.tolerance import Finding
from tallystick.transcripts.completion_form import Form
from tallystick.transcripts.receipt import PROXY, Receipt, tokens_digest
from tallystick.transcripts.sampler import Sampler
from tallystick.workloads.language_model import LanguageModel

Ids = tuple[int, ...]


def check_request(
    log: CheckLog, response: Response, asked: ExpectedRequest, model: LanguageModel, policy: ReceiptPolicy
) -> Ids | None:
    """Check that the receipt answers this request; returns the prompt by the verifier's own tokenizer."""
    receipt = response.receipt.receipt
    if None not in (response.form, asked.form):
        check_form_of_answer(log, response.form, asked.form)
    prompt = asked.prompt_tokens(model)
    _check_prompt(log, receipt, prompt)
    _check_nonce(log, receipt, asked.tally_nonce, policy)
    wanted = asked.settings_of(_number(response, asked)) | asked.adjustments(model.end_tokens)
    _check_settings(log, receipt, wanted, policy)
    _check_answers(log, response, asked.n or 1)
    check_grammar(log, receipt.sampler.grammar, asked)
    if asked.max_tokens is not None:
        log.compare("settings", "max_tokens", receipt.request.max_tokens, asked.max_tokens)
    else:
        log.not_checked.append("the limit of tokens, which the request left to the provider")
    for name in asked.others:
        log.unavailable("settings", f"the request's {name} may have had a say in the answer, and no check covers it")
    return prompt


def check_form_of_answer(log: CheckLog, told: Form | None, asked: Form | None) -> None:
    """Check that the answer has the form that the request asks for: another one is read in other fields."""
    if told == asked:
        log.agrees("form", "response")
    else:
        log.differs("form", "response", f"an answer of the form {told!r}, and the request asks for {asked!r}")


def _number(response: Response, asked: ExpectedRequest) -> int:
    """The index of this answer among those to the request; a bare receipt has it only in the request's id."""
    if response.answers > 1 or asked.n in (None, 1):
        return response.number
    number = split_name(response.receipt.receipt.request.id)[1]
    return response.number if number is None or number >= (asked.n or 1) else number


def _check_answers(log: CheckLog, response: Response, wanted: int) -> None:
    """Check that there are as many answers as were asked for; a bare receipt is one of any number."""
    apart = abs(response.answers - wanted) if response.choices else max(0, response.answers - wanted)
    detail = f"{response.answers} answers, and {wanted} asked for" if apart else ""
    log.add(Finding(float(apart), 0.0, "settings", "n", detail))


def _check_prompt(log: CheckLog, receipt: Receipt, prompt: Ids | None) -> None:
    if prompt is None:
        log.unavailable("prompt", "the request has neither messages nor a prompt")
    elif receipt.request.prompt.over == "text":
        log.unavailable("prompt", "the receipt binds the text of the prompt, and no tokens")
    elif tokens_digest(prompt) == receipt.request.prompt.digest:
        log.compare("prompt", "request.prompt.count", receipt.request.prompt.count, len(prompt))
    else:
        log.differs("prompt", _first_difference(prompt, receipt.request.prompt.ids), "not the prompt that was asked")


def _check_nonce(log: CheckLog, receipt: Receipt, nonce: str | None, policy: ReceiptPolicy) -> None:
    if nonce is not None:
        log.compare("nonce", "request.nonce", receipt.request.nonce, nonce)
    elif policy.nonce == "required":
        log.unavailable("nonce", "the policy asks for a nonce of the customer's, and the request has none")
    else:
        log.not_checked.append("whether the receipt was made for this request: it had no nonce")


def _check_settings(log: CheckLog, receipt: Receipt, asked: Mapping[str, object], policy: ReceiptPolicy) -> None:
    for name, value in asked.items():
        if name == "end_token_ids" and receipt.engine.name == PROXY and not receipt.sampler.end_token_ids and value:
            log.unavailable("settings", "a proxy does not know the end tokens that min_tokens holds back")
        else:
            log.compare("settings", name, getattr(receipt.sampler, name), value)
    left = sorted(Sampler.model_fields.keys() - {"form", "grammar"} - asked.keys())
    if receipt.sampler.is_greedy and "seed" in left:
        left.remove("seed")
    elif "seed" in left and policy.seed == "customer":
        log.unavailable("settings", "the policy asks for a seed of the customer's, and the request has none")
    if left:
        log.not_checked.append(f"settings that the request left to the provider: {', '.join(left)}")


def _first_difference(own: Ids, claimed: Ids | None) -> str:
    if claimed is None:
        return "digest"
    place = next((i for i, (a, b) in enumerate(zip(own, claimed, strict=False)) if a != b), min(len(own), len(claimed)))
    return f"token {place}"
