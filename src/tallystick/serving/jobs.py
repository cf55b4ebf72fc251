"""What the batching engine is asked, and what it tells while and after it answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch

from tallystick.errors import UnavailableError
from tallystick.recorders.receipts import batch_composition
from tallystick.transcripts.receipt import BatchStatement
from tallystick.transcripts.sampler import Sampler

Finish = Literal["end", "stop", "length", "cancelled"]
Run = tuple[int, tuple[str, ...]]
"""Steps in a row with the same requests in the batch: how many steps, and the requests in the order of its rows."""


class BusyError(UnavailableError):
    """The waiting queue is full."""


@dataclass(frozen=True)
class Job:
    """One answer to generate. `id` names it in its receipt; `deliver` is called on the engine's thread."""

    id: str
    prompt: tuple[int, ...]
    max_tokens: int
    sampler: Sampler
    deliver: Callable[[Event], None]
    stops: tuple[str, ...] = ()


@dataclass(frozen=True)
class Piece:
    """Tokens and the text they add; either may be empty."""

    ids: tuple[int, ...]
    text: str


@dataclass(frozen=True)
class JobResult:
    """A finished answer: its tokens, the hidden rows F [tokens, width] of each recorded layer, and its company.

    `prompt_rows` are F [P − 1, width], of the prompt's tokens but the last, where prompts are recorded too.
    """

    job: Job
    ids: tuple[int, ...]
    finish: Finish
    rows: Mapping[int, torch.Tensor]
    prompt_rows: Mapping[int, torch.Tensor]
    runs: tuple[Run, ...]

    @property
    def batch(self) -> BatchStatement:
        """The largest batch it was in, and the digest of the runs."""
        return BatchStatement(largest=max(len(ids) for _, ids in self.runs), composition=batch_composition(self.runs))


@dataclass(frozen=True)
class Failed:
    """No answer, and why."""

    reason: str


Event: TypeAlias = Piece | JobResult | Failed
