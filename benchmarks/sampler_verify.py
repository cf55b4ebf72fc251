"""The check of sampled tokens ÷ the product of the LM head that made their logits, for 256 tokens.

Both arms get what a verifier has after its pass: final hidden states F32[256, d], head weights, claimed tokens. The
product is PyTorch's in float32 on one thread, the check is `sampling.margins` on NumPy. The vocabulary has 32,768
tokens; logits are normal with a standard deviation of 3.5 to 6 drawn per row, whose entropy (a detail) is that of text.
The check reads every logit once, so that its share falls as 1/d: the goal is for d = 4096, the width of a model of 7
billion weights. It needs no byte from the provider besides seed and tokens.

False rejects are counted apart: tokens chosen from logits that are off by half the tie band of float32 at most.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.figure import Figure, Goal
from benchmarks.measure import Interval, interval, median_ratio, take_rounds
from tallystick.audits.receipts.sampler import BANDS
from tallystick.sampling.choose import choose
from tallystick.sampling.glance import USUAL_REACH
from tallystick.sampling.margin import margins
from tallystick.tolerances import clopper_pearson
from tallystick.transcripts.sampler import Sampler

TOKENS, VOCABULARY = 256, 32_768
WIDTHS = (512, 4096)
GOAL = Goal(0.01)
FALSE_REJECTS = Goal(1e-6)
SAMPLERS = {
    "greedy": Sampler(temperature=0.0),
    "T 0.7": Sampler(temperature=0.7, seed=3),
    "T 0.7, top-p 0.9": Sampler(temperature=0.7, top_p=0.9, seed=3),
    "T 0.7, top-k 50, top-p 0.9": Sampler(temperature=0.7, top_k=50, top_p=0.9, seed=3),
    "T 1": Sampler(temperature=1.0, seed=3),
}
NOTHING: Sequence[Sequence[int]] = [()] * TOKENS


def figures(quick: bool) -> Iterator[Figure]:
    torch.set_num_threads(1)
    generator = np.random.default_rng(13)
    logits = _logits(generator, TOKENS)
    for width in WIDTHS[:1] if quick else WIDTHS:
        yield from _costs(width, logits, 3 if quick else 25)
    yield _false_rejects(generator, 1_000 if quick else 100_000)


def _logits(generator: np.random.Generator, rows: int) -> Any:
    spreads = generator.uniform(3.5, 6.0, (rows, 1)).astype(np.float32)
    return spreads * generator.standard_normal((rows, VOCABULARY), np.float32)


def _costs(width: int, logits: Any, count: int) -> Iterator[Figure]:
    rng = random.Random(14)
    hidden, head = torch.randn(TOKENS, width), torch.randn(VOCABULARY, width)
    product = partial(torch.mm, hidden, head.T)
    arms: dict[str, Any] = {"head": product, "again": product, "one look": partial(logits.max, axis=1)}
    for name, sampler in SAMPLERS.items():
        tokens = choose(logits, sampler, range(TOKENS), NOTHING).tolist()
        arms[name] = partial(margins, logits, tokens, sampler, range(TOKENS), NOTHING, USUAL_REACH)
        assert not arms[name]().any(), "honest tokens have margin 0"
    rounds = take_rounds(arms, count, rng)
    details = {
        "head ÷ head": interval(rounds, median_ratio("again", "head", "cpu"), rng),
        "largest logit of each row ÷ head": interval(rounds, median_ratio("one look", "head", "cpu"), rng),
        "mean entropy, nats": _entropy(logits),
    }
    for name in SAMPLERS:
        value = interval(rounds, median_ratio(name, "head", "cpu"), rng)
        what = f"check of {TOKENS} tokens, {name} ÷ LM head, d = {width}"
        goal = GOAL if width == WIDTHS[-1] else None
        yield Figure(
            f"sampler_verify: d {width}, {name}", what, value, count, "CPU (median)", goal=goal, details=details
        )


def _entropy(logits: Any) -> float:
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    return float(-(p * np.log(np.maximum(p, 1e-30))).sum(axis=1).mean())


def _false_rejects(generator: np.random.Generator, tokens: int) -> Figure:
    """Honest tokens beyond the band, of logits of a vocabulary of 1,024 that drift by half of it."""
    band, rejected, moved, sampler = BANDS["F32"], 0, 0, Sampler(temperature=0.7, top_p=0.9, seed=5)
    for start in range(0, tokens, 1000):
        logits = (4 * generator.standard_normal((1000, 1024))).astype(np.float32)
        served = (logits + generator.uniform(-band / 2, band / 2, logits.shape)).astype(np.float32)
        places, nothing = range(start, start + 1000), [()] * 1000
        found = margins(logits, choose(served, sampler, places, nothing).tolist(), sampler, places, nothing)
        rejected, moved = rejected + int((found > band).sum()), moved + int((found > 0).sum())
    low, high = clopper_pearson(rejected, tokens)
    what = "honest tokens beyond the tie band, drift within it"
    details = {"tokens": tokens, "tokens that drift changed": moved}
    value = Interval(rejected / tokens, low, high)
    return Figure("sampler_verify: false rejects", what, value, tokens, "none", "", FALSE_REJECTS, details=details)
