"""A listening HTTP server with limits on connections, bodies and concurrent uploads."""

from __future__ import annotations

import asyncio
import resource
import socket
import tempfile
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from ipaddress import IPv6Address, ip_address, ip_network
from typing import IO, Any, Final

import uvicorn
from fastapi import Request
from uvicorn.protocols.http.h11_impl import H11Protocol

from tallystick.core.errors import UnavailableError
from tallystick.core.http.problems import Problem

# Limits on concurrent uploads: in all, per owner, and for owners who may use only a share of all places.

AT_ONCE: Final = 8
OF_ONE_OWNER: Final = 2


class Uploads:
    """Counts the uploads of one server; not thread-safe."""

    def __init__(self) -> None:
        self._owners = Counter[str]()

    @contextmanager
    def one(self, owner: str, share: Fraction) -> Iterator[None]:
        """Count one upload while the block runs.

        Raises `Problem` with status 429 if the owner has too many, or if `share` of all places are taken.
        """
        if self._owners[owner] >= OF_ONE_OWNER or self._owners.total() >= AT_ONCE * share:
            raise Problem(429, "busy", "too many uploads at once; come back", headers={"Retry-After": "1"})
        self._owners[owner] += 1
        try:
            yield
        finally:
            self._owners -= Counter([owner])


# Request bodies, read with a limit on size and time before anything else looks at them.

BYTES_PER_SECOND_MIN: Final = 1 << 17


async def read_json(request: Request, bytes_max: int, seconds_max: float) -> bytes:
    """The body of a JSON request; raises `Problem` if it is of another type, too large or too slow."""
    if request.headers.get("content-type", "").split(";")[0].strip().lower() != "application/json":
        raise Problem(400, "malformed", "send the request as Content-Type: application/json")
    return await read_body(request, bytes_max, seconds_max)


async def read_body(request: Request, bytes_max: int, seconds_max: float) -> bytes:
    """The whole body; raises `Problem` if it is too large or too slow."""
    declared_size(request, bytes_max)
    return b"".join([part async for part in _parts(request, bytes_max, seconds_max)])


async def spool_body(request: Request, size: int, seconds_behind: float) -> IO[bytes]:
    """A body of exactly `size` bytes in an unnamed temporary file; raises `Problem` for another size or a slow body.

    A body is too slow if it falls more than `seconds_behind` behind a constant rate of `BYTES_PER_SECOND_MIN`.
    """
    file = tempfile.TemporaryFile()  # noqa: SIM115  the caller closes it
    try:
        async for part in _parts(request, size, seconds_behind, 1 / BYTES_PER_SECOND_MIN):
            file.write(part)
        if file.tell() != size:
            raise Problem(400, "malformed", f"the body ended after {file.tell()} of {size} bytes")
        file.seek(0)
    except BaseException:
        file.close()
        raise
    return file


def declared_size(request: Request, bytes_max: int) -> int | None:
    """The size in the Content-Length header, or `None`; raises `Problem` if it is too large or not a number."""
    declared = request.headers.get("content-length")
    if declared is None:
        return None
    if not (declared.isascii() and declared.isdecimal()):
        raise Problem(400, "malformed", "Content-Length: no number")
    if len(declared) > 15 or int(declared) > bytes_max:
        raise _too_large(bytes_max)
    return int(declared)


async def until_left(request: Request) -> None:
    """Return when the client has disconnected; call it after the body was read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _parts(
    request: Request, bytes_max: int, seconds_max: float, seconds_per_byte: float = 0.0
) -> AsyncIterator[bytes]:
    """The body in parts as they arrive; each received byte extends the deadline by `seconds_per_byte`."""
    size, end = 0, asyncio.get_running_loop().time() + seconds_max
    try:
        async with asyncio.timeout_at(end) as limit:
            async for part in request.stream():
                size += len(part)
                if size > bytes_max:
                    raise _too_large(bytes_max)
                limit.reschedule(end + size * seconds_per_byte)
                yield part
    except TimeoutError:
        raise Problem(408, "slow", f"the body is too slow: {size} bytes have come") from None


def _too_large(bytes_max: int) -> Problem:
    return Problem(413, "size", f"the body is larger than {bytes_max} bytes")


# Limits on HTTP connections: how many in all, how many from one address, and how long one may be idle.

HOST_BITS: Final = 64
"""Bits of an IPv6 network: one host usually owns all addresses of its network."""


@dataclass(frozen=True)
class ConnectionLimits:
    """Limits on concurrent connections, in all and per remote address, and the seconds for a request's head.

    Connections from this machine have no limit per address: they may come from a proxy that serves many clients.
    """

    connections: int = 2048
    per_address: int = 256
    head_s: float = 10.0

    def affordable(self) -> ConnectionLimits:
        """These limits, with at most half as many connections as this process may have open files."""
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return self if files == resource.RLIM_INFINITY else replace(self, connections=min(self.connections, files // 2))


class GuardedProtocol(H11Protocol):
    """A connection that is closed if its address has too many, or if the head of a request does not arrive in time.

    If there are too many connections in all, the one that has waited longest for a request is closed.
    """

    def __init__(self, limits: ConnectionLimits, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.origin: str | None = None
        self.waiting: asyncio.TimerHandle | None = None
        self._limits = limits

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timer of this connection; close a connection if there are too many."""
        super().connection_made(transport)
        self.origin = origin_of(self.client)
        self._wait()
        self._make_room()

    def data_received(self, data: bytes) -> None:
        """Stop the timer once a request's head is complete; start it again for the next request."""
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_waiting()
        elif self.waiting is None:
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _wait(self) -> None:
        self.waiting = self.loop.call_later(self._limits.head_s, self.transport.abort)

    def _stop_waiting(self) -> None:
        if self.waiting is not None:
            self.waiting.cancel()
            self.waiting = None

    def _make_room(self) -> None:
        others = [other for other in self.connections if isinstance(other, GuardedProtocol) and other.is_open]
        if self.origin is not None and sum(other.origin == self.origin for other in others) > self._limits.per_address:
            self.transport.abort()
        elif len(others) > self._limits.connections:
            min(others, key=GuardedProtocol.until).transport.abort()

    @property
    def is_open(self) -> bool:
        """Whether the connection is not being closed."""
        return not self.transport.is_closing()

    def until(self) -> float:
        """When the timer ends, in loop time; infinite while a request is being answered."""
        return float("inf") if self.waiting is None else self.waiting.when()


def origin_of(client: tuple[str, int] | None) -> str | None:
    """The group in which connections are counted: IPv4 address or IPv6 network; `None` for this machine."""
    address = ip_address(client[0].partition("%")[0]) if client else None
    if isinstance(address, IPv6Address):
        address = address.ipv4_mapped or address
    if address is None or address.is_loopback:
        return None
    return str(ip_network((address, HOST_BITS), strict=False) if address.version == 6 else address)


# A listening socket and the HTTP server behind it.

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
