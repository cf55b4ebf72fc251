"""The pages as an application of their own, on loopback."""

from __future__ import annotations

from typing import Final

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware

from tallystick.api.database import Database
from tallystick.http.problems import Problem, answer_errors, problem_response
from tallystick.web.pages.router import page_routes

LOOPBACK: Final = ("localhost", "127.0.0.1", "[::1]", "testserver")
"""A page of another site whose name was made to lead here has another host, and gets nothing."""


def create_pages(database: Database) -> FastAPI:
    """The application of `tally ui`; it answers only requests that name this machine as their host."""
    app = FastAPI(title="tally ui", openapi_url=None)
    app.include_router(page_routes(database))
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=[*LOOPBACK])
    answer_errors(app, problem_response, {HTTPException: _absent})
    return app


def _absent(request: Request, error: HTTPException) -> Problem:
    code = "absent" if error.status_code == 404 else "usage"
    return Problem(error.status_code, code, f"{request.url.path}: {error.detail}")
