"""The routes of the pages: each view as HTML, and its twin as JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any, Final

from fastapi import APIRouter, Request
from fastapi.responses import Response

from tallystick.api.database import Database
from tallystick.errors import TallyError, UnavailableError, UsageError
from tallystick.http.problems import Problem, problem_response
from tallystick.web.pages.asked import PageQuestion
from tallystick.web.pages.audits import audit_view, audits_view, claim_view
from tallystick.web.pages.clusters import devices_view
from tallystick.web.pages.disputes import dispute_view, disputes_view
from tallystick.web.pages.graphs import graph_view, graphs_view, operator_view
from tallystick.web.pages.overview import overview
from tallystick.web.pages.receipts import receipts_view, stream_view
from tallystick.web.pages.rendering import STATIC, html_of, json_of, static_file
from tallystick.web.pages.runs import run_view, runs_view
from tallystick.web.pages.steps import step_view
from tallystick.web.pages.timelines import timeline_view, timelines_view

HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
PRIVATE: Final = {**HEADERS, "Cache-Control": "no-store"}

Viewed = Callable[[Database, PageQuestion], Mapping[str, Any]]


@dataclass(frozen=True)
class PageView:
    """A page: what its address is called, and what it finds for it."""

    name: str
    find: Viewed

    @property
    def template(self) -> str:
        """The file that lays out what was found."""
        return f"{self.name}.html"


VIEWS: Final = (
    PageView("overview", overview),
    PageView("runs", runs_view),
    PageView("run", run_view),
    PageView("step", step_view),
    PageView("graphs", graphs_view),
    PageView("graph", graph_view),
    PageView("operator", operator_view),
    PageView("timelines", timelines_view),
    PageView("timeline", timeline_view),
    PageView("devices", devices_view),
    PageView("audits", audits_view),
    PageView("audit", audit_view),
    PageView("claim", claim_view),
    PageView("receipts", receipts_view),
    PageView("stream", stream_view),
    PageView("disputes", disputes_view),
    PageView("dispute", dispute_view),
)


def page_routes(database: Database) -> APIRouter:
    """The pages over a database. Their links are relative, so they stand under any prefix that ends in a slash."""
    routes = APIRouter(include_in_schema=False)
    for view in VIEWS:
        paths = ("/", "/overview") if view.name == "overview" else (f"/{view.name}",)
        for path in paths:
            routes.add_api_route(path, partial(_page, database, view), methods=["GET"])
        routes.add_api_route(f"/{view.name}.json", partial(_twin, database, view), methods=["GET"])
    for name in STATIC:
        routes.add_api_route(f"/static/{name}", partial(_static, name), methods=["GET"])
    return routes


def _page(database: Database, view: PageView, request: Request) -> Response:
    try:
        found = view.find(database, PageQuestion(dict(request.query_params)))
    except TallyError as error:
        return refusal_page(_problem(error))
    twin = f"{view.name}.json" + (f"?{request.url.query}" if request.url.query else "")
    page = html_of(view.template, {"page": view.name, "twin": twin, **found})
    return Response(page, headers=PRIVATE, media_type="text/html; charset=utf-8")


def _twin(database: Database, view: PageView, request: Request) -> Response:
    try:
        found = view.find(database, PageQuestion(dict(request.query_params)))
    except TallyError as error:
        return problem_response(_problem(error))
    return Response(json_of(found), headers=PRIVATE, media_type="application/json")


def _static(name: str) -> Response:
    headers = {**HEADERS, "Cache-Control": "max-age=3600"}
    return Response(static_file(name), headers=headers, media_type=STATIC[name])


def _problem(error: TallyError) -> Problem:
    """What a page answers to an error: the address was wrong, or it leads to nothing, or a file is damaged."""
    status, code = (400, "usage") if isinstance(error, UsageError) else (500, "malformed")
    if isinstance(error, UnavailableError):
        status, code = 404, "absent"
    return Problem(status, code, str(error), headers=PRIVATE)


def refusal_page(problem: Problem, depth: int = 0) -> Response:
    """A problem as a page, for an address that is `depth` folders deep."""
    found = {"page": "problem", "title": HTTPStatus(problem.status).phrase, "detail": problem.detail}
    above = {"up": "../" * depth} if depth else {}
    page = html_of("problem.html", {**found, **above})
    return Response(page, problem.status, {**problem.headers, **PRIVATE}, "text/html; charset=utf-8")
