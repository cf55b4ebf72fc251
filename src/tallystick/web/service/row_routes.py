"""Routes for rows: questions as documents, and simple ones in the URL."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from tallystick.http.bodies import read_json
from tallystick.http.problems import Problem
from tallystick.store.database.nouns import NOUNS, Noun
from tallystick.store.database.query import Page
from tallystick.store.database.row_query import FieldCondition, FieldTest, RelatedRows, RowQuery
from tallystick.store.database.row_text import NOT_FINITE, page_json, read_question, written
from tallystick.store.database.workload_database import WorkloadDatabase
from tallystick.web.service.access import AskedBy, Caller, ClaimReader
from tallystick.web.service.described import answers, page_schema, row_parameters
from tallystick.web.service.settings import ServiceOptions
from tallystick.web.service.url_filters import question_of

GRAPH_NOUNS: Final = {"graphs": "root", "graph_links": "graph", "operators": "graph"}
"""What shows how a model is built, and the field that names the graph: it takes the scope of openings."""
PLACE: Final = "place"
QUESTIONS_AT_ONCE: Final = 4
_ASKED: Final = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/RowQuery"}}},
    }
}
_ANY_PAGE: Final = {"anyOf": [page_schema(noun) for noun in NOUNS.values()]}
_COUNT: Final = {
    "type": "object",
    "required": ["count"],
    "additionalProperties": False,
    "properties": {"count": {"type": "integer", "minimum": 0}},
}
_TOTAL: Final = {
    "type": "object",
    "required": ["total"],
    "additionalProperties": False,
    "properties": {"total": {"anyOf": [{"type": "number"}, {"enum": [*NOT_FINITE]}]}},
}


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
        found = await answered(database.count, await asked(request, caller))
        return json_response({"count": found})

    @routes.post("/v1/total", responses=answers(_TOTAL, "The sum of a field."), openapi_extra=_ASKED)
    async def total(
        request: Request, caller: ClaimReader, field: Annotated[str, Query(pattern="^[a-z_]{1,64}$")]
    ) -> Response:
        """The sum of a field over the rows that a question finds."""
        found = await answered(database.total, await asked(request, caller), field)
        return json_response({"total": written(found)})

    for noun in NOUNS.values():
        extra = {"parameters": row_parameters(noun)}
        described = answers(page_schema(noun), "A page of rows.")
        routes.get(f"/v1/{noun.name}", name=noun.name, responses=described, openapi_extra=extra)(
            _listed(noun, lambda question: answered(database.page, question))
        )
    return routes


def json_response(value: Any, status: int = 200) -> Response:
    """JSON values as a response."""
    return Response(json.dumps(value, separators=(",", ":"), allow_nan=False), status, media_type="application/json")


def _listed(noun: Noun, answered: Callable[[RowQuery], Awaitable[Page[Any]]]) -> Callable[..., Any]:
    async def listed(request: Request, caller: AskedBy) -> Response:
        caller.require(_scope_of(noun.name))  # before the parameters are read
        question = _allowed(question_of(noun.name, request.query_params.multi_items()), caller)
        return _page(await answered(question), noun)

    listed.__doc__ = f"Rows of {noun.name}."
    return listed


def _page(found: Page[Any], noun: Noun) -> Response:
    return json_response(page_json(noun, Page(tuple(_shown(noun, row) for row in found.rows), found.after)))


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
    related = [each.model_copy(update={"question": _narrowed(each.question, runs)}) for each in question.related]
    if question.noun in GRAPH_NOUNS:
        of_runs = FieldCondition(field="run", asked=FieldTest.model_construct(one_of=tuple(sorted(runs))))
        used = RowQuery(noun="graph_uses", conditions=(of_runs,))
        related.append(RelatedRows(field=GRAPH_NOUNS[question.noun], their_field="graph", question=used))
    return question.model_copy(update={"related": tuple(related)})


def _shown(noun: Noun, row: Any) -> Any:
    """A row without paths of this machine: the place of a run is that of its files in the service."""
    if PLACE not in noun.types:
        return row
    return replace(row, place=f"/runs/{row.name}" if noun.name == "runs" else "")
