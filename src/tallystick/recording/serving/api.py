"""The HTTP interface: completions of the OpenAI API, whole or as events, models, receipts and challenges."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Final, Literal, TypeVar

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

from tallystick.core.documents import SAFE_INTEGER_MAX
from tallystick.core.errors import MalformedError, UnavailableError, UsageError
from tallystick.core.http.problems import Problem
from tallystick.core.http.server import read_json, until_left
from tallystick.formats.completions import call_form
from tallystick.formats.receipt import Sampler
from tallystick.formats.requests import Wanted, shown_tools, wanted_schema
from tallystick.recording.serving.application import (
    CLIENT_GONE,
    ServerOptions,
    add_key,
    add_receipts,
    answer_errors_alike,
    check_customer,
    receipt_headers,
)
from tallystick.recording.serving.errors import DONE, EVENT_HEADERS, ClosingStream, error_object, event_of, invalid
from tallystick.recording.serving.jobs import NO_PIECE, Failed, Piece
from tallystick.recording.serving.requests import (
    ChallengeBody,
    ChatRequest,
    CompletionRequest,
    ResponsesRequest,
    TextRequest,
    read_request,
)
from tallystick.recording.serving.responses import ChoiceSoFar, ResponseForm, ResponseObjects, receipts_of
from tallystick.recording.serving.service import Answering, GenerationRequest, ModelService

# Answers as server-sent events: chunks as they are generated, the receipt in the last one, then `[DONE]`.


async def stream_events(answering: Answering, form: ResponseForm, has_usage: bool) -> AsyncGenerator[bytes, None]:
    """The chunks of an answer, one event each.

    The last chunk carries the receipts. If the client asked for usage, that is the chunk with `usage` and no choices.
    Otherwise it is the chunk with the last `finish_reason`: other clients do not expect a chunk without choices.
    """
    choices = [ChoiceSoFar() for _ in answering.order.samplers]
    no_usage = {"usage": None} if has_usage else {}
    for number in range(len(choices)):
        yield event_of(form.first_chunk(number) | no_usage)
    held: dict[int, Piece] = {}
    async for number, event in answering.events():
        if isinstance(event, Failed):
            yield event_of(error_object(Problem(500, "internal_error", event.reason)))
            yield DONE
            return
        waiting = held.pop(number, NO_PIECE)
        if isinstance(event, Piece):
            choices[number].add(event)
            joined = waiting.followed_by(event)
            if joined.text and answering.order.calls is None:
                yield event_of(form.piece_chunk(number, joined.text, joined.ids, None, joined.logprobs) | no_usage)
            else:
                held[number] = joined
        else:
            choices[number].answered = event
            chunk = form.piece_chunk(number, waiting.text, waiting.ids, event.finish, waiting.logprobs)
            if answering.order.calls is not None:
                chunk = form.calls_chunk(number, choices[number], waiting.ids, event.finish)
            is_last = all(each.answered for each in choices)
            yield event_of(chunk | (form.closing(choices, usage=False) if is_last and not has_usage else no_usage))
    if has_usage:
        yield event_of(form.last_chunk() | form.closing(choices))
    yield DONE


# The HTTP interface: chat and text completions of the OpenAI API, models, receipts and challenges.

TEXT_TOKENS: Final = 16
"""The default limit of a text completion, as in the OpenAI API."""
SEEDS: Final = 1 << 52
FORMS: Final[Mapping[str, Literal["chat", "text"]]] = {"chatcmpl": "chat", "cmpl": "text"}
Asks = TypeVar("Asks", CompletionRequest, ChatRequest, TextRequest, ResponsesRequest)


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
        request: Request, asked: CompletionRequest, prompt: tuple[int, ...], form: str, wanted: Wanted | None = None
    ) -> Response:
        order = replace(_order(asked, prompt, form, service), calls=call_form(asked.shaping))
        order = order.under(*await service.grammar(wanted, len(order.samplers)))
        written = ResponseForm(
            "chat" if form == "chatcmpl" else "text",
            asked.model,
            service.issuer.model,
            int(clock()),
            order,
            service.shown,
        )
        answering = service.order(order)
        if asked.stream:
            has_usage = bool(asked.stream_options and asked.stream_options.include_usage)
            headers = EVENT_HEADERS | {"X-Request-Id": order.id}
            return ClosingStream(stream_events(answering, written, has_usage), answering.close, headers=headers)
        return await _whole(request, answering, written)

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        asked = await _read(request, ChatRequest, options, service)
        wanted, tools = _shape(asked, service)
        messages = [each.as_sent for each in asked.messages]
        return await respond(request, asked, await service.encode_chat(messages, tools), "chatcmpl", wanted)

    @app.post("/v1/responses")
    async def responses(request: Request) -> Response:
        sent = await _read(request, ResponsesRequest, options, service)
        asked = sent.as_chat()
        wanted, _ = _shape(asked, service)
        prompt = await service.encode_chat([each.as_sent for each in asked.messages])
        order = _order(asked, prompt, "resp", service).under(*await service.grammar(wanted, 1))
        written = ResponseObjects(
            asked.model, service.issuer.model, int(clock()), order, sent.model_dump(exclude_none=True)
        )
        answering = service.order(order)
        if sent.stream:
            headers = EVENT_HEADERS | {"X-Request-Id": order.id}
            return ClosingStream(written.events(answering), answering.close, headers=headers)
        return await _whole(request, answering, written)

    @app.post("/v1/completions")
    async def text(request: Request) -> Response:
        asked = await _read(request, TextRequest, options, service)
        prompt = asked.only_prompt
        ids = await service.encode_text(prompt) if isinstance(prompt, str) else prompt
        return await respond(request, asked, ids, "cmpl")


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


async def _whole(request: Request, answering: Answering, form: ResponseForm | ResponseObjects) -> Response:
    """A response without streaming; if the client disconnects, generation stops."""
    collecting = asyncio.ensure_future(_collect(answering))
    leaving = asyncio.ensure_future(until_left(request))
    try:
        await asyncio.wait({collecting, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not collecting.done():
            return Response(status_code=CLIENT_GONE)
        choices = collecting.result()
    finally:
        answering.close()
        collecting.cancel()
        leaving.cancel()
    return JSONResponse(form.whole(choices), headers=receipt_headers(form.order.id, receipts_of(choices)))


async def _collect(answering: Answering) -> list[ChoiceSoFar]:
    choices = [ChoiceSoFar() for _ in answering.order.samplers]
    async for number, event in answering.events():
        if isinstance(event, Failed):
            raise Problem(500, "internal_error", event.reason)
        if isinstance(event, Piece):
            choices[number].add(event)
        else:
            choices[number].answered = event
    return choices


async def _read(request: Request, kind: type[Asks], options: ServerOptions, service: ModelService) -> Asks:
    check_customer(request, options)
    asked = read_request(kind, await read_json(request, options.body_bytes_max, options.body_seconds_max))
    _check_model(asked.model, options, service)
    return asked


def _order(asked: CompletionRequest, prompt: tuple[int, ...], form: str, service: ModelService) -> GenerationRequest:
    field = "prompt" if form == "cmpl" else "messages"
    vocabulary = service.language_model.card.vocabulary
    if not prompt:
        raise invalid(f"{field}: no tokens", field)
    if max(prompt) >= vocabulary:
        raise invalid(f"{field}: token {max(prompt)} is outside the vocabulary of {vocabulary}", field)
    first = asked.sampler(secrets.randbelow(SEEDS), service.language_model.end_tokens)
    _check_choosable(first, vocabulary)
    seeds = [(first.seed + choice) % (SAFE_INTEGER_MAX + 1) for choice in range(asked.choices)]
    return GenerationRequest(
        id=f"{form}{'_' if form == 'resp' else '-'}{secrets.token_hex(16)}",
        prompt=prompt,
        samplers=tuple(first.model_copy(update={"seed": seed}) for seed in seeds),
        max_tokens=_limit(asked, len(prompt), TEXT_TOKENS if form == "cmpl" else None, service.context, field),
        stops=asked.stops,
        nonce=asked.tally_nonce,
        logprobs=asked.top,
    )


def _shape(asked: ChatRequest, service: ModelService) -> tuple[Wanted | None, str | None]:
    """The schema that answers follow, and the tools for the template; raises `Problem` for what is not offered."""
    try:
        wanted, tools = wanted_schema(asked.shaping), shown_tools(asked.shaping)
    except MalformedError as error:
        raise invalid(str(error), str(error).partition(":")[0].partition(".")[0]) from None
    if wanted is not None and asked.limits_tokens:
        raise invalid("min_tokens and lists of tokens are not offered together with a schema", "response_format")
    if tools is not None and wanted is None and not service.language_model.knows_tools:
        raise invalid("tools: the model's chat template knows no tools; tool_choice can demand a call", "tools")
    return wanted, tools


def _check_choosable(sampler: Sampler, vocabulary: int) -> None:
    """Raise `Problem` if a setting names a token that the model does not have, or if they leave no token."""
    if sampler.largest_token >= vocabulary:
        raise invalid(f"token {sampler.largest_token} is outside the vocabulary of {vocabulary}", "logit_bias")
    out = {*sampler.bad_token_ids, *sampler.end_token_ids}
    if sampler.allowed_token_ids and not {*sampler.allowed_token_ids} - out:
        raise invalid("allowed_token_ids: bad_token_ids and min_tokens leave none of them", "allowed_token_ids")


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
