"""The pages as an application of their own, on loopback."""

from __future__ import annotations

from typing import Final

from fastapi import FastAPI, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware

from tallystick.api.database import Database
from tallystick.documents.suggestions import suggestion
from tallystick.http.problems import Problem, problem_response
from tallystick.web.pages.router import VIEWS, page_routes, refusal_page

LOOPBACK: Final = ("localhost", "127.0.0.1", "[::1]", "testserver")
"""A page of another site whose name was made to lead here has another host, and gets nothing."""


def create_pages(database: Database) -> FastAPI:
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
    meant = suggestion(path.removesuffix(".json").strip("/"), [view.name for view in VIEWS]) if is_absent else ""
    detail = f"{path}: {'there is no such page' if is_absent else error.detail}{meant}"
    problem = Problem(error.status_code, "absent" if is_absent else "usage", detail, headers=dict(error.headers or {}))
    is_shown = "text/html" in request.headers.get("accept", "") and not path.endswith(".json")
    return refusal_page(problem, max(0, path.count("/") - 1)) if is_shown else problem_response(problem)
