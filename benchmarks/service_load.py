"""Seconds until a record with its proof is there, where 200 verifiers ask `tally serve` at once for random records.

The service is a process of its own over SQLite, the verifiers are one other process on the same machine; each has one
connection and asks again as soon as it has an answer. Every answer's proof is checked against the claim's root, after
the clock has stopped. An error is any answer but 200, a broken connection, or a proof that does not hold. In brackets
stand the fastest and the slowest answer, and no interval.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx

from benchmarks.figure import Figure, Goal
from benchmarks.measure import Interval
from tallystick.core.digests import Hash
from tallystick.core.errors import ProofError
from tallystick.formats.claims import Log
from tallystick.formats.store.log import OpenedLine

TALLY = str(Path(sys.executable).with_name("tally"))
VERIFIERS, ASKED = 200, 25


def figures(quick: bool) -> Iterator[Figure]:
    verifiers, asked = (20, 3) if quick else (VERIFIERS, ASKED)
    with TemporaryDirectory() as folder, _served(Path(folder)) as url:
        took, errors, wall = asyncio.run(_ask_all(url, verifiers, asked))
    seconds, count = sorted(took), verifiers * asked
    told = {"errors": errors, "requests": count, "requests_per_second": count / wall}
    for name, share in (("median", 0.5), ("p99", 0.99)):
        value = seconds[min(len(seconds) - 1, int(share * len(seconds)))]
        yield Figure(
            f"service_load: {name}",
            f"{name} of a record with its proof, {verifiers} verifiers at once",
            Interval(value, seconds[0], seconds[-1]),
            count,
            "wall",
            unit="s",
            details=told,
        )
    yield Figure(
        "service_load: errors",
        f"answers that are errors, {verifiers} verifiers at once",
        Interval(errors, errors, errors),
        count,
        "count",
        unit="",
        goal=Goal(0),
    )


@contextmanager
def _served(folder: Path) -> Iterator[str]:
    """The URL of a service over a run of 64 steps."""
    for command in (["example", "demo", "--out", "."], ["train", "demo.toml", "--out", "run"], ["db", "add", "run"]):
        subprocess.run([TALLY, *command], cwd=folder, check=True, capture_output=True)
    command = [TALLY, "serve", "--public", "read", "--rate", "1000000"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    ) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().strip()
        finally:
            server.send_signal(signal.SIGINT)


async def _ask_all(url: str, verifiers: int, asked: int) -> tuple[list[float], int, float]:
    """Seconds of every request, the number of errors, and the seconds of all together."""
    limits = httpx.Limits(max_connections=verifiers)
    async with httpx.AsyncClient(base_url=url, limits=limits, timeout=60) as client:
        run = (await client.get("/v1/runs", params={"limit": 1})).json()["rows"][0]
        began = time.perf_counter()
        each = await asyncio.gather(*(_ask(client, run, asked, random.Random(number)) for number in range(verifiers)))
        wall = time.perf_counter() - began
    answers = [answer for found in each for answer in found]
    errors = sum(not _holds(answer, run) for _, answer in answers)
    return [seconds for seconds, _ in answers], errors, wall


async def _ask(client: httpx.AsyncClient, run: Any, asked: int, rng: random.Random) -> list[tuple[float, Any]]:
    found: list[tuple[float, Any]] = []
    for _ in range(asked):
        number, began = rng.randrange(run["records"]), time.perf_counter()
        try:
            answer: Any = await client.get(f"/v1/runs/{run['name']}/records/{number}")
        except httpx.HTTPError as error:
            answer = error
        found.append((time.perf_counter() - began, answer))
    return found


def _holds(answer: Any, run: Any) -> bool:
    """Whether an answer is a record that stands under the root that the run claims."""
    if not isinstance(answer, httpx.Response) or answer.status_code != 200:
        return False
    told = answer.json()
    proof = tuple(Hash(bytes.fromhex(each)) for each in told["proof"])
    try:
        OpenedLine(told["index"], told["record"].encode(), proof).check(
            Log(root=run["transcript"], size=run["records"])
        )
    except ProofError:
        return False
    return True
