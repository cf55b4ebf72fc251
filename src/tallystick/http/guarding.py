"""Limits on HTTP connections: how many in all, how many from one address, and how long one may be idle."""

from __future__ import annotations

import asyncio
import resource
from dataclasses import dataclass, replace
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Any, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

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
        held = [each for each in self.connections if isinstance(each, GuardedProtocol) and each.is_open]
        if self.origin is not None and sum(each.origin == self.origin for each in held) > self._limits.per_address:
            self.transport.abort()
        elif len(held) > self._limits.connections:
            min(held, key=GuardedProtocol.until).transport.abort()

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
