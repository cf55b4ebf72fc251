"""What an operator sees of the service: its log, its problems (RFC 9457), its counters and its health."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final

import sqlalchemy as sa
from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Histogram, generate_latest
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tallystick.core.errors import MalformedError, ProofError, RuleError, TallyError, UnavailableError, UsageError
from tallystick.core.http.problems import Problem, answer_errors, problem_response
from tallystick.database.service.responses import answers, json_response, object_of
from tallystick.database.workload_database import WorkloadDatabase, newest

# The log of the service: one line of JSON on stderr for each request, and for each thing that failed.

_LOCK = threading.Lock()


def write_line(event: Mapping[str, Any]) -> None:
    """Write one line; control characters of clients are escaped, as JSON escapes them."""
    line = json.dumps({"time": datetime.now(UTC).isoformat(timespec="milliseconds"), **event})
    with _LOCK:
        print(line, file=sys.stderr, flush=True)


# How the service answers what goes wrong: problems (RFC 9457) without a path of this machine.

CODES = {404: "absent", 405: "method"}
NO_ROUTE = "nothing is answered here; /openapi.json says what is, and `tally ui --db URL` shows it in a browser"


def answer_errors_alike(app: FastAPI) -> None:
    """Answer every error as a problem; what failed here is written to the log alone."""
    closing = {"Connection": "close"}  # uvicorn hangs up after a failure
    answer_errors(
        app,
        problem_response,
        {
            UsageError: lambda _, error: Problem(400, "usage", str(error)),
            MalformedError: lambda _, error: Problem(400, "malformed", str(error)),
            RuleError: lambda _, error: Problem(409, error.code, str(error)),
            TallyError: _unavailable,
            RequestValidationError: lambda _, error: Problem(
                400, "malformed", f"{'.'.join(map(str, error.errors()[0]['loc']))}: {error.errors()[0]['msg']}"
            ),
            HTTPException: lambda _, error: Problem(
                error.status_code,
                CODES.get(error.status_code, "route"),
                NO_ROUTE if error.status_code == 404 else str(error.detail),
                headers=dict(error.headers or {}),
            ),
            ClientDisconnect: lambda _, __: Problem(400, "malformed", "the client left"),
            Exception: lambda _, error: Problem(
                500, "failed", "the service failed at this request", headers=closing | _noted(error)
            ),
        },
    )


@contextmanager
def files_of_a_run() -> Iterator[None]:
    """Turn what is wrong with the files of a run into a problem: nothing is wrong with the request."""
    try:
        yield
    except (MalformedError, ProofError) as error:
        write_line({"event": "damaged", "error": str(error)})
        raise Problem(409, "damaged", "the files of this run are not as they should be; tell its operator") from None
    except UnavailableError as error:
        write_line({"event": "missing", "error": str(error)})
        raise Problem(404, "absent", "a file of this run is not there") from None


def _unavailable(request: Request, error: TallyError) -> Problem:
    write_line({"event": "unavailable", "path": request.url.path, "error": str(error)})
    return Problem(503, "unavailable", "something the service needs is not there now", headers={"Retry-After": "1"})


def _noted(error: Exception) -> dict[str, str]:
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    where = "" if at is None else f"{at.tb_frame.f_code.co_filename}:{at.tb_lineno}"
    write_line({"event": "failed", "error": f"{type(error).__name__}: {error}", "where": where})
    return {}


# What an operator sees of the service: a line in the log for each request, counters for Prometheus, and its health.

GONE: Final = 499
"""The status in the log where the client left before the answer began."""
_HEALTH: Final = object_of({"status": {"const": "ok"}, "form": {"type": "string"}})


class RequestCounts:
    """Counts requests, bytes and seconds by method, route and status; no URL and no name of a client is kept."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        labels = ("method", "route", "status")
        self.requests = Counter("tally_requests", "Requests that were answered", labels, registry=self.registry)
        self.sent = Counter("tally_sent_bytes", "Bytes of answers", registry=self.registry)
        self.seconds = Histogram("tally_request_seconds", "Time to answer", ("route",), registry=self.registry)


class WatchedRequests:
    """Middleware that writes a line and counts, once the answer is sent."""

    def __init__(self, app: ASGIApp, counts: RequestCounts) -> None:
        self._app, self._counts = app, counts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request, and note what was answered."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status, size, begun = GONE, 0, time.perf_counter()

        async def noted(message: Message) -> None:
            nonlocal status, size
            if message["type"] == "http.response.start":
                status = message["status"]
            size += len(message.get("body", b""))
            await send(message)

        try:
            await self._app(scope, receive, noted)
        finally:
            self._note(scope, status, size, time.perf_counter() - begun)

    def _note(self, scope: Scope, status: int, size: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", "none")
        method = scope["method"] if route != "none" else "any"
        self._counts.requests.labels(method, route, str(status)).inc()
        self._counts.sent.inc(size)
        self._counts.seconds.labels(route).observe(seconds)
        write_line(
            {
                "event": "request",
                "method": scope["method"],
                "path": scope["path"][:500],
                "status": status,
                "bytes": size,
                "seconds": round(seconds, 6),
                "client": scope["client"][0] if scope.get("client") else None,
                "token": scope.get("state", {}).get("caller"),
            }
        )


def watch(app: FastAPI, database: WorkloadDatabase) -> APIRouter:
    """Note every request of an application; the routes for its health and its counters."""
    counts = RequestCounts()
    app.add_middleware(WatchedRequests, counts=counts)
    routes = APIRouter(tags=["operation"])

    @routes.get("/health", responses=answers(_HEALTH, "The service and its database answer."))
    async def health() -> Response:
        """Whether the service and its database answer."""

        def ask() -> None:
            with database.sql.reading() as connection:
                connection.execute(sa.select(1))

        await asyncio.to_thread(ask)
        return json_response({"status": "ok", "form": newest()})

    text = answers({"type": "string"}, "Counters for Prometheus.", "text/plain")

    @routes.get("/metrics", responses=text)
    async def metrics() -> Response:
        """Counters in the text format of Prometheus."""
        return Response(generate_latest(counts.registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    return routes
