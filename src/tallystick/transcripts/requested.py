"""Settings of a request as a sampler states them: lists of tokens, biases, the schema that an answer follows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from tallystick.errors import MalformedError

SCHEMA_BYTES_MAX: Final = 1 << 16
DEPTH_MAX: Final = 64
COUNT_MAX: Final = 1 << 10
COUNTS: Final = ("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties")
CALLS_MAX: Final = 16
Wanted: TypeAlias = tuple[str, str]
"""The field of a request that asks for a grammar, and the schema as text."""


def listed(tokens: Any) -> Any:
    """A request's list of tokens as a sampler states it: ascending, each once; anything else unchanged."""
    is_list = isinstance(tokens, list | tuple) and all(type(each) is int for each in tokens)
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


def wanted_schema(body: Mapping[str, Any]) -> Wanted | None:
    """The schema that a request in OpenAI's form asks its answers to follow; None if it asks for none.

    The schema's text is compact JSON in the order of the request: properties are written in the order of their schema.
    Raises `MalformedError` for a request that asks for two, and for schemas that are too large.
    """
    from_format, from_tools = _of_format(body.get("response_format")), _of_tools(body)
    if from_format is not None and from_tools is not None:
        raise MalformedError("response_format: an answer cannot also be a call that tool_choice demands")
    found = from_format or from_tools
    if found is None:
        return None
    kind, schema = found
    _check_sizes(schema, DEPTH_MAX)
    text = json.dumps(schema, separators=(",", ":"), ensure_ascii=False)
    if len(text.encode(errors="replace")) > SCHEMA_BYTES_MAX:
        raise MalformedError(f"{kind}: a schema of more than {SCHEMA_BYTES_MAX} bytes")
    return kind, text


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
    functions = {each["function"]["name"]: each["function"] for each in body.get("tools") or ()}
    if isinstance(choice, Mapping):
        name = choice["function"]["name"]
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
    found = function.get("parameters")
    return found if isinstance(found, Mapping) and found else {"type": "object", "properties": {}}


def _call(name: str, parameters: Mapping[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """The schema of one call; definitions move to the top, where references look for them."""
    for each, definition in dict(parameters.get("$defs") or {}).items():
        if definitions.setdefault(each, definition) != definition:
            raise MalformedError(f"tools: two definitions of {each[:64]!r}")
    bare = {each: value for each, value in parameters.items() if each != "$defs"}
    properties = {"name": {"enum": [name]}, "parameters": bare}
    return {
        "type": "object",
        "properties": properties,
        "required": ["name", "parameters"],
        "additionalProperties": False,
    }


def _check_sizes(schema: Any, depth: int) -> None:
    """Raise `MalformedError` for counts whose grammar would be too large, and for deep nesting."""
    if depth == 0:
        raise MalformedError(f"the schema: nested deeper than {DEPTH_MAX}")
    if isinstance(schema, Mapping):
        for name, value in schema.items():
            if name in COUNTS and isinstance(value, int | float) and value > COUNT_MAX:
                raise MalformedError(f"the schema: {name} is {value}, above {COUNT_MAX}")
            _check_sizes(value, depth - 1)
    elif isinstance(schema, list | tuple):
        for value in schema:
            _check_sizes(value, depth - 1)
