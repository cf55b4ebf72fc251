"""One answer while it is generated: the engine's input and output, its tokens, text and hidden rows."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

import torch

from tallystick.core.errors import UnavailableError
from tallystick.formats.completions import Finish
from tallystick.formats.receipt import BatchStatement, Sampler
from tallystick.recording.receipts import batch_composition
from tallystick.verdicts.language_model import TokenMasks
from tallystick.verdicts.sampling.filters import Flags

if TYPE_CHECKING:
    from tallystick.engines.torch.generation.language_models import TorchLanguageModel


# The batching engine's input (jobs) and output (events).

Run = tuple[int, tuple[str, ...]]
"""Consecutive steps with the same batch: the number of steps, and the ids of the requests in the order of rows."""


class BusyError(UnavailableError):
    """The waiting queue is full."""


@dataclass(frozen=True)
class Job:
    """One answer to generate. `id` is the id in its receipt; the engine's thread calls `deliver` with each event.

    `logprobs` is the number of most likely tokens that are reported beside each token; None reports nothing.
    """

    id: str
    prompt: tuple[int, ...]
    max_tokens: int
    sampler: Sampler
    deliver: Callable[[Event], None]
    stops: tuple[str, ...] = ()
    masks: TokenMasks | None = None
    logprobs: int | None = None


@dataclass(frozen=True)
class TokenLogprobs:
    """The log probability of a token in the model's own logits, and the most likely tokens with theirs."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Piece:
    """New tokens and the text that they add; either may be empty. `logprobs` are those of the tokens, if asked for."""

    ids: tuple[int, ...]
    text: str
    logprobs: tuple[TokenLogprobs, ...] = ()

    def followed_by(self, other: Piece) -> Piece:
        """Both as one piece."""
        return Piece((*self.ids, *other.ids), self.text + other.text, (*self.logprobs, *other.logprobs))


NO_PIECE: Final = Piece((), "")


@dataclass(frozen=True)
class JobResult:
    """A finished answer: its tokens, the hidden rows F [tokens, width] of each recorded layer, and its batches.

    `prompt_rows` are F [P − 1, width], for all tokens of the prompt but the last, if prompts are recorded. `runs` lists
    which requests shared the batch in each step.
    """

    job: Job
    ids: tuple[int, ...]
    finish: Finish
    rows: Mapping[int, torch.Tensor]
    prompt_rows: Mapping[int, torch.Tensor]
    runs: tuple[Run, ...]

    @property
    def batch(self) -> BatchStatement:
        """The size of the largest batch, and the digest of `runs`."""
        return BatchStatement(largest=max(len(ids) for _, ids in self.runs), composition=batch_composition(self.runs))


@dataclass(frozen=True)
class Failed:
    """The request failed; `reason` says why."""

    reason: str


Event: TypeAlias = Piece | JobResult | Failed


# The text of an answer while its tokens arrive: what can be sent, what is held back, and where it stops.

Decode = Callable[[Sequence[int]], str]
UNFINISHED: Final = "\ufffd"
"""What a decoder returns for the first bytes of an incomplete character."""


class AnswerText:
    """Decodes tokens into text piece by piece; the joined pieces are the answer's text, streamed or not.

    A piece is held back while its last character is incomplete, or while its end could be the start of a stop text. The
    answer ends before the first stop text.
    """

    def __init__(self, decode: Decode, stops: Sequence[str] = ()) -> None:
        self._decode, self._stops = decode, tuple(stops)
        self._ids: list[int] = []
        self._context, self._given = 0, 0
        self._held = ""
        self.is_stopped = False

    def add(self, token: int) -> str:
        """The text that can be sent after one more token."""
        self._ids.append(token)
        new = self._decoded_since()
        if not new or new.endswith(UNFINISHED):
            return ""
        self._context, self._given = self._given, len(self._ids)
        return self._release(new)

    def close(self) -> str:
        """The text that was held back; call it after the last token."""
        if self.is_stopped:
            return ""
        text = self._release(self._decoded_since())
        rest, self._held = self._held, ""
        return text if self.is_stopped else text + rest

    def _decoded_since(self) -> str:
        """The text of the tokens not sent yet, decoded after the tokens before them: decoding depends on context."""
        before = self._decode(self._ids[self._context : self._given])
        return self._decode(self._ids[self._context :])[len(before) :]

    def _release(self, new: str) -> str:
        text = self._held + new
        starts = [start for start in (text.find(stop) for stop in self._stops) if start >= 0]
        if starts:
            self.is_stopped, self._held = True, ""
            return text[: min(starts)]
        kept = self._beginning_of_a_stop(text)
        self._held = text[len(text) - kept :]
        return text[: len(text) - kept]

    def _beginning_of_a_stop(self, text: str) -> int:
        """How many characters at the end of `text` are the start of a stop text."""
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        for length in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stops):
                return length
        return 0


# One answer while it is generated: its tokens, text, hidden rows, and the requests in its batches so far.

FOLD: Final = 32
"""Tokens after which rows are copied into one tensor: a view of one row keeps the rows of the whole batch in memory."""
LOG: Final = logging.getLogger("tallystick.serving")


class Slot:
    """The state of one job while it has a row of the batch. `is_cancelled` may be set from any thread."""

    def __init__(self, job: Job, language_model: TorchLanguageModel) -> None:
        self.job = job
        self.history = list(job.prompt)
        self.finish: Finish | None = None
        self.is_cancelled = False
        self._end_tokens = language_model.end_tokens
        self._text = AnswerText(language_model.decode, job.stops)
        self.prompt_rows: Mapping[int, torch.Tensor] = {}
        self._folded: list[Mapping[int, torch.Tensor]] = []
        self._rows: list[Mapping[int, torch.Tensor]] = []
        self._runs: list[Run] = []
        self.is_over = False
        self._masked = 0

    @property
    def ids(self) -> list[int]:
        """The answer's tokens so far."""
        return self.history[len(self.job.prompt) :]

    @property
    def length(self) -> int:
        """The number of tokens of the answer so far."""
        return len(self.history) - len(self.job.prompt)

    def mask(self) -> Flags | None:
        """The tokens that the job's grammar allows next, BOOL[V]; None if it has none. Raises `UnavailableError`."""
        masks = self.job.masks
        if masks is None:
            return None
        for token in self.ids[self._masked :]:
            masks.take(token)
            self._masked += 1
        return masks.allowed()

    def add(self, token: int, rows: Mapping[int, torch.Tensor], batched: tuple[str, ...], logits: torch.Tensor) -> None:
        """Add a token, the hidden rows [width] by layer and the logits F[V] it was chosen from, and the batch."""
        self.history.append(token)
        self._rows.append(rows)
        if len(self._rows) == FOLD:
            self._fold()
        if self._runs and self._runs[-1][1] == batched:
            self._runs[-1] = (self._runs[-1][0] + 1, batched)
        else:
            self._runs.append((1, batched))
        text = ""
        if token in self._end_tokens:
            self.finish = "end"
        else:
            text = self._text.add(token)
            if self._text.is_stopped:
                self.finish = "stop"
            elif self.length >= self.job.max_tokens:
                self.finish = "length"
        rest = self._text.close() if self.finish else ""
        self.tell(Piece((token,), text + rest, self._logprobs(token, logits)))

    def _logprobs(self, token: int, logits: torch.Tensor) -> tuple[TokenLogprobs, ...]:
        """Log probabilities by the model's logits, before the sampler changes them; none if not asked for."""
        count = self.job.logprobs
        if count is None:
            return ()
        logprobs = torch.log_softmax(logits.float(), -1)
        values, tokens = torch.topk(logprobs, min(count, len(logprobs)))
        top = tuple(zip(tokens.tolist(), values.tolist(), strict=True))
        return (TokenLogprobs(token, float(logprobs[token]), top),)

    def hand_over(self) -> None:
        """Deliver the answer, which is incomplete if cancelled; does nothing after a failure."""
        if self.is_over:
            return
        if self._rows:
            self._fold()
        # the slot lets go of its rows: they may be large, and it lives as long as its request
        folded, prompt_rows, self._folded, self.prompt_rows = self._folded, self.prompt_rows, [], {}
        rows = {layer: torch.cat([part[layer] for part in folded]) for layer in folded[0]}
        finish, runs = self.finish or "cancelled", tuple(self._runs)
        self.tell(JobResult(self.job, tuple(self.ids), finish, rows, prompt_rows, runs))

    def fail(self, error: BaseException) -> None:
        """Log the error and deliver `Failed`."""
        LOG.error("request %s", self.job.id, exc_info=error)
        self.tell(Failed(f"generation failed: {type(error).__name__}"))

    def tell(self, event: Event) -> None:
        """Deliver an event; does nothing after the last one."""
        if not self.is_over:
            self.is_over = not isinstance(event, Piece)
            self.job.deliver(event)

    def _fold(self) -> None:
        self._folded.append({layer: torch.stack([row[layer] for row in self._rows]) for layer in self._rows[0]})
        self._rows = []
