"""One answer while it is generated: its tokens, text, hidden rows, and the requests in its batches so far."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import torch

from tallystick.sampling.adjusting import Flags
from tallystick.serving.answer_text import AnswerText
from tallystick.serving.jobs import Event, Failed, Finish, Job, JobResult, Piece, Run, TokenLogprobs

if TYPE_CHECKING:
    from tallystick.frameworks.torch.generation.language_models import TorchLanguageModel

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
        self._note(batched)
        is_end = token in self._end_tokens
        text = "" if is_end else self._text.add(token)
        self.finish = self._finish(is_end)
        told = self._logprobs(token, logits)
        self.tell(Piece((token,), text + (self._text.close() if self.finish else ""), told))

    def _logprobs(self, token: int, logits: torch.Tensor) -> tuple[TokenLogprobs, ...]:
        """Log probabilities by the model's logits, before the sampler changes them; none if not asked for."""
        count = self.job.logprobs
        if count is None:
            return ()
        found = torch.log_softmax(logits.float(), -1)
        values, tokens = torch.topk(found, min(count, len(found)))
        top = tuple(zip(tokens.tolist(), values.tolist(), strict=True))
        return (TokenLogprobs(token, float(found[token]), top),)

    def hand_over(self) -> None:
        """Deliver the answer, which is incomplete if cancelled; does nothing after a failure."""
        if self.is_over:
            return
        finish, runs = self.finish or "cancelled", tuple(self._runs)
        self.tell(JobResult(self.job, tuple(self.ids), finish, *self._let_go(), runs))

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
        self._folded.append({layer: torch.stack([each[layer] for each in self._rows]) for layer in self._rows[0]})
        self._rows = []

    def _let_go(self) -> tuple[Mapping[int, torch.Tensor], Mapping[int, torch.Tensor]]:
        """The rows of the answer and of the prompt; this slot drops its references to them."""
        if self._rows:
            self._fold()
        folded, prompt_rows, self._folded, self.prompt_rows = self._folded, self.prompt_rows, [], {}
        return {layer: torch.cat([each[layer] for each in folded]) for layer in folded[0]}, prompt_rows

    def _finish(self, is_end: bool) -> Finish | None:
        if is_end:
            return "end"
        if self._text.is_stopped:
            return "stop"
        return "length" if self.length >= self.job.max_tokens else None

    def _note(self, batched: tuple[str, ...]) -> None:
        """Count one more step with the same requests, or begin a new run."""
        if self._runs and self._runs[-1][1] == batched:
            self._runs[-1] = (self._runs[-1][0] + 1, batched)
        else:
            self._runs.append((1, batched))
