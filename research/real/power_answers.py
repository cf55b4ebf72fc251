#!/usr/bin/env python3
"""Answers of one way of serving on one numerical stack, kept for `research.real.power`.

Usage: python -m research.real.power_answers MODEL OUT WAY [--count N] [--rows B] [--attention A] [--seed S] [--stack S]
       python -m research.real.power_answers MODEL OUT WAY --opened [--count N] …
       python -m research.real.power_answers MODEL OUT WAY --texts FOLDER [--each N] [--attention A] [--stack S]

WAY is `honest` or a cheat of `CHEATS`. With --texts, the rows of such a provider are computed for answers that are kept
already, N of each way, whoever gave them: what it would have claimed for the same tokens. With --opened, the rows of
all blocks are kept, of prompt and answer, as a provider commits to them. The stack is
that of this process, so its environment chooses vector code and kernels: ATEN_CPU_CAPABILITY=avx2,
ONEDNN_MAX_CPU_ISA=AVX2, or --no-onednn. Half of the questions have a system prompt. Answers have 128 tokens at most.
"""

from __future__ import annotations

import argparse
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from research.real.cheats import tuned
from research.real.prompts import QUESTIONS
from research.real.serving import Answered, Provider, generate, read_answer, save
from tallystick.engines.torch.generation.language_models import TorchLanguageModel, load_language_model
from tallystick.formats.fingerprints import PUBLIC_SEED
from tallystick.formats.receipt import Sampler
from tallystick.tally.attacks.provers import integer_weights
from tallystick.tally.calibration.answers import SETTINGS, Question
from tallystick.verdicts.fingerprints import logit_rows
from tests.support.attacks.cheaper_models import coarse_head, grouped_integer_weights, other_theta

TOKENS: Final = 128
SYSTEMS: Final = (
    ("You are a helpful assistant. Answer politely and with examples.", "politely", "briefly"),
    ("You are a careful teacher who explains things to children.", "children", "students"),
    ("Answer in plain English. Never mention brand names.", "Never", "Always"),
    ("You are the assistant of a travel agency. Be friendly.", "travel", "news"),
)
"""What customers ask, and the word that one provider exchanges."""
WATERMARK: Final = 0.5
GREEN: Final = 0.5


@dataclass(frozen=True)
class Cheat:
    """Another model, another prompt, or other logits than those promised; `hides` computes the rows honestly."""

    model: Callable[[TorchLanguageModel], Any] | None = None
    is_other_word: bool = False
    is_marked: bool = False
    hides: bool = False


CHEATS: Final[Mapping[str, Cheat]] = {
    "honest": Cheat(),
    "int8 weights by row": Cheat(partial(integer_weights, bits=8)),
    "int8 weights in groups of 64": Cheat(partial(grouped_integer_weights, bits=8, group=64)),
    "int8 output matrix by row": Cheat(partial(coarse_head, bits=8)),
    "rotary base x1.2": Cheat(partial(other_theta, factor=1.2)),
    "tuned for 5 steps at 1e-5": Cheat(partial(tuned, rate=1e-5, steps=5)),
    "one word of the system prompt": Cheat(is_other_word=True),
    "watermark of 0.5": Cheat(is_marked=True),
    "int8 tokens under honest fingerprints": Cheat(partial(integer_weights, bits=8), hides=True),
}


class MarkingProvider(Provider):
    """Adds `WATERMARK` to the logits of half of the vocabulary, which the token before chooses."""

    def _choose(self, slots: Any, logits: torch.Tensor) -> list[int]:
        marked = logits.clone()
        for row, slot in enumerate(slots):
            green = np.random.default_rng(slot.history[-1]).random(logits.shape[-1]) < GREEN
            marked[row, torch.from_numpy(green)] += WATERMARK
        return super()._choose(slots, marked)


def main() -> None:
    """Answer and keep."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("way", choices=[*CHEATS])
    parser.add_argument("--count", type=int, default=32)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--attention", default="sdpa", choices=("sdpa", "eager"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--stack", default="")
    parser.add_argument("--texts", type=Path)
    parser.add_argument("--each", type=int, default=24)
    parser.add_argument("--opened", action="store_true")
    parser.add_argument("--no-onednn", action="store_true")
    parser.add_argument("--dtype", default="BF16", choices=("F32", "BF16", "F16"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.backends.mkldnn.set_flags(not options.no_onednn)  # type: ignore[no-untyped-call]
    promised = load_language_model(options.model, options.dtype, options.attention)
    cheat, final = CHEATS[options.way], promised.card.layers
    model = promised if cheat.model is None else replace(promised, model=cheat.model(promised))
    if options.texts is not None:
        stack = ", ".join(filter(None, ("one pass", options.attention, options.stack)))
        again(model, options.texts, options.out, options.each, options.way, stack)
        return
    asked, served = asked_and_served(promised, options.count, options.seed, cheat.is_other_word)
    engine = MarkingProvider if cheat.is_marked else Provider
    stack = f"batches of {options.rows}, {options.attention}" + (f", {options.stack}" if options.stack else "")
    for first in range(0, options.count, options.rows):
        part = slice(first, first + options.rows)
        layers = range(final) if options.opened else (final // 3, final, final + 1)
        provider = engine(model, rows=options.rows, layers=layers, keeps_prompts=options.opened)
        for number, (question, result) in enumerate(generate(provider, asked[part], served[part]), first):
            rows = rows_of(promised, question, result.ids) if cheat.hides else result.rows
            if options.opened:
                rows = {layer: torch.cat([each, rows[layer]]) for layer, each in result.prompt_rows.items()}
            name = f"{options.way}-{options.stack}-{options.rows}-{options.seed}-{number:03}".replace(" ", "_")
            save(options.out, name, Answered(question, options.way, stack, result.ids, rows))


def again(model: TorchLanguageModel, folder: Path, out: Path, each: int, way: str, stack: str) -> None:
    """Rows of this model on this stack for the first answers of every way in a folder."""
    count: Counter[str] = Counter()
    for name, found in named_answers(folder):
        count[found.way] += 1
        path = f"{name}--one_pass-{way}-{stack}".replace(" ", "_").replace(",", "")
        if count[found.way] <= each and not (out / f"{path}.json").is_file():
            save(out, path, replace(found, way=way, stack=stack, rows=rows_of(model, found.asked, found.answer)))


def asked_and_served(
    model: TorchLanguageModel, count: int, seed: int, is_other_word: bool
) -> tuple[list[Question], list[Question]]:
    """What customers ask, and what the provider answers: the same, or with one word of the system prompt exchanged."""
    rng, asked, served = random.Random(seed), [], []
    for number in range(count):
        user = {"role": "user", "content": rng.choice(QUESTIONS)}
        text, word, other = rng.choice(SYSTEMS)
        has_system = is_other_word or number % 2 == 0
        sampler = Sampler(**rng.choice(SETTINGS), seed=rng.randrange(2**32))  # type: ignore[arg-type]
        prompts = [
            tuple(model.encode_chat([{"role": "system", "content": each}, user] if has_system else [user]))
            for each in (text, text.replace(word, other) if is_other_word else text)
        ]
        asked.append(Question(prompts[0], sampler, TOKENS))
        served.append(Question(prompts[1], sampler, TOKENS))
    return asked, served


def rows_of(model: TorchLanguageModel, asked: Question, answer: tuple[int, ...]) -> dict[int, torch.Tensor]:
    """The rows of the promised model for an answer that is there already."""
    final, first = model.card.layers, len(asked.prompt) - 1
    passed = model.prefill([*asked.prompt, *answer[:-1]], first, (final // 3, final))
    rows = {layer: torch.from_numpy(each).to(torch.bfloat16) for layer, each in passed.hidden.items()}
    return rows | {final + 1: torch.from_numpy(logit_rows(passed.logits, PUBLIC_SEED))}


def named_answers(folder: Path) -> Iterator[tuple[str, Answered]]:
    """All answers in a folder with their names, in order."""
    for path in sorted(folder.glob("*.json")):
        yield path.stem, read_answer(path)


if __name__ == "__main__":
    main()
