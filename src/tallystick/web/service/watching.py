"""What an operator sees of the service: a line in the log for each request, counters for Prometheus, and its health."""

from __future__ import annotations

import asyncio
import time
from typing import Final

import sqlalchemy as sa
from fastapi import APIRouter, FastAPI
from fastapi.responses import Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Histogram, generate_latest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tallystick.store.database.migrating import newest
from tallystick.store.database.workload_database import WorkloadDatabase
from tallystick.web.service.described import answers
from tallystick.web.service.logging import write_line
from tallystick.web.service.row_routes import json_response

GONE: Final = 499
"""The status in the log where the client left before the answer began."""
_HEALTH: Final = {
    "type": "object",
    "required": ["status", "form"],
    "additionalProperties": False,
    "properties": {"status": {"const": "ok"}, "form": {"type": "string"}},
}


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
        await asyncio.to_thread(_ask, database)
        return json_response({"status": "ok", "form": newest()})

    text = answers({"type": "string"}, "Counters for Prometheus.", "text/plain")

    @routes.get("/metrics", responses=text)
    async def metrics() -> Response:
        """Counters in the text format of Prometheus."""
        return Response(generate_latest(counts.registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    return routes


def _ask(database: WorkloadDatabase) -> None:
    with database.sql.reading() as connection:
        connection.execute(sa.select(1))
