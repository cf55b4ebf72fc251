"""One OpenTelemetry span for every answer with a receipt, under the GenAI semantic conventions.

Spans are sent where the standard variable OTEL_EXPORTER_OTLP_ENDPOINT (or its variant for traces) says; without it
nothing is loaded. Other variables of OpenTelemetry count too, such as OTEL_SERVICE_NAME.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any, Final

from tallystick.transcripts.receipt import SignedReceipt

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

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
    from tallystick.extras import require

    require("opentelemetry.sdk", "opentelemetry.exporter")
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return AnswerSpans(model, provider)
