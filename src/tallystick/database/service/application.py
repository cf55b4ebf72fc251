"""The service over a workload database, for programs: its routes, and what OpenAPI says of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from tallystick import __version__
from tallystick.database.query import RowQuery
from tallystick.database.rows import NOUNS
from tallystick.database.service.access import Gate, ServiceOptions
from tallystick.database.service.ingest_routes import ingest_routes
from tallystick.database.service.responses import Schema, object_of
from tallystick.database.service.row_routes import row_routes, row_schema
from tallystick.database.service.run_routes import OpenedSegments, challenge_routes, run_routes
from tallystick.database.service.watching import answer_errors_alike, watch
from tallystick.database.workload_database import WorkloadDatabase

DESCRIPTION = (
    "Rows of a workload database, files of runs, and openings with proofs. "
    "Nothing here has to be believed: clients recompute digests and proofs."
)

PROBLEM: Final[Schema] = object_of(
    {
        "code": {"type": ["string", "null"]},
        "detail": {"type": "string"},
        "status": {"type": "integer"},
        "title": {"type": "string"},
        "type": {"type": "string"},
    }
)


def build_application(
    database: WorkloadDatabase, options: ServiceOptions | None = None, now: Callable[[], float] = time.monotonic
) -> FastAPI:
    """The application over one database, which the caller opens and closes; `now` is the clock of request rates."""
    options = options or ServiceOptions()
    segments = OpenedSegments(options.opened_segments_max)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(segments.close)

    app = FastAPI(
        title="tally serve",
        version=__version__,
        description=DESCRIPTION,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json",
    )
    app.openapi = lambda: describe(app)  # type: ignore[method-assign]
    answer_errors_alike(app)
    app.state.gate = Gate(database, options, now)
    app.include_router(row_routes(database, options))
    app.include_router(run_routes(database, segments))
    app.include_router(ingest_routes(database, options))
    app.include_router(challenge_routes(database, segments, options))
    app.include_router(watch(app, database))
    return app


def describe(app: FastAPI) -> Schema:
    """The OpenAPI document of an application."""
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        schemas |= {noun.row.__name__: row_schema(noun) for noun in NOUNS.values()} | {"Problem": PROBLEM}
        schemas |= RowQuery.model_json_schema(ref_template="#/components/schemas/{model}")["$defs"]
        document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        app.openapi_schema = document
    return app.openapi_schema
