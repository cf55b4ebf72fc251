"""Builds a served model from its parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Any

from tallystick.attestation.signing import SigningKey
from tallystick.commitments.digests import Digest
from tallystick.frameworks.torch.generation.language_models import TorchLanguageModel
from tallystick.recorders.held_states import HELD_BYTES_MAX
from tallystick.recorders.receipts import ReceiptIssuer, RecordSettings
from tallystick.serving.batching import BatchingEngine
from tallystick.serving.receipts import ReceiptBook
from tallystick.serving.service import ModelService
from tallystick.serving.telemetry import AnswerSpans
from tallystick.store.spilled_states import SpilledStates


def model_service(
    language_model: TorchLanguageModel,
    key: SigningKey,
    settings: RecordSettings | None = None,
    journal: Path | None = None,
    *,
    rows: int = 16,
    queue: int = 128,
    graph: Digest | None = None,
    held_bytes_max: int = HELD_BYTES_MAX,
    spilled: SpilledStates | None = None,
    spans: AnswerSpans | None = None,
) -> ModelService:
    """A service with at most `rows` answers at once and `queue` waiting; receipts are also written to `journal`.

    `graph` is the root of the decode graph that receipts name; `held_bytes_max` bounds the committed states in memory,
    from which they go to `spilled`. Every answer is reported as one of `spans`, if there are any.

    Raises:
        UsageError: the journal belongs to another key, or another process writes to it.
        MalformedError: the file is not a journal, or the model lacks a layer of `settings`.
    """
    holding: dict[str, Any] = {"held_bytes_max": held_bytes_max, "spilled": spilled}
    issuer = ReceiptIssuer(language_model, key, settings, journal, graph=graph, **holding)
    kept = issuer.settings
    engine = BatchingEngine(
        language_model, rows=rows, queue=queue, layers=kept.layers, seed=kept.seed, keeps_prompts=kept.prompt
    )
    return ModelService(language_model, engine, issuer, ReceiptBook(journal, spans))


class ModelTokenizer:
    """The tokenizer of a model, for a proxy that encodes the prompts that it forwards."""

    def __init__(self, language_model: TorchLanguageModel) -> None:
        self._model, self._turn = language_model, Lock()

    def encode_text(self, text: str) -> list[int]:
        """The tokens of a prompt."""
        with self._turn:
            return self._model.encode_text(text)

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """The tokens of messages in the chat template; raises `UsageError` if there is none or it refuses them."""
        with self._turn:
            return self._model.encode_chat(messages)
