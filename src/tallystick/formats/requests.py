"""Requests of OpenAI's API, read the same way by servers, proxies and verifiers.

What a request asks for: the form of the answer, the sampler's settings, tools, and the schema that an answer follows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, TypeAlias

from tallystick.core.canonical_json import DEPTH_MAX, loose_json
from tallystick.core.errors import MalformedError
from tallystick.formats.receipt import NONCE

SCHEMA_BYTES_MAX: Final = 1 << 16
COUNT_MAX: Final = 1 << 10
COUNTS: Final = ("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties")
CALLS_MAX: Final = 16
NO_PARAMETERS: Final = {"type": "object", "properties": {}, "additionalProperties": False}
FUNCTION_FIELDS: Final = ("name", "description", "parameters", "strict")
Form = Literal["chat", "text", "responses"]
Wanted: TypeAlias = tuple[str, str]
"""The field of a request that asks for a grammar, and the schema as text."""


def listed(tokens: Any) -> Any:
    """A request's list of tokens as a sampler states it: ascending, each once; anything else unchanged."""
    is_list = isinstance(tokens, list | tuple) and all(type(token) is int for token in tokens)
    return tuple(sorted(set(tokens))) if is_list else tokens


def biases(by_token: Any) -> Any:
    """A request's map from token to bias as a sampler states it; anything else unchanged.

    Tokens are numbers or, as in JSON, decimal strings. A bias of 0 is left out.
    """
    if not isinstance(by_token, Mapping):
        return by_token
    pairs = [(_number(token), bias) for token, bias in by_token.items()]
    return tuple(sorted((pair for pair in pairs if pair[1] != 0), key=lambda pair: str(pair[0]).zfill(8)))


def _number(token: Any) -> Any:
    is_number = isinstance(token, str) and token.isascii() and token.isdigit() and len(token) < 8
    return int(token) if is_number else token


DRAWING: Final = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed")
SETTINGS: Final[Mapping[str, Callable[[Any], Any] | None]] = {
    **dict.fromkeys(DRAWING),
    **dict.fromkeys(("presence_penalty", "frequency_penalty", "min_tokens")),
    **dict.fromkeys(("allowed_token_ids", "bad_token_ids"), listed),
    "logit_bias": biases,
}
"""The fields of a request that a sampler states under the same name, and how it writes their values."""
TEXTS: Final = ("input_text", "output_text", "text")
ONLY_RESPONSES: Final = (
    *("input", "instructions", "max_output_tokens", "text", "store", "truncation", "previous_response_id"),
)


def form_of_request(body: Mapping[str, Any]) -> Form:
    """The form of the answer to a request: the request alone chooses it."""
    if "messages" in body:
        return "chat"
    return "responses" if "input" in body and "prompt" not in body else "text"


def stated_settings(body: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a request as a sampler states them; those that are null or left out are left out."""
    given = {name: body[name] for name in SETTINGS if body.get(name) is not None}
    return {name: value if (write := SETTINGS[name]) is None else write(value) for name, value in given.items()}


def nonce_of(body: Mapping[str, Any]) -> str | None:
    """The customer's nonce in a request; raises `MalformedError` for anything but 1 to 64 bytes."""
    nonce = body.get("tally_nonce")
    if nonce is not None and not (isinstance(nonce, str) and re.fullmatch(NONCE, nonce)):
        raise MalformedError("tally_nonce: 1 to 64 bytes in lower-case hexadecimal")
    return nonce


def chat_body(body: Mapping[str, Any]) -> dict[str, Any]:
    """A request of the Responses API as one for a chat completion.

    Raises `MalformedError` for what no chat completion asks for.
    """
    if body.get("previous_response_id") is not None:
        raise MalformedError("previous_response_id: no answers are kept; send the whole conversation as input")
    chat = {name: value for name, value in body.items() if name not in ONLY_RESPONSES}
    messages, instructions = body["input"], body.get("instructions")
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    if not isinstance(messages, list):
        raise MalformedError("input: a text or a list of messages is needed")
    system = [] if instructions is None else [{"role": "system", "content": instructions}]
    chat["messages"] = [*system, *map(_chat_message, messages)]
    if body.get("max_output_tokens") is not None:
        chat["max_completion_tokens"] = body["max_output_tokens"]
    wanted = (body.get("text") or {}).get("format")
    if isinstance(wanted, Mapping) and wanted.get("type") == "json_schema":
        named = {name: value for name, value in wanted.items() if name != "type"}
        wanted = {"type": "json_schema", "json_schema": named}
    return chat if wanted is None else {**chat, "response_format": wanted}


def _chat_message(item: Any) -> dict[str, Any]:
    if not isinstance(item, Mapping) or item.get("type", "message") != "message" or "role" not in item:
        raise MalformedError("input: only messages are offered")
    content = item.get("content")
    if not isinstance(content, str):
        parts = content if isinstance(content, list) else [None]
        known = [part for part in parts if isinstance(part, Mapping) and part.get("type") in TEXTS]
        texts = [part["text"] for part in known if isinstance(part.get("text"), str)]
        if len(texts) < len(parts):
            raise MalformedError("input: only text is offered")
        content = "".join(texts)
    return {"role": item["role"], "content": content}


def wanted_schema(body: Mapping[str, Any]) -> Wanted | None:
    """The schema that a request in OpenAI's form asks its answers to follow; None if it asks for none.

    The schema's text is compact JSON in the order of the request: properties are written in the order of their schema.
    Raises `MalformedError` for a request that asks for two, and for schemas that are too large.
    """
    from_format, from_tools = _of_format(body.get("response_format")), _of_tools(body)
    if from_format is not None and from_tools is not None:
        raise MalformedError("response_format: an answer cannot also be a call that tool_choice demands")
    wanted = from_format or from_tools
    if wanted is None:
        return None
    kind, schema = wanted
    field = "tools" if kind == "tool_choice" else "response_format"
    if complaint := _too_large(schema, DEPTH_MAX):
        raise MalformedError(f"{field}: the schema is {complaint}")
    text = json.dumps(schema, separators=(",", ":"), ensure_ascii=False)
    if len(text.encode(errors="replace")) > SCHEMA_BYTES_MAX:
        raise MalformedError(f"{field}: the schema has more than {SCHEMA_BYTES_MAX} bytes")
    return kind, text


def shown_tools(body: Mapping[str, Any]) -> str | None:
    """The tools of a request as JSON text in its order, as a chat template gets them; None if it may call none.

    Raises `MalformedError` for tools that are no functions with names of their own.
    """
    tools = body.get("tools") or ()
    names = [_function_name(tool) for tool in tools]
    if len(set(names)) < len(names):
        raise MalformedError("tools: two functions have the same name")
    if not names or body.get("tool_choice") == "none":
        return None
    functions = [{name: tool["function"][name] for name in _in_order(tool["function"])} for tool in tools]
    return json.dumps([{"type": "function", "function": function} for function in functions], ensure_ascii=False)


def _in_order(function: Mapping[str, Any]) -> list[str]:
    """The fields of a function in one order, however they were sent: templates may print the whole object."""
    known = [name for name in FUNCTION_FIELDS if function.get(name) is not None]
    return [*known, *sorted(name for name in function if name not in FUNCTION_FIELDS)]


def template_message(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message of a request as chat templates read it: arguments of calls as objects, fields in a fixed order."""
    shown = {
        name: message[name] for name in ("role", "content", "name", "tool_call_id") if message.get(name) is not None
    }
    calls = message.get("tool_calls") or ()
    if calls:
        shown = {"content": "", **shown, "tool_calls": [_template_call(call) for call in calls]}
    return shown


def _template_call(call: Mapping[str, Any]) -> dict[str, Any]:
    try:
        function = call["function"]
        named = {"name": function["name"], "arguments": loose_json(function["arguments"])}
    except (LookupError, TypeError, ValueError):
        raise MalformedError("messages: a call has a function with a name, and arguments that are JSON") from None
    return {"type": "function", "id": call.get("id"), "function": named}


def _function_name(tool: Any) -> str:
    try:
        name = tool["function"]["name"]
    except (LookupError, TypeError):
        name = None
    if not isinstance(name, str):
        raise MalformedError("tools: each is a function with a name")
    return name


def _of_format(wanted: Any) -> tuple[str, Any] | None:
    kind = wanted.get("type") if isinstance(wanted, Mapping) else None
    if kind == "json_object":
        return kind, {"type": "object"}
    if kind != "json_schema":
        return None
    named = wanted.get("json_schema")
    if not isinstance(named, Mapping) or not isinstance(named.get("schema"), Mapping):
        raise MalformedError("response_format.json_schema.schema: an object is needed")
    return kind, named["schema"]


def _of_tools(body: Mapping[str, Any]) -> tuple[str, Any] | None:
    """The arguments of the named function, or with `required` a list of calls."""
    choice = body.get("tool_choice")
    functions = {_function_name(tool): tool["function"] for tool in body.get("tools") or ()}
    if isinstance(choice, Mapping):
        name = _function_name(choice)
        if name not in functions:
            raise MalformedError(f"tool_choice: {name[:64]!r} is none of the tools")
        return "tool_choice", _parameters(functions[name])
    if choice != "required":
        return None
    if not functions:
        raise MalformedError("tool_choice: required, and there are no tools")
    definitions: dict[str, Any] = {}
    calls = [_call(name, _parameters(function), definitions) for name, function in functions.items()]
    most = 1 if body.get("parallel_tool_calls") is False else CALLS_MAX
    listed: dict[str, Any] = {"type": "array", "minItems": 1, "maxItems": most, "items": {"anyOf": calls}}
    return "tool_choice", listed | ({"$defs": definitions} if definitions else {})


def _parameters(function: Mapping[str, Any]) -> Mapping[str, Any]:
    parameters = function.get("parameters")
    return parameters if isinstance(parameters, Mapping) and parameters else NO_PARAMETERS


def _call(name: str, parameters: Mapping[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """The schema of one call; definitions move to the top, where references look for them."""
    for reference, definition in dict(parameters.get("$defs") or {}).items():
        if definitions.setdefault(reference, definition) != definition:
            raise MalformedError(f"tools: two definitions of {reference[:64]!r}")
    bare = {field: value for field, value in parameters.items() if field != "$defs"}
    properties = {"name": {"enum": [name]}, "parameters": bare}
    return {
        "type": "object",
        "properties": properties,
        "required": ["name", "parameters"],
        "additionalProperties": False,
    }


def _too_large(schema: Any, depth: int) -> str:
    """Why the grammar of a schema would be too large: nesting, or a count; empty if it is not."""
    if depth == 0:
        return f"nested deeper than {DEPTH_MAX}"
    if isinstance(schema, Mapping):
        counts = [count for count in COUNTS if isinstance(schema.get(count), int | float) and schema[count] > COUNT_MAX]
        if counts:
            return f"too large: {counts[0]} is above {COUNT_MAX}"
        schema = list(schema.values())
    inside = schema if isinstance(schema, list | tuple) else ()
    return next((complaint for part in inside if (complaint := _too_large(part, depth - 1))), "")
