"""Requests of many kinds, sent by several clients at once, and the answers that came."""

from __future__ import annotations

import asyncio
import json
import math
import random
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from research.vllm.server import NAME
from tallystick.formats.completions import CompletionReader
from tallystick.formats.requests import form_of_request

SHORTEST, LONGEST = 8, 512
SUBJECTS = (
    *("the sea", "a broken clock", "prime numbers", "bread", "the moon", "how bridges stand", "bees", "a long winter"),
    *("sorting a list", "the history of paper", "why leaves fall", "a letter to a friend", "chess", "rivers", "trains"),
    *("an honest merchant", "light and shadow", "tea", "the first computer", "a village festival", "maps", "volcanoes"),
)
FORMS = ("Explain {} in simple words.", "Write a short story about {}.", "Give me five facts about {}.", "What is {}?")


@dataclass(frozen=True)
class Planned:
    """A request, and after how many pieces of a stream its client leaves, if it does."""

    path: str
    body: Mapping[str, Any]
    leaves_after: int | None = None

    @property
    def is_stream(self) -> bool:
        """Whether the answer is to be streamed."""
        return bool(self.body.get("stream"))


@dataclass
class Answered:
    """What came: a response as one object, or as much of it as arrived."""

    planned: Planned
    response: Mapping[str, Any]
    is_whole: bool


def forget(_: Answered) -> None:
    """Keep an answer nowhere else."""


@dataclass
class Load:
    """What the clients of one run were answered; `keep` is given every answer when it has arrived."""

    keep: Callable[[Answered], None] = forget
    answered: list[Answered] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    def add(self, answered: Answered) -> None:
        """Add an answer."""
        self.answered.append(answered)
        self.keep(answered)

    @property
    def tokens(self) -> int:
        """Tokens of all answers that arrived."""
        return sum(len(choice.get("token_ids") or ()) for each in self.answered for choice in choices_of(each.response))


def choices_of(response: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The choices of a response."""
    return list(response.get("choices", ()))


def plan(seed: int, texts: Path, *, leaving: float = 0.06, longest: int = LONGEST) -> Iterator[Planned]:
    """Endless requests for at most `longest` tokens, drawn from `seed`; texts to continue come from `texts`."""
    rng = random.Random(seed)
    words = re.findall(r"\S+", " ".join(path.read_text() for path in sorted(texts.glob("*.md"))))
    while True:
        body = settings(rng, longest)
        if rng.random() < 0.5:
            path, text = "/v1/chat/completions", rng.choice(FORMS).format(rng.choice(SUBJECTS))
            body["messages"] = [{"role": "user", "content": text}]
        else:
            start, count = rng.randrange(len(words) - 100), rng.randint(4, 80)
            path, body["prompt"] = "/v1/completions", " ".join(words[start : start + count])
        is_left = bool(body.get("stream")) and rng.random() < leaving / 0.5
        yield Planned(path, body, rng.randint(2, 30) if is_left else None)


def settings(rng: random.Random, longest: int = LONGEST) -> dict[str, Any]:
    """The fields of a request except for its prompt; half of all are streamed, one in ten has two choices."""
    body: dict[str, Any] = {
        "model": NAME,
        "max_tokens": round(math.exp(rng.uniform(math.log(SHORTEST), math.log(longest)))),
        "temperature": rng.choice((0.0, 0.3, 0.7, 1.0, 1.0, 1.3)),
        "tally_nonce": rng.randbytes(16).hex(),
    }
    drawn: list[tuple[float, dict[str, Any]]] = [
        (0.8, {"seed": rng.randrange(1 << 40)}),
        (0.4, {"top_p": rng.choice((0.8, 0.9, 0.95))}),
        (0.2, {"top_k": rng.choice((10, 50))}),
        (0.1, {"min_p": 0.05}),
        (0.1, {"repetition_penalty": 1.1}),
        (0.1 if body["temperature"] else 0.0, {"n": 2}),  # vLLM refuses two greedy choices
        (0.1, {"stop": ["\n\n"]}),
        (0.5, {"stream": True} | ({"stream_options": {"include_usage": True}} if rng.random() < 0.5 else {})),
    ]
    for share, fields in drawn:
        if rng.random() < share:
            body |= fields
    return body


def never(_: Load) -> bool:
    """Go on until no request is left."""
    return False


async def send_all(
    url: str,
    planned: Iterator[Planned],
    clients: int,
    is_enough: Callable[[Load], bool] = never,
    keep: Callable[[Answered], None] = forget,
) -> Load:
    """Let `clients` clients ask one request after the other until `is_enough`."""
    load = Load(keep)
    limits = httpx.Limits(max_connections=clients)
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=limits) as http:

        async def ask() -> None:
            for each in planned:
                await _send(http, each, load)
                if is_enough(load):
                    return

        await asyncio.gather(*(ask() for _ in range(clients)))
    return load


async def _send(http: httpx.AsyncClient, planned: Planned, load: Load) -> None:
    if planned.is_stream:
        await _stream(http, planned, load)
        return
    response = await http.post(planned.path, json=dict(planned.body))
    if response.status_code == 200:
        load.add(Answered(planned, response.json(), is_whole=True))
    else:
        load.refused.append(response.text)


async def _stream(http: httpx.AsyncClient, planned: Planned, load: Load) -> None:
    whole, pieces, is_whole = CompletionReader(form_of_request(planned.body)), 0, False
    async with http.stream("POST", planned.path, json=dict(planned.body)) as response:
        if response.status_code != 200:
            load.refused.append((await response.aread()).decode())
            return
        async for line in response.aiter_lines():
            is_whole = line == "data: [DONE]"
            if is_whole:
                break
            if line.startswith("data: "):
                whole.add(json.loads(line[6:]))
                pieces += 1
            if pieces == planned.leaves_after:
                break
    load.add(Answered(planned, _body(whole), is_whole))


def _body(read: CompletionReader) -> dict[str, Any]:
    """What was read of a stream, as a whole response."""
    choices = []
    for number, each in sorted(read.choices.items()):
        said = {"message": {"content": each.text}} if read.form == "chat" else {"text": each.text}
        choices.append({"index": number, **said, "finish_reason": each.finish, "token_ids": each.ids})
    return {**read.fields, "choices": choices}
