"""What a receipt states beside what its customer asked: prompt, nonce, limit and settings."""

from __future__ import annotations

from collections.abc import Mapping

from tallystick.answers.policy import ReceiptPolicy
from tallystick.answers.report import Notebook
from tallystick.answers.request import ExpectedRequest
from tallystick.answers.response import Response, split_name
from tallystick.tolerances.tolerance import Finding
from tallystick.transcripts.receipt import Receipt, tokens_digest
from tallystick.workloads.language_model import LanguageModel

Ids = tuple[int, ...]


def check_request(
    notes: Notebook, response: Response, asked: ExpectedRequest, model: LanguageModel, policy: ReceiptPolicy
) -> Ids | None:
    """The receipt answers this request: prompt, nonce, limit and settings; returns the customer's own prompt."""
    receipt = response.receipt.receipt
    prompt = asked.prompt_tokens(model)
    _check_prompt(notes, receipt, prompt)
    _check_nonce(notes, receipt, asked.tally_nonce, policy)
    _check_settings(notes, receipt, asked.settings_of(_number(response, asked)), policy)
    _check_answers(notes, response, asked.n or 1)
    if asked.max_tokens is not None:
        notes.compare("settings", "max_tokens", receipt.request.max_tokens, asked.max_tokens)
    else:
        notes.not_checked.append("the limit of tokens, which the request left to the provider")
    for name in asked.others:
        notes.lacks("settings", f"the request's {name} may have had a say in the answer, and no check covers it")
    return prompt


def _number(response: Response, asked: ExpectedRequest) -> int:
    """Which of the answers to the request this is; a receipt by itself says it in its name."""
    if response.answers > 1 or asked.n in (None, 1):
        return response.number
    number = split_name(response.receipt.receipt.request.id)[1]
    return response.number if number is None or number >= (asked.n or 1) else number


def _check_answers(notes: Notebook, response: Response, wanted: int) -> None:
    """No more answers come, and are billed, than were asked for."""
    detail = f"{response.answers} answers, and {wanted} asked for" if response.answers > wanted else ""
    notes.note(Finding(float(response.answers), float(wanted), "settings", "n", detail))


def _check_prompt(notes: Notebook, receipt: Receipt, prompt: Ids | None) -> None:
    if prompt is None:
        notes.lacks("prompt", "the request has neither messages nor a prompt")
    elif receipt.request.prompt.over == "text":
        notes.lacks("prompt", "the receipt binds the text of the prompt, and no tokens")
    elif tokens_digest(prompt) == receipt.request.prompt.digest:
        notes.compare("prompt", "request.prompt.count", receipt.request.prompt.count, len(prompt))
    else:
        notes.differs("prompt", _first_difference(prompt, receipt.request.prompt.ids), "not the prompt that was asked")


def _check_nonce(notes: Notebook, receipt: Receipt, nonce: str | None, policy: ReceiptPolicy) -> None:
    if nonce is not None:
        notes.compare("nonce", "request.nonce", receipt.request.nonce, nonce)
    elif policy.nonce == "required":
        notes.lacks("nonce", "the policy asks for a nonce of the customer's, and the request has none")
    else:
        notes.not_checked.append("whether the receipt was made for this request: it had no nonce")


def _check_settings(notes: Notebook, receipt: Receipt, asked: Mapping[str, float], policy: ReceiptPolicy) -> None:
    stated = receipt.sampler.model_dump()
    for name, value in asked.items():
        notes.compare("settings", name, stated[name], value)
    left = sorted(stated.keys() - {"form"} - asked.keys())
    if receipt.sampler.is_greedy and "seed" in left:
        left.remove("seed")
    elif "seed" in left and policy.seed == "customer":
        notes.lacks("settings", "the policy asks for a seed of the customer's, and the request has none")
    if left:
        notes.not_checked.append(f"settings that the request left to the provider: {', '.join(left)}")


def _first_difference(own: Ids, claimed: Ids | None) -> str:
    if claimed is None:
        return "digest"
    place = next((i for i, (a, b) in enumerate(zip(own, claimed, strict=False)) if a != b), min(len(own), len(claimed)))
    return f"token {place}"
