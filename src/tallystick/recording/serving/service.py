"""One served model: it takes prompts and returns answers with receipts, as a sequence of events."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeAlias

from tallystick.core.errors import TallyError, UnavailableError, UsageError
from tallystick.core.http.problems import Problem
from tallystick.engines.tokenizers import REFUSALS
from tallystick.engines.torch.generation.grammars import grammar_of
from tallystick.engines.torch.generation.language_models import TorchLanguageModel
from tallystick.formats.receipt import Answer, Grammar, Request, Sampler, SignedReceipt, Tokens
from tallystick.formats.requests import Wanted
from tallystick.recording.receipts import ReceiptIssuer
from tallystick.recording.serving.batching import BatchingEngine
from tallystick.recording.serving.errors import invalid
from tallystick.recording.serving.exchanges import ModelTokenizer, ReceiptBook
from tallystick.recording.serving.jobs import BusyError, Event, Failed, Job, JobResult, Piece, Slot
from tallystick.recording.serving.schemas import complaint_about
from tallystick.verdicts.language_model import TokenMasks

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

    def choice_id(self, choice: int) -> str:
        """The id in the receipt of a choice: the id of the HTTP request, with a number if there are several choices."""
        return self.id if len(self.samplers) == 1 else f"{self.id}-{choice}"


AnswerEvent: TypeAlias = tuple[int, Piece | SignedReceipt | Failed]
"""The number of a choice, and one of its events: new text, the receipt at its end, or a failure."""


class ModelService:
    """Answers orders through a batching engine; a separate thread issues receipts, in order.

    At most `rows` answers are generated at once, and `queue` more wait.
    """

    def __init__(
        self,
        language_model: TorchLanguageModel,
        issuer: ReceiptIssuer,
        book: ReceiptBook,
        *,
        rows: int = 16,
        queue: int = 128,
    ) -> None:
        self.language_model, self.issuer, self.book = language_model, issuer, book
        recorded = issuer.settings
        self.engine = BatchingEngine(
            language_model,
            rows=rows,
            queue=queue,
            layers=recorded.layers,
            seed=recorded.seed,
            keeps_prompts=recorded.prompt,
        )
        self._tokenizer = ModelTokenizer(language_model)
        self._scribe = ThreadPoolExecutor(1, "receipts")
        self._unissued = threading.BoundedSemaphore(UNISSUED_MAX)

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
        return await asyncio.to_thread(self._encode, "messages", self._tokenizer.encode_chat, messages, tools)

    async def encode_text(self, text: str) -> tuple[int, ...]:
        """The tokens of a text; raises `Problem` if the tokenizer refuses it."""
        return await asyncio.to_thread(self._encode, "prompt", self._tokenizer.encode_text, text)

    def _encode(self, field: str, encode: Callable[..., list[int]], *given: Any) -> tuple[int, ...]:
        try:
            return tuple(encode(*given))
        except UsageError as error:
            raise invalid(str(error), field) from None
        except REFUSALS:
            raise invalid(f"{field}: the tokenizer refuses this text", field) from None

    def grammar(self, wanted: Wanted, choices: int) -> tuple[Grammar, tuple[TokenMasks, ...]]:
        """The grammar of a wanted schema, and its masks for each choice; `Problem` for one that cannot be used.

        It may take seconds: the schema is tried in a process of its own.
        """
        kind, schema = wanted
        field = "tool_choice" if kind == "tool_choice" else "response_format"
        try:
            grammar = grammar_of(kind, schema)
            if complaint := complaint_about(schema):
                raise invalid(complaint, field)
            with self._tokenizer.turn:
                return grammar, tuple(self.language_model.token_masks(grammar, schema) for _ in range(choices))
        except UnavailableError as error:
            raise invalid(str(error), field) from None

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


class Answering:
    """One order while it is answered. Close it when the client disconnects: that frees its rows of the batch."""

    def __init__(self, service: ModelService, order: GenerationRequest) -> None:
        self.order = order
        self._service = service
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[AnswerEvent] = asyncio.Queue()
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

    async def events(self) -> AsyncIterator[AnswerEvent]:
        """Pieces and finished answers as they arrive; ends after the last choice, or after a failure."""
        open_choices = len(self._slots)
        while open_choices:
            choice, event = await self._events.get()
            open_choices = 0 if isinstance(event, Failed) else open_choices - isinstance(event, SignedReceipt)
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
            self._tell(choice, signed)

    def _tell(self, choice: int, event: Piece | SignedReceipt | Failed) -> None:
        with suppress(RuntimeError):  # the event loop is closed: nobody reads the events
            self._loop.call_soon_threadsafe(self._events.put_nowait, (choice, event))
