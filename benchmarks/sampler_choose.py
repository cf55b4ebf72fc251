"""The canonical draw ÷ the draw of PyTorch, for 16 rows of 49,152 tokens: what a server chooses in one pass.

The canonical draw is that of the servers (`TorchSampler`), the same bits on every machine. PyTorch's is a softmax and
`multinomial`, and with top-p a sort before them, as libraries write it; it depends on generator, device and version.
Logits are rounded to bfloat16, so that many are equal. Details: the draw row by row as specified (`choose_one`), and
the random words alone, of which the canonical draw has one for each token of the vocabulary.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch

from benchmarks.figure import Figure
from benchmarks.measure import interval, median_ratio, take_rounds
from tallystick.engines.torch.generation.sampler import TorchSampler
from tallystick.formats.receipt import Sampler
from tallystick.programs.random_words import position_words
from tallystick.verdicts.sampling.choice import choose_one

ROWS, VOCABULARY = 16, 49_152
SAMPLERS = {
    "T 1": Sampler(temperature=1.0),
    "T 0.7, top-p 0.9": Sampler(temperature=0.7, top_p=0.9),
    "T 1, top-k 50": Sampler(temperature=1.0, top_k=50),
}
NOTHING: Sequence[Sequence[int]] = [()] * ROWS


def figures(quick: bool) -> Iterator[Figure]:
    torch.set_num_threads(1)
    torch.manual_seed(21)
    logits, count, rng = (4 * torch.randn(ROWS, VOCABULARY)).bfloat16().float(), 3 if quick else 25, random.Random(22)
    for name, sampler in SAMPLERS.items():
        samplers = [sampler.model_copy(update={"seed": row}) for row in range(ROWS)]
        arms: dict[str, Any] = {
            "canonical": partial(TorchSampler(samplers).choose, logits, range(ROWS), NOTHING),
            "as specified": partial(_as_specified, logits.numpy(), samplers),
            "words": lambda: [position_words(row, 0, VOCABULARY) for row in range(ROWS)],
            "PyTorch": partial(_drawn, logits, sampler),
        }
        assert arms["canonical"]().tolist() == arms["as specified"]()
        rounds = take_rounds(arms, count, rng)
        details = {
            "canonical ÷ as specified": interval(rounds, median_ratio("canonical", "as specified", "cpu"), rng),
            "random words ÷ canonical": interval(rounds, median_ratio("words", "canonical", "cpu"), rng),
        }
        value = interval(rounds, median_ratio("canonical", "PyTorch", "cpu"), rng)
        what = f"canonical draw of {ROWS} rows, {name} ÷ softmax and draw of PyTorch, V {VOCABULARY}"
        yield Figure(f"sampler_choose: {name}", what, value, count, "CPU (median)", details=details)


def _as_specified(logits: Any, samplers: Sequence[Sampler]) -> list[int]:
    return [
        choose_one(row, sampler, place, ()) for place, (row, sampler) in enumerate(zip(logits, samplers, strict=True))
    ]


def _drawn(logits: torch.Tensor, sampler: Sampler) -> torch.Tensor:
    """A draw as libraries write it."""
    scaled = logits / sampler.temperature
    if sampler.top_k:
        scaled = scaled.masked_fill(scaled < scaled.topk(sampler.top_k).values[:, -1:], -torch.inf)
    if sampler.top_p < 1.0:
        ordered, places = scaled.sort(dim=-1)
        is_out = ordered.softmax(-1).cumsum(-1) <= 1 - sampler.top_p
        scaled = scaled.masked_fill(torch.zeros_like(is_out).scatter(1, places, is_out), -torch.inf)
    return torch.multinomial(scaled.softmax(-1), 1)
