"""Limits on HTTP connections: how many there are, how many of one address, and how long one may be idle."""

from __future__ import annotations

import asyncio
import resource
from dataclasses import dataclass, replace
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Any, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

HOST_BITS: Final = 64
"""Of an IPv6 address; a host has all addresses that share them."""


@dataclass(frozen=True)
class ConnectionLimits:
    """How many connections there are at once and with one address elsewhere, and the seconds for a request's head.

    Those of this machine are limited by the whole alone: they may come from a proxy that speaks for everybody.
    """

    connections: int = 2048
    per_address: int = 256
    head_s: float = 10.0

    def affordable(self) -> ConnectionLimits:
        """These limits, with at most half as many connections as this process may open files."""
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return self if files == resource.RLIM_INFINITY else replace(self, connections=min(self.connections, files // 2))


class GuardedProtocol(H11Protocol):
    """A connection that is closed if its address has too many, or if the head of a request does not come in time.

    Where there are too many in all, that one gives way whose request has been waited for longest.
    """

    def __init__(self, limits: ConnectionLimits, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.origin: str | None = None
        self.waiting: asyncio.TimerHandle | None = None
        self._limits = limits

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timer of the connection, and close one where there are too many."""
        super().connection_made(transport)
        self.origin = origin_of(self.client)
        self._wait()
        self._make_room()

    def data_received(self, data: bytes) -> None:
        """Stop waiting once there is something to answer; wait anew where a request has begun, and is not whole."""
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_waiting()
        elif self.waiting is None:
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
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
        """Whether nobody has begun to close it."""
        return not self.transport.is_closing()

    def until(self) -> float:
        """Until when a request is waited for; for ever where there is one to answer."""
        return float("inf") if self.waiting is None else self.waiting.when()


def origin_of(client: tuple[str, int] | None) -> str | None:
    """Whose connections are counted together: an IPv4 address, or an IPv6 network; `None` for those of this machine."""
    address = ip_address(client[0].partition("%")[0]) if client else None
    if isinstance(address, IPv6Address):
        address = address.ipv4_mapped or address
    if address is None or address.is_loopback:
        return None
    return str(ip_network((address, HOST_BITS), strict=False) if address.version == 6 else address)
