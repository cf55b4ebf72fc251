"""The batching engine's input (jobs) and output (events)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import torch

from tallystick.errors import UnavailableError
from tallystick.recorders.receipts import batch_composition
from tallystick.transcripts.receipt import BatchStatement
from tallystick.transcripts.sampler import Sampler
from tallystick.workloads.language_model import TokenMasks

Finish = Literal["end", "stop", "length", "cancelled"]
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
