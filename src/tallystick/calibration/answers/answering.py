"""Answers of the server's own engine, on the caller's thread, with what calibration compares of every token."""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tallystick.errors import UnavailableError
from tallystick.frameworks.torch.generation.language_models import TorchLanguageModel
from tallystick.serving.batching import BatchingEngine
from tallystick.serving.jobs import Event, Job, JobResult, Piece
from tallystick.serving.slots import Slot
from tallystick.transcripts.sampler import Sampler

if TYPE_CHECKING:
    import torch

SETTINGS: Final[tuple[Mapping[str, float], ...]] = (
    {"temperature": 0.0},
    {"temperature": 0.7},
    {"temperature": 1.0},
    {"temperature": 1.0, "top_p": 0.9},
    {"temperature": 0.7, "top_p": 0.9},
)
LARGEST: Final = 64
"""The logits of a row that are kept: those of the tokens that a sampler chooses from."""
SHORTEST: Final = 8


@dataclass(frozen=True)
class Question:
    """What one customer asked: prompt, sampler, and the most tokens."""

    prompt: tuple[int, ...]
    sampler: Sampler
    max_tokens: int


@dataclass(frozen=True)
class Answered:
    """One answer: its tokens, the rows by layer, and the largest logits F32 [tokens, n] with their entries."""

    asked: Question
    answer: tuple[int, ...]
    rows: Mapping[int, torch.Tensor]
    logits: torch.Tensor
    entries: torch.Tensor


class KeepingEngine(BatchingEngine):
    """The server's engine, which also keeps the largest logits of every token."""

    def __init__(self, model: TorchLanguageModel, rows: int, layers: Collection[int] = ()) -> None:
        super().__init__(model, rows=rows, layers=layers)
        self.kept: dict[str, list[tuple[torch.Tensor, torch.Tensor]]] = {}

    def answer(self, jobs: Sequence[Job]) -> None:
        """Generate all answers in continuous batches."""
        import torch

        self._waiting.extend(Slot(job, self._language_model) for job in jobs)
        with torch.inference_mode(), self._tap:
            while self._active or self._waiting:
                self._turn()

    def _choose(self, slots: Sequence[Slot], logits: torch.Tensor) -> list[int]:
        import torch

        largest, entries = torch.topk(logits.float(), min(LARGEST, logits.shape[-1]))
        for slot, *kept in zip(slots, largest, entries, strict=True):
            self.kept.setdefault(slot.job.id, []).append((kept[0], kept[1]))
        return super()._choose(slots, logits)


def questions(
    model: TorchLanguageModel,
    prompts: Sequence[str],
    count: int,
    longest: int,
    seed: int,
    settings: Sequence[Mapping[str, float]] = SETTINGS,
) -> list[Question]:
    """What `count` customers ask: lengths are log-uniform up to `longest` tokens, seeds are their own."""
    rng = random.Random(seed)
    least, most = math.log(min(SHORTEST, longest)), math.log(longest)
    return [
        Question(
            _encoded(model, rng.choice(prompts)),
            Sampler(**rng.choice(settings), seed=rng.randrange(2**32)),  # type: ignore[arg-type]
            round(math.exp(rng.uniform(least, most))),
        )
        for _ in range(count)
    ]


def answers_to(engine: KeepingEngine, asked: Sequence[Question]) -> Iterator[Answered]:
    """The answers, one after the other as they end; raises `UnavailableError` where one fails."""
    import torch

    events: list[Event] = []
    jobs = [Job(str(n), each.prompt, each.max_tokens, each.sampler, events.append) for n, each in enumerate(asked)]
    engine.answer(jobs)
    for event in events:
        if isinstance(event, JobResult):
            logits, entries = (torch.stack(kept) for kept in zip(*engine.kept.pop(event.job.id), strict=True))
            yield Answered(asked[int(event.job.id)], event.ids, event.rows, logits, entries)
        elif not isinstance(event, Piece):
            raise UnavailableError(f"an answer failed: {event.reason}")


def _encoded(model: TorchLanguageModel, text: str) -> tuple[int, ...]:
    """A prompt in the chat template, or as plain text for a model without one."""
    if model.tokenizer.chat_template is None:
        return tuple(model.encode_text(text))
    return tuple(model.encode_chat([{"role": "user", "content": text}]))
