"""A listening socket and the HTTP server behind it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import uvicorn

from tallystick.errors import UnavailableError
from tallystick.http.guarding import ConnectionLimits, GuardedProtocol

BACKLOG: Final = 1024
GRACE_SECONDS: Final = 5
START_SECONDS: Final = 60.0


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 means any free port. Raises `UnavailableError` if the address cannot be used."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With IPPROTO_TCP, asyncio sets TCP_NODELAY, so that small writes are sent at once.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(BACKLOG)
    except (OSError, OverflowError) as error:
        listening.close()
        raise UnavailableError(f"{host}:{port}: cannot listen there: {error}") from None
    return listening


def address_of(listening: socket.socket) -> str:
    """The URL of a listening socket."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def http_server(app: Any, limits: ConnectionLimits | None = None) -> uvicorn.Server:
    """The server of an application; `run(sockets=[…])` serves until SIGINT or SIGTERM."""
    limits = (limits or ConnectionLimits()).affordable()
    return uvicorn.Server(
        uvicorn.Config(
            app,
            http=partial(GuardedProtocol, limits),  # type: ignore[arg-type]
            ws="none",
            lifespan="on",
            log_level="warning",
            access_log=False,
            server_header=False,
            limit_concurrency=limits.connections + 1,
            timeout_graceful_shutdown=GRACE_SECONDS,
        )
    )


@contextmanager
def served(app: Any, host: str = "127.0.0.1", limits: ConnectionLimits | None = None) -> Iterator[str]:
    """Serve on a free port from a thread and yield the URL; raises `UnavailableError` if the server does not start."""
    server, listening = http_server(app, limits), bind(host, 0)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, name="http")
    thread.start()
    try:
        _await_start(server, thread)
        yield address_of(listening)
    finally:
        server.should_exit = True
        thread.join()
        listening.close()


def _await_start(server: uvicorn.Server, thread: threading.Thread) -> None:
    pause = threading.Event()
    for _ in range(int(START_SECONDS / 0.01)):
        if server.started:
            return
        if not thread.is_alive():
            break
        pause.wait(0.01)
    raise UnavailableError("the server did not start")
