"""What the workload database shows to others: pages for people, and a service for programs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from fastapi import FastAPI

from tallystick import __version__
from tallystick.database.service.access import Gate, ServiceOptions
from tallystick.database.service.challenge_routes import challenge_routes
from tallystick.database.service.described import describe
from tallystick.database.service.ingest_routes import ingest_routes
from tallystick.database.service.row_routes import row_routes
from tallystick.database.service.run_routes import OpenedSegments, run_routes
from tallystick.database.service.watching import answer_errors_alike, watch
from tallystick.database.workload_database import WorkloadDatabase

DESCRIPTION = (
    "Rows of a workload database, files of runs, and openings with proofs. "
    "Nothing here has to be believed: clients recompute digests and proofs."
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
