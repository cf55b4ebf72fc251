"""A client of HTTP: no server makes it wait without end, and what it is told to keep to itself stays with it."""

from __future__ import annotations

import socket

import pytest

from tallystick.core.errors import UnavailableError
from tallystick.core.http.client import HttpClient, RequestLimits
from tallystick.database.remote import ServiceConnection
from tests.support.raw_servers import answer, drip, raw_server

EFFORT = RequestLimits(seconds=0.3, attempts=2, pause=0.01)
PATIENT = RequestLimits(seconds=60, attempts=2, pause=0.01)
LARGE = 1 << 40


@pytest.mark.timeout(60)
@pytest.mark.parametrize("head", [b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 200 OK\r\nContent-Length: 900000\r\n\r\n"])
def test_an_answer_that_drips_is_given_up_also_where_it_may_be_large(head: bytes) -> None:
    with raw_server(lambda connection: drip(connection, head)) as url:
        client = HttpClient(url, EFFORT)
        with pytest.raises(UnavailableError, match=r"not in 0\.3 seconds, or too slowly"):
            client.ask("GET", "/", LARGE)
        client.close()


def test_an_answer_that_comes_in_time_is_read() -> None:
    with raw_server(answer(b"x" * 100_000)) as url:
        client = HttpClient(url, RequestLimits(seconds=60, attempts=1))
        assert len(client.ask("GET", "/", LARGE).body) == 100_000
        client.close()


@pytest.mark.parametrize("length", [b"30", b"-1", b"1e3", b"5, 6"])
def test_a_wrong_length_is_no_answer(length: bytes) -> None:
    reply = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: " + length + b"\r\n\r\nhello"
    with raw_server(lambda connection: connection.sendall(reply)) as url:
        client = HttpClient(url, PATIENT)
        with pytest.raises(UnavailableError, match="nothing answers there"):
            client.ask("GET", "/", LARGE)
        client.close()


def test_a_token_is_not_taken_to_another_host() -> None:
    asked: list[bytes] = []

    def other(connection: socket.socket) -> None:
        asked.append(b"")
        answer(b"{}")(connection)

    with raw_server(other) as elsewhere:
        redirect = answer(b"", b"307 Temporary Redirect\r\nLocation: " + elsewhere.encode())
        with (
            raw_server(redirect) as url,
            ServiceConnection(url, "secret", PATIENT) as service,
            pytest.raises(UnavailableError, match="status 307"),
        ):
            service.get_json("/v1/runs")
    assert asked == []
