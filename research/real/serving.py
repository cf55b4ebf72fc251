"""Answers of our own server's engine, honest or not, kept on disk so that they can be judged again.

An answer is NAME.json (what was asked and answered) and NAME.safetensors (the rows by layer, in the model's dtype).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import load_file, save_file

from research.real.prompts import QUESTIONS
from tallystick.core.errors import UnavailableError
from tallystick.engines.torch.generation.language_models import TorchLanguageModel
from tallystick.formats.receipt import Sampler
from tallystick.recording.serving.batching import BatchingEngine
from tallystick.recording.serving.jobs import Event, Job, JobResult, Piece, Slot
from tallystick.tally.calibration.answers import SETTINGS, Question, questions as drawn_questions

TOKENS: Final = 512
ENTRIES: Final = 1 << 20


@dataclass(frozen=True)
class Stack:
    """How a provider computes: the largest batch, the attention, and the threads."""

    rows: int
    attention: str = "sdpa"
    threads: int = 1

    def __str__(self) -> str:
        threads = "" if self.threads == 1 else f", {self.threads} threads"
        return f"batches of {self.rows}, {self.attention}{threads}" if self.rows > 1 else f"alone, {self.attention}"


@dataclass(frozen=True)
class Answered:
    """One answer: what was asked, how the provider says it computed, the tokens, and the rows by layer."""

    asked: Question
    way: str
    stack: str
    answer: tuple[int, ...]
    rows: Mapping[int, torch.Tensor]


class Provider(BatchingEngine):
    """The server's engine on the caller's thread; `change` may replace the tokens that a step chose."""

    change: Callable[[Slot, torch.Tensor, int], int] | None = None
    after_step: Callable[[Any], None] | None = None

    def answer(self, jobs: Sequence[Job]) -> None:
        """Generate all answers in continuous batches."""
        self._waiting.extend(Slot(job, self._language_model) for job in jobs)
        with torch.inference_mode(), self._tap:
            while self._active or self._waiting:
                self._turn()

    def _choose(self, slots: Sequence[Slot], logits: torch.Tensor) -> list[int]:
        tokens = super()._choose(slots, logits)
        if self.change is None:
            return tokens
        return [self.change(*each) for each in zip(slots, logits, tokens, strict=True)]

    def _decode(self) -> Any:
        found = super()._decode()
        if self.after_step is not None:
            self.after_step(self._cache.cache)
        return found


def questions(
    model: TorchLanguageModel, count: int, seed: int, settings: Sequence[Mapping[str, float]] = SETTINGS
) -> list[Question]:
    """What customers ask of the campaign, in no words that a calibration uses."""
    return drawn_questions(model, QUESTIONS, count, TOKENS, seed, settings)


def generate(
    provider: Provider, asked: Sequence[Question], served: Sequence[Question]
) -> Iterator[tuple[Question, JobResult]]:
    """Answers to what is `served`, paired with what was asked; raises `UnavailableError` where one fails."""
    results: list[Event] = []
    jobs = [
        Job(str(number), each.prompt, each.max_tokens, each.sampler, results.append)
        for number, each in enumerate(served)
    ]
    provider.answer(jobs)
    for event in results:
        if isinstance(event, JobResult):
            yield asked[int(event.job.id)], event
        elif not isinstance(event, Piece):
            raise UnavailableError(f"an answer failed: {event}")


def save(folder: Path, name: str, found: Answered) -> None:
    """Write one answer."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file({str(layer): rows.contiguous() for layer, rows in found.rows.items()}, folder / f"{name}.safetensors")
    asked = asdict(found.asked) | {"sampler": found.asked.sampler.model_dump()}
    text = json.dumps({"asked": asked, "way": found.way, "stack": found.stack, "answer": found.answer})
    (folder / f"{name}.json").write_text(text)


def read_answers(folder: Path) -> Iterator[Answered]:
    """All answers in a folder, by name."""
    return map(read_answer, sorted(folder.glob("*.json")))


def read_answer(path: Path) -> Answered:
    """One answer."""
    held = json.loads(path.read_text())
    asked = held["asked"]
    rows = {int(layer): each for layer, each in load_file(path.with_suffix(".safetensors")).items()}
    return Answered(
        Question(tuple(asked["prompt"]), Sampler(**asked["sampler"]), asked["max_tokens"]),
        held["way"],
        held["stack"],
        tuple(held["answer"]),
        rows,
    )
