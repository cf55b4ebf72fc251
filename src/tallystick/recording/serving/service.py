"""One served model, built from its parts: it takes prompts and returns answers with receipts."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, Final, TypeAlias

from tallystick.core.digests import Digest
from tallystick.core.errors import TallyError, UnavailableError, UsageError
from tallystick.core.http.problems import Problem
from tallystick.engines.tokenizers import REFUSALS
from tallystick.engines.torch.generation.grammars import grammar_of
from tallystick.engines.torch.generation.language_models import TorchLanguageModel
from tallystick.formats.receipt import Answer, Grammar, Request, Sampler, SignedReceipt, Tokens
from tallystick.formats.requests import Wanted
from tallystick.formats.signing import SigningKey
from tallystick.formats.store.receipts import SpilledStates
from tallystick.recording.receipts import HELD_BYTES_MAX, ReceiptIssuer, RecordSettings
from tallystick.recording.serving.batching import BatchingEngine
from tallystick.recording.serving.errors import AnswerSpans, invalid
from tallystick.recording.serving.exchanges import ReceiptBook
from tallystick.recording.serving.jobs import BusyError, Event, Failed, Job, JobResult, Piece, Slot
from tallystick.recording.serving.schemas import complaint_about
from tallystick.verdicts.language_model import TokenMasks

# One served model: it takes prompts and returns answers with receipts, as a sequence of events.

UNISSUED_MAX: Final = 64
"""The most finished answers that wait for their receipts; the next one blocks the engine, so that memory is bounded."""
RETRY_SECONDS: Final = "1"
LOG: Final = logging.getLogger("tallystick.serving")


@dataclass(frozen=True)
class GenerationRequest:
    """One HTTP request to the model: a prompt, and a sampler for each choice."""

    id: str
    prompt: tuple[int, ...]
    samplers: tuple[Sampler, ...]
    max_tokens: int
    stops: tuple[str, ...] = ()
    nonce: str | None = None
    masks: tuple[TokenMasks, ...] = ()
    calls: str | None = None
    logprobs: int | None = None
    started_ns: int = field(default_factory=time.time_ns)

    def under(self, grammar: Grammar | None, masks: tuple[TokenMasks, ...]) -> GenerationRequest:
        """The same request whose samplers state a grammar."""
        if grammar is None:
            return self
        samplers = tuple(sampler.model_copy(update={"grammar": grammar}) for sampler in self.samplers)
        return replace(self, samplers=samplers, masks=masks)

    def choice_id(self, choice: int) -> str:
        """The id in the receipt of a choice: the id of the HTTP request, with a number if there are several choices."""
        return self.id if len(self.samplers) == 1 else f"{self.id}-{choice}"


@dataclass(frozen=True)
class FinishedAnswer:
    """A finished answer with its receipt."""

    ids: tuple[int, ...]
    finish: str
    signed: SignedReceipt


Told: TypeAlias = tuple[int, Piece | FinishedAnswer | Failed]
"""The number of a choice, and one of its events."""


class ModelService:
    """Answers orders through a batching engine; a separate thread issues receipts, in order."""

    def __init__(
        self, language_model: TorchLanguageModel, engine: BatchingEngine, issuer: ReceiptIssuer, book: ReceiptBook
    ) -> None:
        self.language_model, self.engine, self.issuer, self.book = language_model, engine, issuer, book
        self._scribe = ThreadPoolExecutor(1, "receipts")
        self._unissued = threading.BoundedSemaphore(UNISSUED_MAX)
        self._tokenizing = threading.Lock()

    def start(self) -> None:
        """Start the engine."""
        self.engine.start()

    def stop(self) -> None:
        """Stop the engine, then issue the receipts that still wait."""
        self.engine.stop()
        self._scribe.shutdown()
        self.issuer.close()
        self.book.close()

    @property
    def context(self) -> int | None:
        """The context length in tokens, if the model's configuration states one."""
        length = getattr(self.language_model.model.config, "max_position_embeddings", None)
        return length if isinstance(length, int) else None

    async def encode_chat(self, messages: Sequence[Mapping[str, Any]], tools: str | None = None) -> tuple[int, ...]:
        """The tokens of messages and tools in the chat template; raises `Problem` if the template refuses them."""
        return await asyncio.to_thread(
            self._encode, "messages", lambda: self.language_model.encode_chat(messages, tools)
        )

    async def grammar(self, wanted: Wanted | None, choices: int) -> tuple[Grammar | None, tuple[TokenMasks, ...]]:
        """The grammar of a wanted schema, and its masks for each choice; `Problem` for one that cannot be used."""
        return (None, ()) if wanted is None else await asyncio.to_thread(self._grammar, wanted, choices)

    def _grammar(self, wanted: Wanted, choices: int) -> tuple[Grammar, tuple[TokenMasks, ...]]:
        kind, schema = wanted
        field = "tool_choice" if kind == "tool_choice" else "response_format"
        try:
            grammar = grammar_of(kind, schema)
            if complaint := complaint_about(schema):
                raise invalid(complaint, field)
            with self._tokenizing:
                return grammar, tuple(self.language_model.token_masks(grammar, schema) for _ in range(choices))
        except UnavailableError as error:
            raise invalid(str(error), field) from None

    async def encode_text(self, text: str) -> tuple[int, ...]:
        """The tokens of a text; raises `Problem` if the tokenizer refuses it."""
        return await asyncio.to_thread(self._encode, "prompt", lambda: self.language_model.encode_text(text))

    def shown(self, token: int) -> str:
        """A token as text, special ones by their name."""
        text: str = self.language_model.tokenizer.decode([token])
        return text

    def order(self, order: GenerationRequest) -> Answering:
        """Submit an order; raises `Problem` with status 429 if the queue is full, 503 if the engine has stopped."""
        return Answering(self, order)

    async def challenge(self, request_id: str, nonce: bytes, count: int, layer: int | None) -> bytes:
        """The opening of committed states as canonical JSON; raises `UnavailableError` if they are not in memory."""
        opening = await asyncio.to_thread(self.issuer.challenge, request_id, nonce, count, layer)
        return opening.to_bytes()

    def has_committed(self, request_id: str) -> bool:
        """Whether the receipt of this request is in memory and commits to hidden states."""
        try:
            line = self.book.of(request_id)
        except UnavailableError:
            return False
        return SignedReceipt.from_bytes(line, "receipt").receipt.states is not None

    def issue(self, order: GenerationRequest, choice: int, generated: JobResult) -> SignedReceipt:
        """Sign and store the receipt of one choice."""
        request = Request(
            id=order.choice_id(choice),
            prompt=Tokens.of(order.prompt),
            max_tokens=order.max_tokens,
            nonce=order.nonce,
        )
        answer = Answer(tokens=Tokens.of(generated.ids), finish=generated.finish)
        sampler, batch = order.samplers[choice], generated.batch
        issued = self.issuer.issue(request, answer, sampler, generated.rows, batch, generated.prompt_rows)
        self.book.add(issued.signed, order.started_ns)
        return issued.signed

    def write_receipt(self, write: partial[None]) -> None:
        """Run `write` on the receipt thread, after earlier ones; blocks while `UNISSUED_MAX` are waiting."""
        self._unissued.acquire()
        self._scribe.submit(write).add_done_callback(lambda _: self._unissued.release())

    def _encode(self, field: str, encode: Callable[[], list[int]]) -> tuple[int, ...]:
        with self._tokenizing:
            try:
                ids = tuple(encode())
            except UsageError as error:
                raise invalid(str(error), field) from None
            except REFUSALS:
                raise invalid(f"{field}: the tokenizer refuses this text", field) from None
        return ids


class Answering:
    """One order while it is answered. Close it when the client disconnects: that frees its rows of the batch."""

    def __init__(self, service: ModelService, order: GenerationRequest) -> None:
        self.order = order
        self._service = service
        self._loop = asyncio.get_running_loop()
        self._told: asyncio.Queue[Told] = asyncio.Queue()
        jobs = [
            Job(
                order.choice_id(choice),
                order.prompt,
                order.max_tokens,
                sampler,
                partial(self._deliver, choice),
                order.stops,
                order.masks[choice] if order.masks else None,
                order.logprobs,
            )
            for choice, sampler in enumerate(order.samplers)
        ]
        try:
            self._slots: list[Slot] = service.engine.submit(jobs)
        except BusyError as error:
            raise Problem(429, "queue_full", f"{error}; try again", headers={"Retry-After": RETRY_SECONDS}) from None
        except UnavailableError as error:
            raise Problem(503, "unavailable", str(error)) from None

    async def events(self) -> AsyncIterator[Told]:
        """Pieces and finished answers as they arrive; ends after the last choice, or after a failure."""
        open_choices = len(self._slots)
        while open_choices:
            choice, event = await self._told.get()
            open_choices = 0 if isinstance(event, Failed) else open_choices - isinstance(event, FinishedAnswer)
            yield choice, event

    def close(self) -> None:
        """Stop generating; does nothing after the end or on a second call."""
        self._service.engine.cancel(self._slots)

    def _deliver(self, choice: int, event: Event) -> None:
        if isinstance(event, JobResult):
            self._service.write_receipt(partial(self._finish, choice, event))
        else:
            self._tell(choice, event)

    def _finish(self, choice: int, generated: JobResult) -> None:
        try:
            signed = self._service.issue(self.order, choice, generated)
        except (TallyError, OSError, *REFUSALS) as error:
            LOG.exception("the receipt of %s", generated.job.id)
            self._tell(choice, Failed(f"the receipt could not be issued: {type(error).__name__}"))
        else:
            self._tell(choice, FinishedAnswer(generated.ids, generated.finish, signed))

    def _tell(self, choice: int, event: Piece | FinishedAnswer | Failed) -> None:
        with suppress(RuntimeError):  # the event loop is closed: nobody reads the events
            self._loop.call_soon_threadsafe(self._told.put_nowait, (choice, event))


# Builds a served model from its parts.


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
