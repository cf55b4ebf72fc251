"""Errors of the OpenAI API, server-sent events, and one span of telemetry for every answer."""

from __future__ import annotations

import json
import os
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from fastapi.responses import JSONResponse, StreamingResponse
from starlette.types import Receive, Scope, Send

from tallystick.core.canonical_json import Json
from tallystick.core.errors import MalformedError
from tallystick.core.http.problems import Problem
from tallystick.core.lazy import require
from tallystick.formats.receipt import SignedReceipt

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider


# Errors in the form of the OpenAI API: `{"error": {"message", "type", "param", "code"}}` with status 4xx or 5xx.

MESSAGE_MAX: Final = 500
CODES: Final = {"malformed": None, "size": "request_too_large", "slow": "timeout"}
"""The API's codes for those of `core.http.server`."""


def error_response(problem: Problem) -> JSONResponse:
    """The HTTP response to a problem."""
    return JSONResponse(error_object(problem), problem.status, problem.headers)


def error_object(problem: Problem) -> Json:
    """The JSON body for a problem; its message is cut to `MESSAGE_MAX` characters."""
    return {
        "error": {
            "message": problem.detail[:MESSAGE_MAX],
            "type": _type_of(problem.status),
            "param": problem.parameter,
            "code": CODES.get(problem.code, problem.code) if problem.code else None,
        }
    }


def invalid(message: str, field: str | None = None, code: str | None = None) -> Problem:
    """A problem with status 400: the request is wrong, or asks for something that is not offered."""
    return Problem(400, code, message, field)


def refused(error: MalformedError) -> Problem:
    """The problem with a request that a format refuses: what is wrong begins with the name of the field."""
    return invalid(str(error), str(error).partition(":")[0].partition(".")[0])


def _type_of(status: int) -> str:
    if status == 401:
        return "authentication_error"
    if status == 429:
        return "rate_limit_error"
    return "invalid_request_error" if status < 500 else "server_error"


# Server-sent events, and streams that are closed when the client disconnects.

DONE: Final = b"data: [DONE]\n\n"
EVENT_HEADERS: Final = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}
"""`X-Accel-Buffering` asks proxies not to buffer events."""


class ClosingStream(StreamingResponse):
    """A streamed response that always closes its source at the end and then calls `close`, also after an error."""

    def __init__(
        self,
        parts: AsyncGenerator[bytes, None],
        close: Callable[[], None] = lambda: None,
        status: int = 200,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(parts, status, headers)
        self._parts, self._close = parts, close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream, then close it."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._parts.aclose()
            self._close()


def event_of(value: Any) -> bytes:
    """One server-sent event with `value` as JSON."""
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"


# One OpenTelemetry span for every answer with a receipt, under the GenAI semantic conventions.
#
# Spans are sent where the standard variable OTEL_EXPORTER_OTLP_ENDPOINT (or its variant for traces) says; without it
# nothing is loaded. Other variables of OpenTelemetry count too, such as OTEL_SERVICE_NAME.

ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


class AnswerSpans:
    """Makes spans for the answers of the model that customers call `model`."""

    def __init__(self, model: str, provider: TracerProvider) -> None:
        self._model, self._provider = model, provider
        self._tracer = provider.get_tracer("tallystick")

    def ended(self, signed: SignedReceipt, started_ns: int) -> None:
        """Report an answer that was begun at `started_ns`, nanoseconds since 1970, and now has its receipt."""
        from opentelemetry.trace import SpanKind

        name, attributes = f"chat {self._model}", answer_attributes(signed, self._model)
        span = self._tracer.start_span(name, kind=SpanKind.SERVER, start_time=started_ns, attributes=attributes)
        span.end(time.time_ns())

    def close(self) -> None:
        """Send what still waits."""
        self._provider.shutdown()


def answer_attributes(signed: SignedReceipt, model: str) -> dict[str, Any]:
    """What a receipt says of an answer, under the names of the GenAI conventions, and its digest."""
    receipt = signed.receipt
    request, answer, sampler = receipt.request, receipt.answer, receipt.sampler
    return {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "tallystick",
        "gen_ai.request.model": model,
        "gen_ai.request.max_tokens": request.max_tokens,
        "gen_ai.request.temperature": sampler.temperature,
        "gen_ai.request.top_p": sampler.top_p,
        "gen_ai.request.top_k": sampler.top_k,
        "gen_ai.request.seed": sampler.seed,
        "gen_ai.response.id": request.id,
        "gen_ai.response.finish_reasons": [answer.finish],
        "gen_ai.usage.input_tokens": request.prompt.count,
        "gen_ai.usage.output_tokens": answer.tokens.count,
        "tallystick.receipt.digest": str(receipt.identity),
        "tallystick.receipt.sequence": receipt.sequence,
        "tallystick.receipt.key": signed.key,
        "tallystick.model.root": str(receipt.model),
    }


def answer_spans(model: str) -> AnswerSpans | None:
    """Spans to the endpoint that the environment names; `None` where it names none.

    Raises `UnavailableError` where it names one and OpenTelemetry is not installed.
    """
    if not any(os.environ.get(name) for name in ENDPOINTS):
        return None

    require("opentelemetry.sdk", "opentelemetry.exporter")
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return AnswerSpans(model, provider)
