"""Completions of OpenAI's API: fields, calls of functions in them, and one reader for whole answers and chunks."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias, TypeGuard

from tallystick.core.canonical_json import Json, loose_json
from tallystick.core.errors import MalformedError
from tallystick.formats.receipt import TOKENS_MAX
from tallystick.formats.requests import Form, shown_tools

# The fields of answers in OpenAI's forms, and what becomes of each: one table for servers, clients and verifiers.
#
# A field is `kept` (read, and compared with the receipt), `named` (kept, and no longer than a name), `empty` (what
# stands in it would be shown or acted on, and no token says it), `label` (a short statement of the provider), or `echo`
# (said back from the request). What is in no table is unknown: stated if it is numbers alone, and open if it has text
# that a program could show.

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
    for name, content in value.items():
        treatment = fields.get(name)
        if treatment in ("kept", "named"):
            kept[name] = content
        if treatment != "kept" and not is_nothing(content):
            remarks.append(_remark(treatment, f"{where}{name}"[:128], content))
    return kept, [remark for remark in remarks if remark is not None]


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
        for name, inner in value.items():
            yield from () if str(name).isidentifier() else (str(name),)
            yield from texts_in(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from texts_in(inner)


def _shown(value: Any) -> str:
    text = " ".join(next(iter(texts_in(value)), str(value)).split())
    return repr(text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}…")


# The calls of functions in the text of an answer: what a server delivers as `tool_calls`, read again by verifiers.

Call: TypeAlias = tuple[str, str]
"""The name of a function, and its arguments as JSON text."""
BLOCK: Final = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>", re.DOTALL)


def call_form(body: Mapping[str, Any]) -> str | None:
    """How an answer to the request may call: `auto` in blocks of text, `required` as a list, or `:` and one function.

    None if the answer calls nothing.
    """
    choice = body.get("tool_choice")
    if isinstance(choice, Mapping):
        return f":{choice['function']['name']}"
    if shown_tools(body) is None:
        return None
    return "required" if choice == "required" else "auto"


def calls_in(text: str, form: str | None) -> tuple[str, tuple[Call, ...]]:
    """The text beside calls, and the calls, in order; a call that is not whole stays text.

    Blocks are `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, as in the templates of Hermes and Qwen.
    """
    if form is None:
        return text, ()
    if form.startswith(":"):
        return "", ((form[1:], text),)
    calls: list[Any]
    if form == "required":
        written, arguments, rest = _read(text), "parameters", ""
        calls = written if isinstance(written, list) else [None]
    else:
        calls, arguments, rest = list(map(_read, BLOCK.findall(text))), "arguments", BLOCK.sub("", text).strip()
        if not calls:
            return text, ()
    if not all(isinstance(call, dict) and isinstance(call.get("name"), str) for call in calls):
        return text, ()
    return rest, tuple((call["name"], json.dumps(call.get(arguments, {}), ensure_ascii=False)) for call in calls)


def _read(text: str) -> Any:
    try:
        return loose_json(text)
    except ValueError:
        return None


def message_of(text: str, form: str | None, choice: str) -> tuple[str, list[dict[str, Any]]]:
    """The text of a message, and its calls as a message has them; `choice` is the id of the choice that says them."""
    text, calls = calls_in(text, form)
    functions = [{"name": name, "arguments": arguments} for name, arguments in calls]
    return text, [
        {"id": f"call_{choice}_{place}", "type": "function", "function": function}
        for place, function in enumerate(functions)
    ]


# Completions and chat completions of OpenAI's API, whole or in chunks, read by one reader.
#
# A whole answer is one chunk whose choices have a `message` in place of a `delta`. The request says in which form it is
# read; the answer does not choose it.

Finish = Literal["end", "stop", "length", "cancelled"]
CALLED: Final = "tool_calls"
FINISH_REASONS: Final[Mapping[str, str]] = {"end": "stop", "stop": "stop", "length": "length", "cancelled": "stop"}
"""OpenAI's finish reason for each reason of a receipt."""
CHOICES_MAX: Final = 128
CALLS_MAX: Final = 128
ONCE: Final = ("id", "model", "system_fingerprint", "receipt", "receipts", "prompt_token_ids")
"""Fields that say the same in every chunk that has them."""
LISTED: Final = ("content", "tokens", "token_logprobs", "top_logprobs")


@dataclass
class ReadCall:
    """A call of a function as far as it has arrived."""

    name: str = ""
    arguments: str = ""


@dataclass
class ReadChoice:
    """One answer as far as it has arrived; `text` is None if nothing that could hold text has come."""

    text: str | None = None
    reasoning: str = ""
    calls: dict[int, ReadCall] = field(default_factory=dict)
    ids: list[int] | None = None
    logprobs: dict[str, list[Any]] = field(default_factory=dict)
    finish: str | None = None
    stop: str | int | None = None
    remarks: list[Remark] = field(default_factory=list)

    @property
    def is_text(self) -> bool:
        """Whether the answer is text alone: no call, and nothing in a field that no token speaks for."""
        return not self.calls and not any(remark.kind in ("foreign", "refused") for remark in self.remarks)

    def refuse(self, where: str, detail: str) -> None:
        """Note a contradiction."""
        self.remarks.append(Remark("refused", where, detail))

    def fields(self) -> dict[str, Any]:
        """The choice as `DeliveredChoice` has it."""
        fields = {
            "content": self.text,
            "reasoning": self.reasoning or None,
            "calls": [[call.name, call.arguments] for _, call in sorted(self.calls.items())] or None,
            "finish_reason": self.finish,
            "stop_reason": self.stop,
            "token_ids": self.ids,
            "logprobs": {name: listed for name, listed in self.logprobs.items() if listed} or None,
        }
        return {name: value for name, value in fields.items() if value is not None}


class CompletionReader:
    """Reads one answer of a form, `add` by `add`; raises `MalformedError` for what is no part of an answer."""

    def __init__(self, form: Form) -> None:
        self.form = form
        self.fields: dict[str, Any] = {}
        self.choices: dict[int, ReadChoice] = {}
        self.remarks: dict[Remark, None] = {}

    @property
    def prompt_ids(self) -> list[int] | None:
        """The tokens of the prompt, if the server gave them."""
        ids = self.fields.get("prompt_token_ids")
        return ids if is_token_ids(ids) else None

    @property
    def is_ending(self) -> bool:
        """Whether some choice has a finish reason."""
        return any(choice.finish is not None for choice in self.choices.values())

    def add(self, part: Mapping[str, Any]) -> None:
        """Add a whole answer, or one chunk of a stream."""
        kept = self._scanned(COMPLETION, part)
        if kept.get("object") == "response":
            self._refuse("object", "'response', and a completion was read")
        if kept.get("usage") is not None:
            self.fields["usage"] = self._usage(kept["usage"])
        for name in ONCE:
            self._once(name, kept.get(name))
        listed = [] if kept.get("choices") is None else kept["choices"]
        if not isinstance(listed, list) or len(listed) > CHOICES_MAX:
            raise MalformedError("response: choices: a list is needed")
        seen: set[int] = set()
        for place, choice in enumerate(listed):
            if not isinstance(choice, Mapping):
                raise MalformedError(f"response: choices.{place}: an object is needed")
            number = _index(choice, place, CHOICES_MAX, f"choices.{place}.index: no number of a choice")
            if number in seen:
                self._refuse("choices.index", f"two choices under number {number}")
            seen.add(number)
            self._add_choice(self.choices.setdefault(number, ReadChoice()), choice, f"choices.{number}.")

    def _scanned(self, table: Fields, value: Any, where: str = "", choice: ReadChoice | None = None) -> dict[str, Any]:
        """The kept fields of an object; remarks on the others go to the choice, or to the whole answer."""
        if not isinstance(value, Mapping):
            raise MalformedError(f"response: {where.rstrip('.') or 'it'} is no object")
        kept, remarks = scan(table, value, where)
        if choice is None:
            self.remarks |= dict.fromkeys(remarks)
        else:
            choice.remarks += [remark for remark in remarks if remark not in choice.remarks]
        return kept

    def _refuse(self, where: str, detail: str) -> None:
        self.remarks[Remark("refused", where, detail)] = None

    def _once(self, name: str, value: Any) -> None:
        if not is_nothing(value) and self.fields.setdefault(name, value) != value:
            self._refuse(name, "two values in one answer")

    def _usage(self, value: Any) -> dict[str, Any]:
        """The counts, under the names of completions; others have the names of the Responses API."""
        kept = self._scanned(USAGE, value, "usage.")
        for name, other in (("prompt_tokens", "input_tokens"), ("completion_tokens", "output_tokens")):
            other_count = kept.pop(other, None)
            if other_count is not None and kept.setdefault(name, other_count) != other_count:
                self._refuse(f"usage.{other}", f"{other_count}, and {kept[name]} in {name}")
        return {name: count for name, count in kept.items() if count is not None}

    def _add_choice(self, choice: ReadChoice, value: Mapping[str, Any], where: str) -> None:
        kept = self._scanned(CHOICE, value, where, choice)
        self._once("prompt_token_ids", kept.get("prompt_token_ids"))
        messages = [(name, message) for name in ("message", "delta") if (message := kept.get(name)) is not None]
        texts = [self._add_message(choice, message, f"{where}{name}.") for name, message in messages]
        if len(messages) > 1:
            choice.refuse(where + "delta", "a message and a piece of one in the same choice")
        self._add_text(choice, texts[0] if texts else None, kept.get("text"), bool(messages), where)
        if isinstance(kept.get("token_ids"), list):
            choice.ids = [*(choice.ids or ()), *kept["token_ids"]]
        self._add_logprobs(choice, kept.get("logprobs"), f"{where}logprobs.")
        if choice.stop is None:
            reasons = (kept.get("stop_reason"), kept.get("matched_stop"))
            choice.stop = next((reason for reason in reasons if reason is not None), None)
        ended = kept.get("finish_reason") or None
        if ended is not None and choice.finish not in (None, ended):
            choice.refuse(where + "finish_reason", f"{choice.finish!r} and then {ended!r}")
        choice.finish = ended or choice.finish

    def _add_text(self, choice: ReadChoice, in_message: str | None, bare: Any, is_place: bool, where: str) -> None:
        """Add the text of a part: that of its message in a chat, else that of the choice; the other one may repeat it.

        A message without text says the empty one.
        """
        if bare is not None and not isinstance(bare, str):
            raise MalformedError(f"response: {where}text: no text")
        text, other = (in_message, bare) if self.form == "chat" else (bare, in_message)
        if other and other != (text or ""):
            choice.refuse(where.rstrip("."), f"text in two forms that differ: {other[:60]!r}")
        if text and choice.finish is not None:
            choice.refuse(where.rstrip("."), "text after the end of the answer")
        if is_place or text is not None:
            choice.text = (choice.text or "") + (text or "")

    def _add_message(self, choice: ReadChoice, value: Any, where: str) -> str | None:
        """Add reasoning and calls of a message; returns its text."""
        kept = self._scanned(MESSAGE, value, where, choice)
        if kept.get("role") not in (None, "", "assistant"):
            choice.refuse(where + "role", f"{str(kept['role'])[:60]!r}, and an answer is the assistant's")
        thought = [text for name in ("reasoning", "reasoning_content") if (text := kept.get(name))]
        if any(not isinstance(text, str) for text in thought):
            raise MalformedError(f"response: {where}reasoning: no text")
        if len(set(thought)) > 1:
            choice.refuse(where + "reasoning", "two texts")
        choice.reasoning += thought[0] if thought else ""
        for place, call in enumerate(kept.get("tool_calls") or ()):
            self._add_call(choice, call, place, f"{where}tool_calls.{place}.")
        return _text_of(kept.get("content"), where + "content", choice)

    def _add_call(self, choice: ReadChoice, value: Any, place: int, where: str) -> None:
        """Add a call, or a piece of one: its name comes once, its arguments in parts."""
        kept = self._scanned(CALL, value, where)
        number = _index(kept, place, CALLS_MAX, f"{where}index: no number of a call")
        if kept.get("type") not in (None, "", "function"):
            choice.refuse(where + "type", "a call of something else than a function")
        call = choice.calls.setdefault(number, ReadCall())
        function = self._scanned(FUNCTION, kept.get("function") or {}, f"{where}function.")
        name, arguments = function.get("name") or "", function.get("arguments") or ""
        if not isinstance(name, str) or not isinstance(arguments, str):
            raise MalformedError(f"response: {where}function: a name and arguments are texts")
        if name and call.name not in ("", name):
            choice.refuse(where + "function.name", "two names of one call")
        call.name, call.arguments = name or call.name, call.arguments + arguments

    def _add_logprobs(self, choice: ReadChoice, value: Any, where: str) -> None:
        if value is None:
            return
        kept = self._scanned(LOGPROBS, value, where)
        if len({name == "content" for name in LISTED if not is_nothing(kept.get(name))}) > 1:
            choice.refuse(where.rstrip("."), "log probabilities in two forms")
        for name in LISTED:
            if isinstance(kept.get(name), list):
                listed = [self.logprob(entry, where) for entry in kept[name]] if name == "content" else kept[name]
                choice.logprobs.setdefault(name, []).extend(listed)

    def logprob(self, value: Any, where: str) -> dict[str, Any]:
        """The kept fields of a log probability and of the most likely ones beside it."""
        kept = {name: content for name, content in self._scanned(LOGPROB, value, where).items() if content is not None}
        tops = kept.get("top_logprobs")
        return kept | {"top_logprobs": [self.logprob(top, where) for top in tops]} if tops else kept


def _index(value: Mapping[str, Any], place: int, most: int, complaint: str) -> int:
    """The `index` of a choice or call, which is `place` where it states none."""
    number = place if value.get("index") is None else value["index"]
    if type(number) is not int or not 0 <= number < most:
        raise MalformedError(f"response: {complaint}")
    return number


def is_token_ids(value: Any) -> TypeGuard[list[int]]:
    """Whether a JSON value is a list of at most `TOKENS_MAX` token ids."""
    is_short = isinstance(value, list) and len(value) <= TOKENS_MAX
    return is_short and all(type(token) is int and 0 <= token < 1 << 31 for token in value)


def receipt_fields(receipts: Sequence[Json]) -> dict[str, Any]:
    """The receipts of an answer as its last fields: `receipt` has the first, `receipts` all where there are more."""
    fields: dict[str, Any] = {"receipt": receipts[0]} if receipts else {}
    return fields | ({"receipts": [*receipts]} if len(receipts) > 1 else {})


def _text_of(content: Any, where: str, choice: ReadChoice) -> str | None:
    """The text of a message: a text, or parts of text."""
    if content is None or isinstance(content, str):
        return content
    parts: Sequence[Any] = content if isinstance(content, list) else [content]
    for part in parts:
        is_text = isinstance(part, Mapping) and part.keys() == {"type", "text"} and isinstance(part["text"], str)
        if not is_text or part["type"] != "text":
            choice.remarks.append(Remark("open", where, "a part that is no text"))
    return "".join(str(part.get("text") or "") for part in parts if isinstance(part, Mapping))
