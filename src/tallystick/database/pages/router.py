"""The pages as an application: each view as HTML with its twin in JSON, over places that are read again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import partial
from http import HTTPStatus
from typing import Any, Final, Self

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware

from tallystick.core.errors import TallyError, UnavailableError, UsageError, suggestion
from tallystick.core.http.problems import Problem, problem_response
from tallystick.database.indexing.add import add_place
from tallystick.database.pages.addresses import PageQuestion
from tallystick.database.pages.audits import (
    audit_view,
    audits_view,
    claim_view,
    dispute_view,
    disputes_view,
    receipts_view,
    stream_view,
)
from tallystick.database.pages.graphs import (
    devices_view,
    graph_view,
    graphs_view,
    operator_view,
    timeline_view,
    timelines_view,
)
from tallystick.database.pages.rendering import STATIC, html_of, json_of, static_file
from tallystick.database.pages.runs import overview, run_view, runs_view, step_view
from tallystick.database.query import DatabaseQueries
from tallystick.database.workload_database import WorkloadDatabase

# Places that are read again while their pages are open, so that a run which is being recorded grows there.

PAUSE_SECONDS: Final = 2.0


class Following:
    """Reads what is new at some places every two seconds, from a thread, while its block lasts.

    A place that cannot be read is tried again; `tell` is told what is wrong with it, once.
    """

    def __init__(self, database: WorkloadDatabase, places: tuple[str, ...], tell: Callable[[str], None]) -> None:
        self._database, self._places, self._tell = database, places, tell
        self._problems: dict[str, str] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="following", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def read(self) -> None:
        """Read every place in whole; raises what `add_place` raises."""
        for place in self._places:
            add_place(self._database, place, tensors=False)

    def read_on(self) -> None:
        """Read what is new at every place."""
        for place in self._places:
            try:
                add_place(self._database, place, tensors=False, whole=False)
                self._problems.pop(place, None)
            except TallyError as error:
                if self._problems.get(place) != str(error):
                    self._tell(str(error))
                self._problems[place] = str(error)

    def _follow(self) -> None:
        while not self._ended.wait(PAUSE_SECONDS):
            self.read_on()


# The routes of the pages: each view as HTML, and its twin as JSON.

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

Viewed = Callable[[DatabaseQueries, PageQuestion], Mapping[str, Any]]


VIEWS: Final[Mapping[str, Viewed]] = {
    "overview": overview,
    "runs": runs_view,
    "run": run_view,
    "step": step_view,
    "graphs": graphs_view,
    "graph": graph_view,
    "operator": operator_view,
    "timelines": timelines_view,
    "timeline": timeline_view,
    "devices": devices_view,
    "audits": audits_view,
    "audit": audit_view,
    "claim": claim_view,
    "receipts": receipts_view,
    "stream": stream_view,
    "disputes": disputes_view,
    "dispute": dispute_view,
}
"""What each page shows, by the name in its address; `NAME.html` lays it out."""


def page_routes(database: DatabaseQueries) -> APIRouter:
    """The pages over a database. Their links are relative, so they stand under any prefix that ends in a slash."""
    routes = APIRouter(include_in_schema=False)
    for name in VIEWS:
        paths = ("/", "/overview") if name == "overview" else (f"/{name}",)
        for path in paths:
            routes.add_api_route(path, partial(_page, database, name), methods=["GET"])
        routes.add_api_route(f"/{name}.json", partial(_twin, database, name), methods=["GET"])
    for name in STATIC:
        routes.add_api_route(f"/static/{name}", partial(_static, name), methods=["GET"])
    return routes


def _page(database: DatabaseQueries, name: str, request: Request) -> Response:
    try:
        values = VIEWS[name](database, PageQuestion(dict(request.query_params)))
    except TallyError as error:
        return refusal_page(_problem(error))
    twin = f"{name}.json" + (f"?{request.url.query}" if request.url.query else "")
    page = html_of(f"{name}.html", {"page": name, "twin": twin, **values})
    return Response(page, headers=PRIVATE, media_type="text/html; charset=utf-8")


def _twin(database: DatabaseQueries, name: str, request: Request) -> Response:
    try:
        values = VIEWS[name](database, PageQuestion(dict(request.query_params)))
    except TallyError as error:
        return problem_response(_problem(error))
    return Response(json_of(values), headers=PRIVATE, media_type="application/json")


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
    values = {"page": "problem", "title": HTTPStatus(problem.status).phrase, "detail": problem.detail}
    above = {"up": "../" * depth} if depth else {}
    page = html_of("problem.html", {**values, **above})
    return Response(page, problem.status, {**problem.headers, **PRIVATE}, "text/html; charset=utf-8")


# The pages as an application of their own, on loopback.

LOOPBACK: Final = ("localhost", "127.0.0.1", "[::1]", "testserver")
"""A page of another site whose name was made to lead here has another host, and gets nothing."""


def create_pages(database: DatabaseQueries) -> FastAPI:
    """The application of `tally ui`; it answers only requests that name this machine as their host."""
    app = FastAPI(title="tally ui", openapi_url=None)
    app.include_router(page_routes(database))
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=[*LOOPBACK])
    app.add_exception_handler(HTTPException, _refused)
    return app


async def _refused(request: Request, error: Exception) -> Response:
    """A page for browsers, which ask for HTML; a problem for programs, and where a twin is asked for."""
    assert isinstance(error, HTTPException)  # as it was registered
    path = request.url.path
    is_absent = error.status_code == 404
    near = suggestion(path.removesuffix(".json").strip("/"), VIEWS) if is_absent else ""
    detail = f"{path}: {'there is no such page' if is_absent else error.detail}{near}"
    problem = Problem(error.status_code, "absent" if is_absent else "usage", detail, headers=dict(error.headers or {}))
    is_shown = "text/html" in request.headers.get("accept", "") and not path.endswith(".json")
    return refusal_page(problem, max(0, path.count("/") - 1)) if is_shown else problem_response(problem)
