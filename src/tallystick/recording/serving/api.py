"""The HTTP interface: completions of the OpenAI API, whole or as events, models, receipts and challenges."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Final, TypeVar

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

from tallystick.core.canonical_json import INTEGER_MAX
from tallystick.core.errors import MalformedError, UnavailableError, UsageError
from tallystick.core.http.problems import Problem
from tallystick.core.http.server import read_json, until_left
from tallystick.formats.completions import call_form
from tallystick.formats.requests import Form, Wanted, shown_tools, wanted_schema
from tallystick.recording.serving.application import (
    CLIENT_GONE,
    ServerOptions,
    add_key,
    add_receipts,
    answer_errors_alike,
    check_customer,
    receipt_headers,
)
from tallystick.recording.serving.errors import EVENT_HEADERS, ClosingStream, invalid, refused
from tallystick.recording.serving.jobs import Failed
from tallystick.recording.serving.requests import (
    ChallengeBody,
    ChatRequest,
    CompletionRequest,
    ResponsesRequest,
    TextRequest,
    read_request,
)
from tallystick.recording.serving.responses import ChoiceSoFar, CompletionForm, ResponsesForm, receipts_of
from tallystick.recording.serving.service import Answering, GenerationRequest, ModelService

TEXT_TOKENS: Final = 16
"""The default limit of a text completion, as in the OpenAI API."""
SEEDS: Final = 1 << 52
IDS: Final[Mapping[Form, str]] = {"chat": "chatcmpl-", "text": "cmpl-", "responses": "resp_"}
"""How the ids of answers begin."""
Asks = TypeVar("Asks", ChatRequest, TextRequest, ResponsesRequest)


def create_app(service: ModelService, options: ServerOptions, clock: Callable[[], float] = time.time) -> FastAPI:
    """The FastAPI application; it starts and stops the service."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.start()
        yield
        await asyncio.to_thread(service.stop)

    app = FastAPI(title="tally serve-model", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    answer_errors_alike(app)
    _add_completions(app, service, options, clock)
    _add_models(app, service, options, int(clock()))
    add_receipts(app, service.book, options)
    _add_challenges(app, service, options)
    return app


def _add_completions(app: FastAPI, service: ModelService, options: ServerOptions, clock: Callable[[], float]) -> None:
    async def respond(
        request: Request, asked: ChatRequest | TextRequest, form: Form, sent: Mapping[str, Any]
    ) -> Response:
        wanted, tools = _shape(asked, service)
        if isinstance(asked, ChatRequest):
            prompt = await service.encode_chat([message.as_sent for message in asked.messages], tools)
        else:
            only = asked.only_prompt
            prompt = await service.encode_text(only) if isinstance(only, str) else only
        order = replace(_order(asked, prompt, form, service), calls=call_form(asked.shaping))
        if wanted is not None:
            grammar, masks = await asyncio.to_thread(service.grammar, wanted, len(order.samplers))
            samplers = tuple(sampler.model_copy(update={"grammar": grammar}) for sampler in order.samplers)
            order = replace(order, samplers=samplers, masks=masks)
        frame = asked.model, service.issuer.model, int(clock()), order
        has_usage = bool(asked.stream_options and asked.stream_options.include_usage)
        written: CompletionForm | ResponsesForm = ResponsesForm(*frame, sent)
        if form != "responses":
            written = CompletionForm(form, *frame, service.shown, has_usage)
        answering = service.order(order)
        if asked.stream:
            headers = EVENT_HEADERS | {"X-Request-Id": order.id}
            return ClosingStream(written.events(answering), answering.close, headers=headers)
        return await _whole(request, answering, written)

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        return await respond(request, await _read(request, ChatRequest, options, service), "chat", {})

    @app.post("/v1/responses")
    async def responses(request: Request) -> Response:
        sent = await _read(request, ResponsesRequest, options, service)
        return await respond(request, sent.as_chat(), "responses", sent.model_dump(exclude_none=True))

    @app.post("/v1/completions")
    async def text(request: Request) -> Response:
        return await respond(request, await _read(request, TextRequest, options, service), "text", {})


def _add_models(app: FastAPI, service: ModelService, options: ServerOptions, created: int) -> None:
    card = service.language_model.card
    model = {
        "id": options.name,
        "object": "model",
        "created": created,
        "owned_by": "tallystick",
        "root": card.identity,
        "max_model_len": service.context,
    }

    @app.get("/v1/models")
    async def models(request: Request) -> Response:
        check_customer(request, options)
        return JSONResponse({"object": "list", "data": [model]})

    @app.get("/v1/models/{name:path}")
    async def one_model(request: Request, name: str) -> Response:
        check_customer(request, options)
        _check_model(name, options, service)
        return JSONResponse(model)

    add_key(app, service.issuer.public, card.identity, card)

    @app.get("/health")
    async def health() -> Response:
        running, waiting = service.engine.load
        alive = service.engine.is_alive
        body = {"status": "ok" if alive else "stopped", "running": running, "waiting": waiting}
        return JSONResponse(body, 200 if alive else 503)


def _add_challenges(app: FastAPI, service: ModelService, options: ServerOptions) -> None:
    @app.post("/v1/receipts/{request_id}/challenge")
    async def challenge(request: Request, request_id: str) -> Response:
        check_customer(request, options)
        body = await read_json(request, options.body_bytes_max, options.body_seconds_max)
        asked = read_request(ChallengeBody, body)
        try:
            opening = await service.challenge(request_id, bytes.fromhex(asked.nonce), asked.count or 1, asked.layer)
        except UnavailableError as error:
            if await asyncio.to_thread(service.has_committed, request_id):
                raise Problem(410, "states_gone", str(error), "request_id") from None
            raise Problem(404, "not_found", "no receipt of this request commits to states", "request_id") from None
        except (UsageError, MalformedError) as error:
            raise invalid(str(error)) from None
        return Response(opening, media_type="application/json")


async def _whole(request: Request, answering: Answering, form: CompletionForm | ResponsesForm) -> Response:
    """A response without streaming; if the client disconnects, generation stops."""
    choices = [ChoiceSoFar() for _ in answering.order.samplers]

    async def collect() -> None:
        async for number, event in answering.events():
            if isinstance(event, Failed):
                raise Problem(500, "internal_error", event.reason)
            choices[number].add(event)

    collecting = asyncio.ensure_future(collect())
    leaving = asyncio.ensure_future(until_left(request))
    try:
        await asyncio.wait({collecting, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not collecting.done():
            return Response(status_code=CLIENT_GONE)
        collecting.result()
    finally:
        answering.close()
        collecting.cancel()
        leaving.cancel()
    return JSONResponse(form.whole(choices), headers=receipt_headers(form.order.id, receipts_of(choices)))


async def _read(request: Request, kind: type[Asks], options: ServerOptions, service: ModelService) -> Asks:
    check_customer(request, options)
    asked = read_request(kind, await read_json(request, options.body_bytes_max, options.body_seconds_max))
    _check_model(asked.model, options, service)
    return asked


def _order(asked: CompletionRequest, prompt: tuple[int, ...], form: Form, service: ModelService) -> GenerationRequest:
    field = "prompt" if form == "text" else "messages"
    vocabulary = service.language_model.card.vocabulary
    if not prompt:
        raise invalid(f"{field}: no tokens", field)
    if max(prompt) >= vocabulary:
        raise invalid(f"{field}: token {max(prompt)} is outside the vocabulary of {vocabulary}", field)
    first = asked.sampler(secrets.randbelow(SEEDS), service.language_model.end_tokens)
    if first.largest_token >= vocabulary:
        raise invalid(f"token {first.largest_token} is outside the vocabulary of {vocabulary}", "logit_bias")
    allowed = {*first.allowed_token_ids}
    if allowed and not allowed - {*first.bad_token_ids, *first.end_token_ids}:
        raise invalid("allowed_token_ids: bad_token_ids and min_tokens leave none of them", "allowed_token_ids")
    seeds = [(first.seed + choice) % (INTEGER_MAX + 1) for choice in range(asked.n or 1)]
    return GenerationRequest(
        id=f"{IDS[form]}{secrets.token_hex(16)}",
        prompt=prompt,
        samplers=tuple(first.model_copy(update={"seed": seed}) for seed in seeds),
        max_tokens=_limit(asked, len(prompt), TEXT_TOKENS if form == "text" else None, service.context, field),
        stops=asked.stops,
        nonce=asked.tally_nonce,
        logprobs=asked.top,
    )


def _shape(asked: CompletionRequest, service: ModelService) -> tuple[Wanted | None, str | None]:
    """The schema that answers follow, and the tools for the template; raises `Problem` for what is not offered."""
    try:
        wanted, tools = wanted_schema(asked.shaping), shown_tools(asked.shaping)
    except MalformedError as error:
        raise refused(error) from None
    if wanted is not None and (asked.min_tokens or asked.allowed_token_ids or asked.bad_token_ids):
        raise invalid("min_tokens and lists of tokens are not offered together with a schema", "response_format")
    if tools is not None and wanted is None and not service.language_model.knows_tools:
        raise invalid("tools: the model's chat template knows no tools; tool_choice can demand a call", "tools")
    return wanted, tools


def _limit(asked: CompletionRequest, prompt: int, default: int | None, context: int | None, field: str) -> int:
    """The limit of tokens of the answer; raises `Problem` if prompt and answer do not fit the context."""
    room = (1 << 16) if context is None else context - prompt
    wanted = asked.limit or (default if default is not None and default < room else max(1, room))
    if wanted > room:
        raise invalid(
            f"This model's maximum context length is {context} tokens; {prompt + wanted} were requested "
            f"({prompt} in the prompt, {wanted} for the answer).",
            field,
            "context_length_exceeded",
        )
    return wanted


def _check_model(name: str, options: ServerOptions, service: ModelService) -> None:
    if name not in (options.name, service.issuer.model):
        raise Problem(404, "model_not_found", f"the model {name!r} is not served here", "model")
