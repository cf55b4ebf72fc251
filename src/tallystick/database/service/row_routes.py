"""Routes for rows: questions as documents, and simple ones in the URL; the schemas of both in OpenAPI."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from tallystick.core.canonical_json import loose_json
from tallystick.core.errors import UsageError
from tallystick.core.http.problems import Problem
from tallystick.core.http.server import read_json
from tallystick.database.nouns import Noun
from tallystick.database.query import (
    NOT_FINITE,
    PAGE_MAX,
    FieldCondition,
    FieldTest,
    Page,
    RelatedRows,
    RowQuery,
    Value,
    page_json,
    read_question,
    written,
)
from tallystick.database.rows import NOUNS
from tallystick.database.service.access import AskedBy, Caller, ClaimReader, ServiceOptions
from tallystick.database.service.responses import (
    COUNT,
    Schema,
    answers,
    body_of,
    json_response,
    list_of,
    object_of,
)
from tallystick.database.workload_database import WorkloadDatabase

# Questions in a URL: `/v1/steps?run=digits&step.at_least=100&loss.stated=true&limit=50`.

TESTS: Final = ("at_least", "below", "starts_with", "stated")
_INTEGER: Final = re.compile(r"-?[0-9]{1,19}")
_NUMBER: Final = re.compile(r"-?[0-9]{1,40}(\.[0-9]{1,40})?([eE][+-]?[0-9]{1,3})?")


def question_of(noun: str, parameters: Iterable[tuple[str, str]]) -> RowQuery:
    """The question that the parameters of a URL ask; raises `UsageError` at one that does not fit the noun."""
    settings: dict[str, Any] = {}
    values: dict[tuple[str, str], list[Value]] = {}
    for name, text in parameters:
        if name in _SETTINGS:
            if name in settings:
                raise UsageError(f"{name}: given twice")
            settings[name] = _SETTINGS[name](name, text)
        else:
            field, _, test = name.partition(".")
            values.setdefault((field, test), []).append(_value(noun, name, text))
    conditions = tuple(_condition(field, test, given) for (field, test), given in values.items())
    question = RowQuery.model_construct(noun=noun, conditions=conditions, **settings)
    return read_question(question.model_dump_json(exclude_none=True).encode(), "the URL")


def _value(noun: str, name: str, text: str) -> Value:
    field, _, test = name.partition(".")
    kind = NOUNS[noun].types.get(field)
    if kind is None or (test and test not in TESTS) or name.endswith("."):
        raise UsageError(f"{noun}: no such parameter {name[:80]}")
    if kind is bool or test == "stated":
        return _boolean(name, text)
    return text if kind is str else _integer(name, text) if kind is int else _number(name, text)


def _condition(field: str, test: str, values: list[Value]) -> FieldCondition:
    if len(values) > 1 and test:
        raise UsageError(f"{field}.{test}: given twice")
    if len(values) > 1:
        return FieldCondition(field=field, asked=FieldTest.model_construct(one_of=tuple(values)))
    asked: dict[str, Any] = {test or "equal": values[0]}
    return FieldCondition(field=field, asked=FieldTest.model_construct(**asked))


def _boolean(name: str, text: str) -> bool:
    if text not in ("true", "false"):
        raise UsageError(f"{name}: true or false")
    return text == "true"


def _integer(name: str, text: str) -> int:
    if _INTEGER.fullmatch(text) is None:
        raise UsageError(f"{name}: a whole number")
    return int(text)


def _number(name: str, text: str) -> float:
    if _NUMBER.fullmatch(text) is None:
        raise UsageError(f"{name}: a number")
    return float(text)


def _place(name: str, text: str) -> Any:
    try:
        place = loose_json(text)
    except (ValueError, RecursionError):
        place = None
    if not isinstance(place, list) or not all(isinstance(each, str | int | float) for each in place):
        raise UsageError(f"{name}: the place that a page named, as JSON")
    return tuple(place)


_SETTINGS: Final[dict[str, Callable[[str, str], Any]]] = {
    "limit": _integer,
    "after": _place,
    "order": lambda _, text: text,
    "descending": _boolean,
}


GRAPH_NOUNS: Final = {"graphs": "root", "graph_links": "graph", "operators": "graph"}
"""What shows how a model is built, and the field that names the graph: it takes the scope of openings."""
PLACE: Final = "place"
QUESTIONS_AT_ONCE: Final = 4
NAMES: Final = {str: "string", int: "integer", float: "number", bool: "boolean"}
AFTER: Final[Schema] = {
    **list_of({"type": [*NAMES.values()]}),
    "description": "A place among the rows, as a page names it.",
}


def row_schema(noun: Noun) -> Schema:
    """A row of a noun."""
    fields = {field.name: _value_schema(field.kind, field.is_optional) for field in noun.fields}
    return {**object_of(fields), "description": (noun.row.__doc__ or "").strip()}


def page_schema(noun: Noun) -> Schema:
    """A page of rows of a noun."""
    row = {"$ref": f"#/components/schemas/{noun.row.__name__}"}
    return object_of({"rows": list_of(row), "after": {"anyOf": [AFTER, {"type": "null"}]}})


def row_parameters(noun: Noun) -> list[Schema]:
    """The parameters with which rows of a noun are asked for in a URL."""
    fixed: tuple[tuple[str, Schema, str], ...] = (
        ("limit", {"type": "integer", "minimum": 1, "maximum": PAGE_MAX}, "The largest number of rows."),
        ("after", {"type": "string"}, "The place behind which the page begins, as JSON."),
        ("order", {"type": "string", "enum": list(noun.possible_orders)}, "The field that orders the rows."),
        ("descending", {"type": "boolean"}, "The last rows first."),
    )
    return [
        {"name": name, "in": "query", "required": False, "description": what, "schema": schema}
        for name, schema, what in (*fixed, *_test_parameters(noun))
    ]


def _test_parameters(noun: Noun) -> Iterator[tuple[str, Schema, str]]:
    for field in noun.fields:
        if field.name == PLACE:
            continue
        value: Schema = {"type": NAMES[field.kind]}
        yield field.name, list_of(value), "This value, or one of these."
        if field.kind in (int, float):
            yield f"{field.name}.at_least", value, "Not below this value."
            yield f"{field.name}.below", value, "Below this value."
        if field.kind is str:
            text = {"type": "string", "minLength": 1, "maxLength": 128}
            yield f"{field.name}.starts_with", text, "Text that begins so."
        if field.is_optional:
            yield f"{field.name}.stated", {"type": "boolean"}, "Whether there is a value."


def _value_schema(kind: type, is_optional: bool) -> Schema:
    forms: list[Schema] = [{"type": NAMES[kind]}]
    forms += [{"enum": [*NOT_FINITE]}] if kind is float else []
    forms += [{"type": "null"}] if is_optional else []
    return forms[0] if len(forms) == 1 else {"anyOf": forms}


# The routes.

_ASKED: Final = body_of({"$ref": "#/components/schemas/RowQuery"})
_ANY_PAGE: Final = {"anyOf": [page_schema(noun) for noun in NOUNS.values()]}
_COUNT: Final = object_of({"count": COUNT})
_TOTAL: Final = object_of({"total": {"anyOf": [{"type": "number"}, {"enum": [*NOT_FINITE]}]}})


def row_routes(database: WorkloadDatabase, options: ServiceOptions) -> APIRouter:
    """The routes over the rows of one database."""
    routes = APIRouter(tags=["rows"])
    pool = ThreadPoolExecutor(QUESTIONS_AT_ONCE, "questions")

    async def answered(ask: Callable[..., Any], *question: Any) -> Any:
        """What the database answers; slow questions wait for each other, and keep nothing else waiting."""
        return await asyncio.get_running_loop().run_in_executor(pool, ask, *question)

    async def asked(request: Request, caller: Caller) -> RowQuery:
        body = await read_json(request, options.json_bytes_max, options.body_seconds_max)
        return _allowed(read_question(body, "the question"), caller)

    @routes.post("/v1/query", responses=answers(_ANY_PAGE, "A page of rows."), openapi_extra=_ASKED)
    async def query(request: Request, caller: ClaimReader) -> Response:
        """Rows that a question asks for, in pages."""
        question = await asked(request, caller)
        return _page(await answered(database.page, question), question.asked_noun)

    @routes.post("/v1/count", responses=answers(_COUNT, "How many rows there are."), openapi_extra=_ASKED)
    async def count(request: Request, caller: ClaimReader) -> Response:
        """How many rows a question finds in all."""
        rows = await answered(database.count, await asked(request, caller))
        return json_response({"count": rows})

    @routes.post("/v1/total", responses=answers(_TOTAL, "The sum of a field."), openapi_extra=_ASKED)
    async def total(
        request: Request, caller: ClaimReader, field: Annotated[str, Query(pattern="^[a-z_]{1,64}$")]
    ) -> Response:
        """The sum of a field over the rows that a question finds."""
        sum_of_rows = await answered(database.total, await asked(request, caller), field)
        return json_response({"total": written(sum_of_rows)})

    def listing(noun: Noun) -> Callable[..., Any]:
        async def listed(request: Request, caller: AskedBy) -> Response:
            caller.require(_scope_of(noun.name))  # before the parameters are read
            question = _allowed(question_of(noun.name, request.query_params.multi_items()), caller)
            return _page(await answered(database.page, question), noun)

        listed.__doc__ = f"Rows of {noun.name}."
        return listed

    for noun in NOUNS.values():
        extra = {"parameters": row_parameters(noun)}
        described = answers(page_schema(noun), "A page of rows.")
        routes.get(f"/v1/{noun.name}", name=noun.name, responses=described, openapi_extra=extra)(listing(noun))
    return routes


def _page(page: Page[Any], noun: Noun) -> Response:
    """The page without paths of this machine: the place of a run is that of its files in the service."""
    rows = page.rows
    if PLACE in noun.types:
        rows = tuple(replace(row, place=f"/runs/{row.name}" if noun.name == "runs" else "") for row in rows)
    return json_response(page_json(noun, Page(rows, page.after)))


def _allowed(question: RowQuery, caller: Caller) -> RowQuery:
    """`question` as the caller may ask it; raises `Problem` where they may not."""
    for each in _questions(question):
        caller.require(_scope_of(each.noun))
    question.check()
    for each in _questions(question):
        fields = [condition.field for condition in each.conditions]
        fields += [field for related in each.related for field in (related.field, related.their_field)]
        if PLACE in fields:
            raise Problem(400, "malformed", f"{each.noun}: where files lie on the server is not told")
    runs = caller.runs_opened()
    return question if runs is None else _narrowed(question, runs)


def _scope_of(noun: str) -> str:
    return "open" if noun in GRAPH_NOUNS else "claims" if noun == "claims" else "read"


def _questions(question: RowQuery) -> list[RowQuery]:
    return [question, *(inner for each in question.related for inner in _questions(each.question))]


def _narrowed(question: RowQuery, runs: frozenset[str]) -> RowQuery:
    """`question`, with all rows about graphs only of those that these runs use."""
    related = [inner.model_copy(update={"question": _narrowed(inner.question, runs)}) for inner in question.related]
    if question.noun in GRAPH_NOUNS:
        of_runs = FieldCondition(field="run", asked=FieldTest.model_construct(one_of=tuple(sorted(runs))))
        used = RowQuery(noun="graph_uses", conditions=(of_runs,))
        related.append(RelatedRows(field=GRAPH_NOUNS[question.noun], their_field="graph", question=used))
    return question.model_copy(update={"related": tuple(related)})
