"""Servers that speak bytes, and not always HTTP: what a client meets at an address that is not what it says."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def raw_server(reply: Callable[[socket.socket], None]) -> Iterator[str]:
    """A server that does with each connection what `reply` says."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0.05)
        stop = threading.Event()
        thread = threading.Thread(target=_answer_all, args=(listening, reply, stop))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            stop.set()
            thread.join()


def _answer_all(listening: socket.socket, reply: Callable[[socket.socket], None], stop: threading.Event) -> None:
    while not stop.is_set():
        try:
            connection, _ = listening.accept()
        except TimeoutError:
            continue
        with connection:
            connection.settimeout(20)
            try:
                connection.recv(65536)
                reply(connection)
            except OSError:
                pass


def drip(connection: socket.socket, head: bytes = b"HTTP/1.1 200 OK\r\nX: ") -> None:
    """Send a byte now and then, for longer than anybody waits."""
    connection.sendall(head)
    for _ in range(40):
        time.sleep(0.05)
        connection.sendall(b"a")


def answer(body: bytes, status: bytes = b"200 OK") -> Callable[[socket.socket], None]:
    head = b"HTTP/1.1 " + status + b"\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body)
    return lambda connection: connection.sendall(head + body)
