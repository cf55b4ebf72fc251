"""A tiny model served on a loopback socket; connections to anywhere else still fail."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

LOOPBACK = ("127.0.0.1", "localhost", "::1")
REAL_CONNECT = super(socket.socket, socket.socket).connect  # that of the C type, whatever is put over it
REAL_LOOKUP = socket.getaddrinfo
NAME = "tiny"
AUDITOR = "auditors-key"


@pytest.fixture(scope="module", autouse=True)
def loopback_only(no_network: None) -> Iterator[None]:
    """Lift the ban on connections for this machine's own address alone."""
    refuse_connection, refuse_lookup = socket.socket.connect, socket.getaddrinfo

    def connect(self: socket.socket, address: Any) -> None:
        (REAL_CONNECT if address[0] in LOOPBACK else refuse_connection)(self, address)

    def look_up(host: Any, *rest: Any, **named: Any) -> Any:
        return (REAL_LOOKUP if host in LOOPBACK else refuse_lookup)(host, *rest, **named)

    socket.socket.connect, socket.getaddrinfo = connect, look_up  # type: ignore[method-assign, assignment]
    yield
    socket.socket.connect, socket.getaddrinfo = refuse_connection, refuse_lookup  # type: ignore[method-assign]


@dataclass(frozen=True)
class Served:
    """A running server."""

    url: str
    service: Any

    @cached_property
    def openai(self) -> Any:
        """The official client, which does not try again."""
        import openai

        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="anything", max_retries=0, timeout=120)

    @cached_property
    def http(self) -> Any:
        """A plain client."""
        import httpx

        return httpx.Client(base_url=self.url, timeout=120)


@pytest.fixture(scope="session")
def serving(one_thread: None) -> Callable[..., AbstractContextManager[Served]]:
    """Serve a language model: `with serving(language_model, settings=…, rows=…, queue=…, journal=…) as served`."""
    from tallystick.core.http.server import served
    from tallystick.formats.signing import SigningKey
    from tallystick.recording.receipts import ReceiptIssuer, RecordSettings
    from tallystick.recording.serving.api import create_app
    from tallystick.recording.serving.application import ServerOptions
    from tallystick.recording.serving.exchanges import ReceiptBook
    from tallystick.recording.serving.service import ModelService

    @contextmanager
    def serve(
        model: Any, settings: Any = None, keys: frozenset[str] = frozenset(), key: Any = None, **given: Any
    ) -> Iterator[Served]:
        sizes = {name: given.pop(name) for name in ("rows", "queue") if name in given}
        journal, spans = given.pop("journal", None), given.pop("spans", None)
        issuer = ReceiptIssuer(model, key or SigningKey(bytes(32)), settings or RecordSettings(), journal, **given)
        service = ModelService(model, issuer, ReceiptBook(journal, spans), **sizes)
        with served(create_app(service, ServerOptions(NAME, keys, frozenset({AUDITOR}), body_seconds_max=5))) as url:
            running = Served(url, service)
            yield running
            running.openai.close()
            running.http.close()

    return serve


@pytest.fixture(scope="module")
def server(serving: Callable[..., AbstractContextManager[Served]], language_model: Any) -> Iterator[Served]:
    """The tiny model with fingerprints of its last layer and its states committed to."""
    from tallystick.formats.fingerprints import FingerprintSettings
    from tallystick.recording.receipts import RecordSettings

    final = language_model.card.layers
    settings = RecordSettings((FingerprintSettings(layers=(final,)),), committed=(1, final), block=4)
    with serving(language_model, settings) as running:
        yield running


@pytest.fixture(scope="session")
def long_model(language_model: Any) -> Any:
    """A random model with the tiny one's tokenizer that goes on for 512 tokens."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(5)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=512,
    )
    card = language_model.card.model_copy(update={"layers": 1, "width": 16})
    return replace(language_model, model=LlamaForCausalLM(config).eval(), card=card)


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """Where receipts are written."""
    return tmp_path / "receipts.jsonl"
