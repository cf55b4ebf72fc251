"""Idle connections, half-said requests and too many of one address cost nobody else an answer."""

from __future__ import annotations

import asyncio
import resource
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import httpx
import pytest

from tallystick.core.http import server
from tallystick.core.http.server import ConnectionLimits, origin_of, served

HASTY = ConnectionLimits(connections=6, per_address=2, head_s=1.0)
Serve = Callable[[], AbstractContextManager[str]]


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Answers with its path, after a second where that says so."""
    if scope["type"] == "lifespan":
        for _ in range(2):
            await send({"type": (await receive())["type"] + ".complete"})
        return
    await asyncio.sleep(1 if scope["path"] == "/slow" else 0)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


@pytest.fixture
def url() -> Iterator[str]:
    with served(app, limits=HASTY) as address:
        yield address


@contextmanager
def connected(url: str) -> Iterator[socket.socket]:
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        yield connection


def is_closed(connection: socket.socket) -> bool:
    """Whether the server hangs up, in whatever way, before anything else comes."""
    try:
        return connection.recv(100) == b""
    except ConnectionError:
        return True


def is_answered(connection: socket.socket, path: str = "/") -> bool:
    try:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        return brings_answer(connection)
    except ConnectionError:
        return False


def brings_answer(connection: socket.socket) -> bool:
    came = b""
    while not came.endswith(b"ok") and (part := connection.recv(1000)):
        came += part
    return came.startswith(b"HTTP/1.1 200") and came.endswith(b"ok")


def test_a_connection_that_asks_nothing_in_time_is_closed(url: str) -> None:
    """Nothing at all, a part of the first line, and a part of a header."""
    with ExitStack() as opened, connected(url) as honest:
        idle = [opened.enter_context(connected(url)) for _ in range(3)]
        for connection, part in zip(idle, (b"", b"GET / HT", b"GET / HTTP/1.1\r\nX: "), strict=True):
            connection.sendall(part)
        assert is_answered(honest)
        assert all(map(is_closed, idle))


def test_a_head_that_comes_a_byte_at_a_time_has_no_more_time(url: str) -> None:
    with connected(url) as dripping:
        assert is_answered(dripping)
        for _ in range(20):
            time.sleep(0.05)
            try:
                dripping.sendall(b"G")
            except ConnectionError:
                return
        assert is_closed(dripping)


def test_slow_answers_and_pauses_between_requests_are_no_idleness(url: str) -> None:
    with connected(url) as honest:
        assert is_answered(honest, "/slow")
        time.sleep(2 * HASTY.head_s)
        assert is_answered(honest)


def test_a_server_full_of_idle_connections_answers_whoever_asks() -> None:
    with served(app, limits=ConnectionLimits(connections=6, head_s=60)) as url, ExitStack() as held:
        idle = [held.enter_context(connected(url)) for _ in range(20)]
        for _ in range(3):
            assert httpx.get(url, timeout=60).text == "ok"
        assert is_closed(idle[0])
        assert is_answered(idle[-1])


def test_connections_that_are_answered_do_not_give_way() -> None:
    with served(app, limits=ConnectionLimits(connections=2, head_s=60)) as url, ExitStack() as held:
        busy = [held.enter_context(connected(url)) for _ in range(2)]
        for each in busy:
            each.sendall(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
        time.sleep(0.2)
        with connected(url) as late:
            assert is_closed(late)
        assert all(map(brings_answer, busy))


def test_one_address_elsewhere_has_so_many_connections_and_this_machine_all(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ExitStack() as held:
        assert all(is_answered(held.enter_context(connected(url))) for _ in range(HASTY.connections))
    monkeypatch.setattr(server, "origin_of", lambda _: "192.0.2.1")
    with ExitStack() as held:
        found = [is_answered(held.enter_context(connected(url))) for _ in range(4)]
        monkeypatch.setattr(server, "origin_of", lambda _: "192.0.2.2")
        assert [*found, is_answered(held.enter_context(connected(url)))] == [True, True, False, False, True]


@pytest.mark.parametrize(
    ("address", "origin"),
    [
        ("127.0.0.1", None),
        ("127.9.9.9", None),
        ("::1", None),
        ("::ffff:127.0.0.1", None),
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:0:1::1", "2001:db8:0:1::/64"),
        ("2001:db8:0:1:ffff::2", "2001:db8:0:1::/64"),
        ("fe80::1%eth0", "fe80::/64"),
    ],
)
def test_connections_of_one_host_are_counted_together(address: str, origin: str | None) -> None:
    assert origin_of((address, 80)) == origin
    assert origin_of(None) is None


def test_a_server_promises_no_more_connections_than_it_can_have_files(monkeypatch: pytest.MonkeyPatch) -> None:
    for files, connections in ((1024, 512), (1 << 20, 2048), (resource.RLIM_INFINITY, 2048)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, files=files: (files, files))
        assert ConnectionLimits().affordable().connections == connections
