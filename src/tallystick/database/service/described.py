"""How the operations are described in OpenAPI: rows, parameters, problems."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from tallystick.core.http.problems import MEDIA_TYPE
from tallystick.database.nouns import Noun
from tallystick.database.query import PAGE_MAX, RowQuery
from tallystick.database.rows import NOUNS

Schema = dict[str, Any]
NAMES: Final = {str: "string", int: "integer", float: "number", bool: "boolean"}
PLACE: Final[Schema] = {
    "type": "array",
    "items": {"type": ["string", "integer", "number", "boolean"]},
    "description": "A place among the rows, as a page names it.",
}
PROBLEM: Final[Schema] = {
    "type": "object",
    "required": ["code", "detail", "status", "title", "type"],
    "additionalProperties": False,
    "properties": {
        "code": {"type": ["string", "null"]},
        "detail": {"type": "string"},
        "status": {"type": "integer"},
        "title": {"type": "string"},
        "type": {"type": "string"},
    },
}
REFUSED: Final[dict[int | str, dict[str, Any]]] = {
    each: {"description": what, "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}}
    for each, what in (("4XX", "The request is refused."), ("503", "The service cannot answer now."))
}


def answers(schema: Schema, what: str, media_type: str = "application/json", status: int = 200) -> Any:
    """The responses of an operation that answers with `schema`, or refuses."""
    return {status: {"description": what, "content": {media_type: {"schema": schema}}}, **REFUSED}


def page_schema(noun: Noun) -> Schema:
    """A page of rows of a noun."""
    return {
        "type": "object",
        "required": ["rows", "after"],
        "additionalProperties": False,
        "properties": {
            "rows": {"type": "array", "items": {"$ref": f"#/components/schemas/{noun.row.__name__}"}},
            "after": {"anyOf": [PLACE, {"type": "null"}]},
        },
    }


def row_schema(noun: Noun) -> Schema:
    """A row of a noun."""
    known = {name: _value(kind, name in noun.optional) for name, kind in noun.types.items()}
    described = (noun.row.__doc__ or "").strip()
    return {
        "type": "object",
        "description": described,
        "required": [*known],
        "additionalProperties": False,
        "properties": known,
    }


def row_parameters(noun: Noun) -> list[Schema]:
    """The parameters with which rows of a noun are asked for in a URL."""
    fixed: tuple[tuple[str, Schema, str], ...] = (
        ("limit", {"type": "integer", "minimum": 1, "maximum": PAGE_MAX}, "The largest number of rows."),
        ("after", {"type": "string"}, "The place behind which the page begins, as JSON."),
        ("order", {"type": "string", "enum": list(orders_of(noun))}, "The field that orders the rows."),
        ("descending", {"type": "boolean"}, "The last rows first."),
    )
    return [_parameter(*each) for each in (*fixed, *_tests(noun))]


def orders_of(noun: Noun) -> tuple[str, ...]:
    """The fields by which rows of a noun can be ordered."""
    return (*noun.orders, *(each for each in noun.key if each in noun.types))


def describe(app: FastAPI) -> Schema:
    """The OpenAPI document of an application."""
    if app.openapi_schema is None:
        found = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
        schemas = found.setdefault("components", {}).setdefault("schemas", {})
        schemas |= {noun.row.__name__: row_schema(noun) for noun in NOUNS.values()} | {"Problem": PROBLEM}
        schemas |= RowQuery.model_json_schema(ref_template="#/components/schemas/{model}")["$defs"]
        found["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        app.openapi_schema = found
    return app.openapi_schema


def _tests(noun: Noun) -> Iterator[tuple[str, Schema, str]]:
    for name, kind in noun.types.items():
        if name == "place":
            continue
        value: Schema = {"type": NAMES[kind]}
        yield name, {"type": "array", "items": value}, "This value, or one of these."
        if kind in (int, float):
            yield f"{name}.at_least", value, "Not below this value."
            yield f"{name}.below", value, "Below this value."
        if kind is str:
            yield f"{name}.starts_with", {"type": "string", "minLength": 1, "maxLength": 128}, "Text that begins so."
        if name in noun.optional:
            yield f"{name}.stated", {"type": "boolean"}, "Whether there is a value."


def _parameter(name: str, schema: Schema, what: str) -> Schema:
    return {"name": name, "in": "query", "required": False, "description": what, "schema": schema}


def _value(kind: type, is_optional: bool) -> Schema:
    forms: list[Schema] = [{"type": NAMES[kind]}]
    if kind is float:
        forms.append({"enum": ["nan", "inf", "-inf"]})
    if is_optional:
        forms.append({"type": "null"})
    return forms[0] if len(forms) == 1 else {"anyOf": forms}
