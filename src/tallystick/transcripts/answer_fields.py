"""The fields of answers in OpenAI's forms, and what becomes of each: one table for servers, clients and verifiers.

A field is `kept` (read, and compared with the receipt), `named` (kept, and no longer than a name), `empty` (what stands
in it would be shown or acted on, and no token says it), `label` (a short statement of the provider), or `echo` (said
back from the request). What is in no table is unknown: stated if it is numbers alone, and open if it has text that a
program could show.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

Treatment = Literal["kept", "named", "empty", "label", "echo"]
Fields = Mapping[str, Treatment]
RemarkKind = Literal["refused", "foreign", "open", "stated"]
LABEL: Final = re.compile(r"(?=.{0,80}$)[A-Za-z0-9._:/+@=-]*( [A-Za-z0-9._:/+@=-]+){0,3}", re.ASCII)
"""A name such as programs give: four words at most."""
SHOWN_MAX: Final = 60


@dataclass(frozen=True)
class Remark:
    """What a reader noticed about a field.

    `refused`: the answer contradicts its form or itself. `foreign`: text or a call in a field that no token speaks for.
    `open`: text in a field that is not known. `stated`: a statement that nothing is compared with.
    """

    kind: RemarkKind
    where: str
    detail: str = ""


def _fields(**names: str) -> Fields:
    """A table from the names of each treatment."""
    return {name: treatment for treatment, listed in names.items() for name in listed.split()}  # type: ignore[misc]


COMPLETION: Final = _fields(
    kept="id object choices usage receipt receipts prompt_token_ids",
    named="model system_fingerprint",
    echo="upstream_receipt",
    label="created service_tier provider x_groq timings metrics stats metadata sglext nvext obfuscation "
    "usage_breakdown kv_transfer_params ec_transfer_params prompt_filter_results warnings",
    empty="error output output_text response content message text completion generated_text refusal tool_calls",
)
CHOICE: Final = _fields(
    kept="index message delta text finish_reason logprobs token_ids prompt_token_ids stop_reason matched_stop",
    label="native_finish_reason seed content_filter_results routed_experts hidden_states",
    empty="error content refusal tool_calls function_call reasoning reasoning_content audio annotations",
)
MESSAGE: Final = _fields(
    kept="role content tool_calls reasoning reasoning_content",
    empty="refusal function_call audio annotations images text",
)
CALL: Final = _fields(kept="index type function", label="id")
FUNCTION: Final = _fields(kept="name arguments")
USAGE: Final = _fields(kept="prompt_tokens completion_tokens total_tokens input_tokens output_tokens")
LOGPROBS: Final = _fields(kept="content tokens token_logprobs top_logprobs", label="text_offset", empty="refusal")
LOGPROB: Final = _fields(kept="token logprob bytes top_logprobs", label="token_id rank")
RESPONSE: Final = _fields(
    kept="id object output output_text usage status incomplete_details receipt prompt_token_ids token_ids",
    named="model system_fingerprint",
    label="created_at completed_at service_tier truncation parallel_tool_calls previous_response_id store temperature "
    "top_p top_logprobs max_output_tokens max_tool_calls background prompt_cache_key prompt_cache_retention billing "
    "safety_identifier frequency_penalty presence_penalty",
    echo="instructions metadata text tools tool_choice reasoning user prompt conversation",
    empty="error choices receipts content message",
)
DETAILS: Final = _fields(kept="reason")
ITEM: Final[Mapping[str, Fields]] = {
    "message": _fields(kept="type role content", label="id status phase"),
    "reasoning": _fields(kept="type content", label="id status"),
    "function_call": _fields(kept="type name arguments", label="id call_id status"),
}
PART: Final[Mapping[str, Fields]] = {
    "output_text": _fields(kept="type text logprobs", empty="annotations"),
    "reasoning_text": _fields(kept="type text"),
    "text": _fields(kept="type text", empty="annotations"),
}


def scan(fields: Fields, value: Mapping[str, Any], where: str = "") -> tuple[dict[str, Any], list[Remark]]:
    """The kept fields of an object, and remarks on all others."""
    kept: dict[str, Any] = {}
    remarks: list[Remark | None] = []
    for name, each in value.items():
        treatment = fields.get(name)
        if treatment in ("kept", "named"):
            kept[name] = each
        if treatment != "kept" and not is_nothing(each):
            remarks.append(_remark(treatment, f"{where}{name}"[:128], each))
    return kept, [each for each in remarks if each is not None]


def _remark(treatment: Treatment | None, where: str, value: Any) -> Remark | None:
    if treatment == "empty":
        return Remark("foreign", where, f"{_shown(value)}, and no token of the answer says it")
    is_label = treatment in ("label", "named") and all(map(LABEL.fullmatch, texts_in(value)))
    if treatment == "echo" or is_label:
        return None if treatment == "named" else Remark("stated", where)
    if any(texts_in(value)):
        return Remark("open", where, f"{_shown(value)}: no check covers this field")
    return Remark("stated", where)


def is_nothing(value: Any) -> bool:
    """Whether a value says nothing: null, empty, zero, false, or made of such."""
    if isinstance(value, Mapping):
        return all(map(is_nothing, value.values()))
    return all(map(is_nothing, value)) if isinstance(value, list | tuple) else not value


def texts_in(value: Any) -> Iterable[str]:
    """Every text in a value that is not empty; names of fields too, unless they are such as programs give."""
    if isinstance(value, str):
        yield from filter(None, (value,))
    elif isinstance(value, Mapping):
        for name, each in value.items():
            yield from () if str(name).isidentifier() else (str(name),)
            yield from texts_in(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from texts_in(each)


def _shown(value: Any) -> str:
    text = " ".join(next(iter(texts_in(value)), str(value)).split())
    return repr(text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}…")
