"""An application that answers as vLLM 0.32 does: with responses that were recorded from it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import torch
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tallystick.core.digests import digest
from tallystick.core.http.server import served
from tallystick.formats.receipt import EngineStatement
from tallystick.recording.serving.vllm.receipts import pack_rows

RECORDED: dict[str, Any] = json.loads((Path(__file__).parent / "recorded.json").read_text())
WIDTH = 32
ENGINE = EngineStatement(
    name="vllm", version="0.32.0", device="cpu", attention="CPU_ATTN", environment=digest("environment", b"here")
)


@dataclass
class Workers:
    """vLLM's engine client, as far as receipts use it; `held` says for how many tokens of each request it has rows."""

    model: str
    layers: Sequence[int] = (0, 1, 2, 3)
    held: int = 1 << 20
    calls: list[tuple[Any, ...]] = field(default_factory=list)

    async def collective_rpc(self, method: str, timeout: float, arguments: Sequence[Any] = ()) -> list[Any]:
        """One worker's result."""
        self.calls.append((method, *arguments))
        return [getattr(self, method)(*arguments)]

    def tally_describe(self) -> dict[str, Any]:
        engine = ENGINE.to_json()
        return {"engine": engine, "layers": list(self.layers), "blocks": 2, "model": self.model, "context": 100}

    def tally_watch(self, layers: Sequence[int], seed: str) -> None:
        self.watched, self.seed = layers, seed

    def tally_take(self, request: str, tokens: int) -> Any:
        if tokens > self.held:
            raise Exception(
                f"Call to collective_rpc method failed: request {request}: rows are missing"
            )  # as vLLM does
        torch.manual_seed(tokens)
        rows = pack_rows({layer: torch.randn(tokens, WIDTH) for layer in self.watched})
        return {"largest": 5, "rows": rows}

    def tally_drop(self, request: str) -> None:
        """Nothing to free here."""

    def named(self, method: str) -> list[tuple[Any, ...]]:
        return [call[1:] for call in self.calls if call[0] == method]


@dataclass
class Running:
    """A running server; `asked` are the bodies that vLLM got."""

    url: str
    workers: Workers
    asked: list[dict[str, Any]]
    http: httpx.Client

    def post(self, recorded: str, **changes: Any) -> httpx.Response:
        """The recorded request, with changes; vLLM's answer is the recorded one."""
        case = RECORDED[recorded]
        return self.http.post(case["path"], json={**case["request"], **changes}, headers={"Case": recorded})


def answers_of(asked: list[dict[str, Any]]) -> Callable[[Request], Any]:
    """The route that answers with what was recorded under the name in the header `Case`."""

    async def answer(request: Request) -> Response:
        if "x-request-id" not in request.headers:  # vLLM refuses it: what the middleware admits has an id
            return JSONResponse({"error": "vLLM's own"}, 400)
        asked.append(json.loads(await request.body()))
        case = RECORDED[request.headers["case"]]
        given = [part.replace("REQUEST", request.headers["x-request-id"]).encode() for part in case["parts"]]
        if case["kind"] != "text/event-stream":
            return Response(b"".join(given), case["status"], media_type=case["kind"])
        return StreamingResponse(parts(given, case.get("hangs", False)), media_type=case["kind"])

    return answer


async def parts(given: Sequence[bytes], hangs: bool) -> AsyncIterator[bytes]:
    for part in given:
        yield part
    while hangs:
        await asyncio.sleep(0.01)


def state_of(workers: Workers, args: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """What vLLM keeps in the state of its application."""
    parallel = SimpleNamespace(pipeline_parallel_size=1, data_parallel_size=args.get("data_parallel_size", 1))
    model = SimpleNamespace(
        dtype=torch.float32,
        quantization=None,
        logits_processors=(),
        logprobs_mode="raw_logprobs",
        get_diff_sampling_param=lambda: dict(defaults),
    )
    config = SimpleNamespace(
        model_config=model,
        parallel_config=parallel,
        speculative_config=None,
        lora_config=None,
    )
    plain = {"model": workers.model, "served_model_name": None, "tokenizer": None, "api_key": None, **args}
    return {"args": SimpleNamespace(**plain), "vllm_config": config, "engine_client": workers}


def application(state: Mapping[str, Any], asked: list[dict[str, Any]]) -> Starlette:
    """vLLM's application behind the middleware."""
    from tallystick.recording.serving.vllm.middleware import ReceiptMiddleware

    async def models(_: Request) -> Response:
        return JSONResponse({"data": ["smol"]})

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield

    routes = [Route(path, answers_of(asked), methods=["POST"]) for path in ("/v1/chat/completions", "/v1/completions")]
    app = Starlette(routes=[*routes, Route("/v1/models", models)], lifespan=lifespan)
    app.state.__dict__["_state"].update(state)
    app.add_middleware(ReceiptMiddleware)  # type: ignore[arg-type]
    return app


def failure_of(state: Mapping[str, Any]) -> str | None:
    """The line with which the application fails to start; None if it starts."""
    told: list[dict[str, Any]] = []

    async def run() -> None:
        waiting = [{"type": "lifespan.shutdown"}, {"type": "lifespan.startup"}]

        async def receive() -> Any:
            return waiting.pop()

        async def send(message: Any) -> None:
            told.append(message)

        await application(state, [])({"type": "lifespan", "state": {}}, receive, send)

    asyncio.run(run())
    return told[0].get("message")


Serving = Callable[..., AbstractContextManager[Running]]


@pytest.fixture(scope="session")
def serving_vllm(model_directory: Path) -> Serving:
    """Serve the recorded answers: `with serving_vllm(TALLY_PRIVATE="1", workers=…, defaults=…, args=…) as running`."""

    @contextmanager
    def serve(
        workers: Workers | None = None,
        defaults: Mapping[str, Any] | None = None,
        args: Mapping[str, Any] | None = None,
        **environment: str,
    ) -> Iterator[Running]:
        held, asked = workers or Workers(str(model_directory)), list[dict[str, Any]]()
        with ExitStack() as stack:
            with pytest.MonkeyPatch.context() as patch:
                for name, value in environment.items():
                    patch.setenv(name, value)
                url = stack.enter_context(served(application(state_of(held, args or {}, defaults or {}), asked)))
            client = stack.enter_context(httpx.Client(base_url=url, timeout=120))
            yield Running(url, held, asked, client)

    return serve
