"""Calibrates a model for receipts: honest answers of several stacks, each judged by one pass."""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tallystick.audits.answers.limits import FingerprintCalibration, MeasuredModels
from tallystick.core.errors import UnavailableError
from tallystick.engines.torch.generation.language_models import TorchLanguageModel, load_language_model
from tallystick.formats.claims import Dtype
from tallystick.formats.fingerprints import PUBLIC_SEED
from tallystick.formats.receipt import Sampler
from tallystick.recording.serving.batching import BatchingEngine
from tallystick.recording.serving.jobs import Event, Job, JobResult, Piece, Slot
from tallystick.tally.calibration.answer_limits import (
    Class,
    SeenRuns,
    SeenTokens,
    add_up,
    at_depths,
    compare_answer,
    observe,
    row_limits,
    token_limits,
)
from tallystick.tally.calibration.stacks import ANSWER_STACKS, Tell, machine
from tallystick.verdicts.fingerprints import logit_rows

if TYPE_CHECKING:
    import torch


# Answers of the server's own engine, on the caller's thread, with what calibration compares of every token.

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
    """The question of one customer: prompt, sampler, and the most tokens."""

    prompt: tuple[int, ...]
    sampler: Sampler
    max_tokens: int


@dataclass(frozen=True)
class Answered:
    """One answer: its tokens, the rows by layer, and the largest logits F32 [tokens, n] with their entries."""

    question: Question
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


def answers_to(engine: KeepingEngine, questions: Sequence[Question]) -> Iterator[Answered]:
    """The answers, one after the other as they end; raises `UnavailableError` where one fails."""
    import torch

    events: list[Event] = []
    jobs = [
        Job(str(n), question.prompt, question.max_tokens, question.sampler, events.append)
        for n, question in enumerate(questions)
    ]
    engine.answer(jobs)
    for event in events:
        if isinstance(event, JobResult):
            logits, entries = (torch.stack(kept) for kept in zip(*engine.kept.pop(event.job.id), strict=True))
            yield Answered(questions[int(event.job.id)], event.ids, event.rows, logits, entries)
        elif not isinstance(event, Piece):
            raise UnavailableError(f"an answer failed: {event.reason}")


def _encoded(model: TorchLanguageModel, text: str) -> tuple[int, ...]:
    """A prompt in the chat template, or as plain text for a model without one."""
    if model.tokenizer.chat_template is None:
        return tuple(model.encode_text(text))
    return tuple(model.encode_chat([{"role": "user", "content": text}]))


# Calibrates a model for receipts: honest answers of several stacks, each judged by one pass, and the limits.
#
# Honest stacks differ in batch size, attention and threads. Every answer is compared with a pass with fused attention,
# and every fourth also with a pass without it.

AGAIN: Final = 4
"""Every fourth answer is also compared with a pass without fused attention."""


def calibrate_answers(
    directory: Path, dtype: Dtype, answers: int, longest: int, tell: Tell = lambda _: None
) -> FingerprintCalibration:
    """The limits of a model in a directory, for models of its dtype that are no deeper and no wider.

    They follow from `answers` answers of at most `longest` tokens.

    Raises as `load_language_model`, and `UnavailableError` where an answer fails.
    """
    import torch

    verifiers = {attention: load_language_model(directory, dtype, attention) for attention in ("sdpa", "eager")}
    card = verifiers["sdpa"].card
    tokens: list[SeenTokens] = []
    distances: list[dict[Class, SeenRuns]] = []
    for number, answered in enumerate(_answered(verifiers, answers, longest, tell)):
        for attention in ("sdpa", "eager") if number % AGAIN == 0 else ("sdpa",):
            seen, apart = _compared(verifiers[attention], answered)
            tokens.append(seen)
            distances.append(apart)
    models = MeasuredModels(
        dtype=dtype, layers=card.layers, width=card.width, models=(directory.resolve().name,), answers=answers
    )
    return FingerprintCalibration(
        machine=machine(),
        software=f"torch {torch.__version__}",
        stacks=tuple(stack.name for _, stack in ANSWER_STACKS),
        rows=row_limits(at_depths(add_up(distances), card.layers), models),
        tokens=(token_limits(tokens, models),),
    )


def _answered(verifiers: Any, answers: int, longest: int, tell: Tell) -> Iterator[Answered]:
    """The answers of all stacks, the same number each; the threads are as before afterwards."""
    import torch

    threads = torch.get_num_threads()
    prompts = resources.files(__package__).joinpath("prompts.txt").read_text("utf-8").splitlines()
    for number, (rows, stack) in enumerate(ANSWER_STACKS):
        model: TorchLanguageModel = verifiers[stack.attention]
        share = answers * number // len(ANSWER_STACKS)
        count = answers * (number + 1) // len(ANSWER_STACKS) - share
        tell(f"{count} answers in {stack.name}")
        engine = KeepingEngine(model, rows, range(model.card.layers + 2))
        try:
            torch.set_num_threads(stack.threads)
            answered = list(answers_to(engine, questions(model, prompts, count, longest, number)))
        finally:
            torch.set_num_threads(threads)
        tell(f"{sum(len(answer.answer) for answer in answered)} tokens, judged by one pass")
        yield from answered


def _compared(model: TorchLanguageModel, answered: Answered) -> tuple[SeenTokens, dict[Class, SeenRuns]]:
    question, answer, final = answered.question, answered.answer, model.card.layers
    hidden = [layer for layer in answered.rows if layer <= final]
    passed = model.prefill([*question.prompt, *answer[:-1]], len(question.prompt) - 1, hidden)
    seen = observe(
        passed.logits, question.prompt, answer, question.sampler, answered.logits.numpy(), answered.entries.numpy()
    )
    own = {**passed.hidden, final + 1: logit_rows(passed.logits, PUBLIC_SEED)}
    claimed = {layer: np.asarray(rows.float().numpy()) for layer, rows in answered.rows.items()}
    return seen, compare_answer(claimed, own, final)
