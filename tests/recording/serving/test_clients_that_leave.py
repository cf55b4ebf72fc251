"""A hundred streams at once, of which half are left midway: the server stays up and gives its rows to others."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tallystick.formats.receipt import SignedReceipt
from tallystick.formats.signing import verify_receipt_signature

STREAMS = 100
BODY = {"model": "tiny", "prompt": [1, 2, 3], "stream": True}
AUDITOR = {"Authorization": "Bearer auditors-key"}


@pytest.fixture(scope="module")
def busy(serving: Any, long_model: Any) -> Iterator[Any]:
    with serving(long_model, rows=8, queue=STREAMS) as server:
        yield server


async def stream(client: httpx.AsyncClient, number: int) -> list[str]:
    """The events of a stream; every second client hangs up after two, and asks for as many tokens as there are."""
    leaves = number % 2 == 1
    body = BODY | {"seed": number, "max_tokens": 500 if leaves else 8}
    events = []
    async with client.stream("POST", "/v1/completions", json=body) as response:
        assert response.status_code == 200
        async for line in response.aiter_lines():
            events += [line] if line else []
            if leaves and len(events) == 2:
                break
    return events


async def all_streams(url: str) -> list[list[str]]:
    limits = httpx.Limits(max_connections=STREAMS, max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=url, timeout=60, limits=limits) as client:
        return await asyncio.gather(*(stream(client, number) for number in range(STREAMS)))


def is_idle_within(server: Any, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while server.service.engine.load != (0, 0) and time.monotonic() < end:
        time.sleep(0.02)
    return bool(server.service.engine.load == (0, 0))


def latest_receipt(server: Any) -> Any:
    """The receipt of the highest number."""
    server.openai.completions.create(model="tiny", prompt=[1], max_tokens=1)
    *_, latest, _ = server.http.get("/v1/receipts?after=0", headers=AUDITOR).content.splitlines()
    return SignedReceipt.from_bytes(latest, "line").receipt


def test_a_hundred_streams_of_which_half_are_left_midway(busy: Any) -> None:
    found = asyncio.run(all_streams(busy.url))
    assert [each[-1] for each in found[::2]] == ["data: [DONE]"] * (STREAMS // 2)
    assert {len(each) for each in found[1::2]} == {2}
    assert is_idle_within(busy, 60), "rows of clients that left are still taken"
    answered = busy.openai.completions.create(model="tiny", prompt=[1], max_tokens=3)
    assert answered.usage.completion_tokens in range(1, 4), "an answer may end by itself"
    receipts = busy.http.get("/v1/receipts?after=0", headers=AUDITOR).content.splitlines()
    signed = [SignedReceipt.from_bytes(line, "line") for line in receipts]
    assert [each.receipt.sequence for each in signed] == list(range(1, len(signed) + 1))
    finishes = [each.receipt.answer.finish for each in signed]
    assert {"length", "cancelled"} <= set(finishes) <= {"length", "cancelled", "end"}, "a left answer may end by itself"
    assert finishes.count("length") + finishes.count("end") >= STREAMS // 2 + 1
    assert len({each.receipt.batch.largest for each in signed}) > 1
    for each in signed[:10]:
        verify_receipt_signature(each)


def test_a_client_that_leaves_before_a_whole_answer_frees_its_row(busy: Any) -> None:
    body = json.dumps(BODY | {"stream": False, "max_tokens": 508, "min_tokens": 508}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    with socket.create_connection(("127.0.0.1", httpx.URL(busy.url).port), timeout=120) as client:
        client.sendall(head % len(body) + body)
        while busy.service.engine.load != (1, 0):
            time.sleep(0.001)
    assert is_idle_within(busy, 60)
    assert latest_receipt(busy).answer.finish == "cancelled"


def test_more_requests_than_the_queue_takes_are_told_to_come_back(serving: Any, long_model: Any) -> None:
    async def flood(url: str) -> list[httpx.Response]:
        async with httpx.AsyncClient(base_url=url, timeout=60) as client:
            asked = {"model": "tiny", "prompt": [1], "max_tokens": 60}
            return await asyncio.gather(*(client.post("/v1/completions", json=asked) for _ in range(30)))

    with serving(long_model, rows=1, queue=2) as server:
        found = asyncio.run(flood(server.url))
        refused = [each for each in found if each.status_code == 429]
        assert {each.status_code for each in found} == {200, 429}
        assert {each.headers["retry-after"] for each in refused} == {"1"}
        assert {each.json()["error"]["code"] for each in refused} == {"queue_full"}
        assert server.http.post("/v1/completions", json={"model": "tiny", "prompt": [1]}).status_code == 200
