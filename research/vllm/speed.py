"""The throughput of vLLM with receipts beside that of vLLM alone, in turns on one machine."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from research.vllm.load import Planned, send_all
from research.vllm.server import NAME, Server, serving

PORTS = {"alone": 8761, "receipts": 8762}
REQUESTS, TOKENS, WORDS = 16, 64, 60
RESAMPLES = 2000


@dataclass(frozen=True)
class Round:
    """Tokens per second of the wall clock, and CPU seconds per token, of each server in one round."""

    rates: dict[str, float]
    costs: dict[str, float]


def compare(model: Path, folder: Path, options: Sequence[str], rounds: int, clients: int) -> dict[str, Any]:
    """Rounds of the same requests to both servers, in random order; the first round warms up and does not count."""
    rng = random.Random(3)
    with ExitStack() as stack:

        def started(name: str) -> Server:
            return stack.enter_context(serving(model, folder / name, PORTS[name], options, receipts=name == "receipts"))

        with ThreadPoolExecutor() as pool:
            servers = dict(zip(PORTS, pool.map(started, PORTS), strict=True))
        taken = [_round(servers, clients, rng, number) for number in range(rounds + 1)][1:]
    rates = [each.rates["receipts"] / each.rates["alone"] for each in taken]
    costs = [each.costs["alone"] / each.costs["receipts"] for each in taken]
    return {
        "rounds": rounds,
        "requests": REQUESTS,
        "clients": clients,
        "tokens": TOKENS,
        "tokens_per_second": {name: median(each.rates[name] for each in taken) for name in PORTS},
        "throughput_ratio": _with_interval(rates, rng),
        "cpu_ratio": _with_interval(costs, rng),
    }


def _round(servers: dict[str, Server], clients: int, rng: random.Random, number: int) -> Round:
    rates, costs = dict[str, float](), dict[str, float]()
    for name in rng.sample(sorted(servers), len(servers)):
        server = servers[name]
        begun, spent = time.monotonic(), server.cpu_seconds()
        load = asyncio.run(send_all(server.url, _requests(number), clients))
        tokens = sum(int(each.response["usage"]["completion_tokens"]) for each in load.answered)
        rates[name] = tokens / (time.monotonic() - begun)
        costs[name] = (server.cpu_seconds() - spent) / tokens
    print(rates, costs, flush=True)
    return Round(rates, costs)


def _requests(number: int) -> Iterator[Planned]:
    """Prompts that no prefix cache knows, and answers that rarely end before their limit."""
    rng = random.Random(number)
    for _ in range(REQUESTS):
        prompt = [rng.randrange(1000, 40_000) for _ in range(WORDS)]
        body = {"model": NAME, "prompt": prompt, "max_tokens": TOKENS, "temperature": 1.0}
        yield Planned("/v1/completions", body | {"seed": rng.randrange(1 << 40)})


def _with_interval(ratios: Sequence[float], rng: random.Random) -> dict[str, float]:
    """The median, and its bootstrap 95 % interval."""
    drawn = sorted(median(rng.choices(ratios, k=len(ratios))) for _ in range(RESAMPLES))
    return {"median": median(ratios), "low": drawn[RESAMPLES // 40], "high": drawn[-RESAMPLES // 40 - 1]}
