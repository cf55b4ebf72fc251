"""Spans of answers, as a collector of OpenTelemetry receives them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tallystick.recording.serving.errors import answer_spans

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[ExportTraceServiceRequest]]:
    """What a collector on loopback got, which the environment names."""
    got: list[ExportTraceServiceRequest] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/traces"
            got.append(ExportTraceServiceRequest.FromString(self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv(ENDPOINT, f"http://127.0.0.1:{server.server_port}")
    yield got
    server.shutdown()
    thread.join()
    server.server_close()


def value_of(attribute: Any) -> Any:
    kind = attribute.value.WhichOneof("value")
    held = getattr(attribute.value, kind)
    return [each.string_value for each in held.values] if kind == "array_value" else held


def test_an_answer_is_one_span_with_its_receipt(
    serving: Any, language_model: Any, collector: list[ExportTraceServiceRequest]
) -> None:
    with serving(language_model, spans=answer_spans("tiny")) as running:
        asked = {"model": "tiny", "prompt": "with", "max_tokens": 4, "temperature": 0.5, "seed": 3}
        answer = running.http.post("/v1/completions", json=asked).json()
    (span,) = [each for request in collector for part in request.resource_spans[0].scope_spans for each in part.spans]
    told = {each.key: value_of(each) for each in span.attributes}
    receipt = answer["receipt"]["receipt"]
    assert span.name == "chat tiny"
    assert 0 < span.start_time_unix_nano < span.end_time_unix_nano
    assert told["gen_ai.operation.name"] == "chat"
    assert told["gen_ai.response.id"] == receipt["request"]["id"]
    assert told["gen_ai.request.temperature"] == 0.5
    assert told["gen_ai.usage.output_tokens"] == receipt["answer"]["tokens"]["count"]
    assert told["gen_ai.response.finish_reasons"] == [receipt["answer"]["finish"]]
    assert told["tallystick.receipt.sequence"] == 1
    assert told["tallystick.receipt.digest"].startswith("sha256:")


def test_without_an_endpoint_there_are_no_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENDPOINT, raising=False)
    assert answer_spans("tiny") is None
