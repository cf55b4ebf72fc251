"""Calibrates a model for receipts: honest answers of several stacks, each judged by one pass, and the limits.

Honest stacks differ in batch size, attention and threads. Every answer is compared with a pass with fused attention,
and every fourth also with a pass without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from tallystick.answers.distance_limits import FingerprintCalibration, MeasuredModels
from tallystick.calibration.answers.answering import Answered, KeepingEngine, answers_to, questions
from tallystick.calibration.answers.distances import Class, SeenRuns, add_up, at_depths, compare_answer, row_limits
from tallystick.calibration.answers.prompts import PROMPTS
from tallystick.calibration.answers.tokens import SeenTokens, observe, token_limits
from tallystick.calibration.training.calibrate import machine
from tallystick.frameworks.torch.generation.language_models import TorchLanguageModel, load_language_model
from tallystick.tolerances.fingerprints.logits import logit_rows
from tallystick.tolerances.fingerprints.settings import PUBLIC_SEED
from tallystick.transcripts.model_card import Dtype

Attention = Literal["eager", "sdpa"]
Tell = Callable[[str], None]
AGAIN: Final = 4
"""One answer of so many is also compared with a pass without fused attention."""


@dataclass(frozen=True)
class ServingStack:
    """How answers are computed: the most rows of a batch, the attention, the threads."""

    rows: int
    attention: Attention = "sdpa"
    threads: int = 1

    def __str__(self) -> str:
        return f"batches of {self.rows}, {self.attention}, {self.threads} thread{'s' if self.threads > 1 else ''}"


STACKS: Final = (
    ServingStack(8),
    ServingStack(16),
    ServingStack(8, "eager"),
    ServingStack(1),
    ServingStack(8, threads=2),
)


@dataclass(frozen=True)
class Effort:
    """How much is answered: answers in all, and the most tokens of one."""

    answers: int = 100
    tokens: int = 256


def calibrate_answers(
    directory: Path, dtype: Dtype = "F32", effort: Effort = Effort(), tell: Tell = lambda _: None
) -> FingerprintCalibration:
    """The limits of a model in a directory, for models of its dtype that are no deeper and no wider.

    Raises as `load_language_model`, and `UnavailableError` where an answer fails.
    """
    import torch

    verifiers = {each: load_language_model(directory, dtype, each) for each in ("sdpa", "eager")}
    card = verifiers["sdpa"].card
    tokens: list[SeenTokens] = []
    distances: list[dict[Class, SeenRuns]] = []
    for number, found in enumerate(_answered(verifiers, effort, tell)):
        for attention in ("sdpa", "eager") if number % AGAIN == 0 else ("sdpa",):
            seen, apart = _compared(verifiers[attention], found)
            tokens.append(seen)
            distances.append(apart)
    models = MeasuredModels(
        dtype=dtype, layers=card.layers, width=card.width, models=(directory.resolve().name,), answers=effort.answers
    )
    return FingerprintCalibration(
        machine=machine(),
        software=f"torch {torch.__version__}",
        stacks=tuple(str(each) for each in STACKS),
        rows=row_limits(at_depths(add_up(distances), card.layers), models),
        tokens=(token_limits(tokens, models),),
    )


def _answered(verifiers: Any, effort: Effort, tell: Tell) -> Iterator[Answered]:
    """The answers of all stacks, the same number each; the threads are as before afterwards."""
    import torch

    threads = torch.get_num_threads()
    for number, stack in enumerate(STACKS):
        model: TorchLanguageModel = verifiers[stack.attention]
        count = effort.answers * (number + 1) // len(STACKS) - effort.answers * number // len(STACKS)
        tell(f"{count} answers in {stack}")
        engine = KeepingEngine(model, stack.rows, range(model.card.layers + 2))
        try:
            torch.set_num_threads(stack.threads)
            found = list(answers_to(engine, questions(model, PROMPTS, count, effort.tokens, number)))
        finally:
            torch.set_num_threads(threads)
        tell(f"{sum(len(each.answer) for each in found)} tokens, judged by one pass")
        yield from found


def _compared(model: TorchLanguageModel, found: Answered) -> tuple[SeenTokens, dict[Class, SeenRuns]]:
    asked, answer, final = found.asked, found.answer, model.card.layers
    hidden = [layer for layer in found.rows if layer <= final]
    passed = model.prefill([*asked.prompt, *answer[:-1]], len(asked.prompt) - 1, hidden)
    seen = observe(passed.logits, asked.prompt, answer, asked.sampler, found.logits.numpy(), found.entries.numpy())
    own = {**passed.hidden, final + 1: logit_rows(passed.logits, PUBLIC_SEED)}
    claimed = {layer: np.asarray(rows.float().numpy()) for layer, rows in found.rows.items()}
    return seen, compare_answer(claimed, own, final)
