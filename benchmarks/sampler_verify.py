"""The check of sampled tokens ÷ the product of the LM head that made their logits, for 256 tokens.

Both arms get what a verifier has after its pass: final hidden states F32[256, d], head weights, claimed tokens. The
product is PyTorch's in float32 on one thread, the check is `verdicts.sampling.margin` on NumPy. The vocabulary has
32,768 tokens; logits are normal with a standard deviation of 3.5 to 6 drawn per row, whose entropy (a detail) is that
of text. The check reads every logit once, so that its share falls as 1/d: the goal is for d = 4096, the width of a
model of 7 billion weights. It needs no byte from the provider besides seed and tokens.

Who makes a receipt chooses its tokens. So the dearest ones are timed apart, those that no sampler chose: for every form
and filter, and for what can be asked of a sampler at its ends, over a vocabulary of 49,152 and with a prompt of 8,192
tokens. `judge_sampler` takes them all the slow way.

False rejects are counted apart: tokens chosen from logits that are off by half the tie band of float32 at most.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np
import torch

from benchmarks.figure import Figure, Goal
from benchmarks.measure import Interval, interval, median_ratio, take_rounds
from tallystick.audits.answers.limits import BANDS, SamplerRule
from tallystick.audits.answers.sampler import judge_sampler
from tallystick.formats.receipt import Sampler
from tallystick.verdicts.evidence import clopper_pearson
from tallystick.verdicts.sampling.choice import choose
from tallystick.verdicts.sampling.fast_path import USUAL_REACH
from tallystick.verdicts.sampling.margin import margins

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
DEAR_TOKENS, DEAR_VOCABULARY, DEAR_WIDTH, LONG = 16, 49_152, 4096, 8192
DEAR_SECONDS = Goal(0.02)
FORMS: tuple[Literal["gumbel", "cdf", "unknown"], ...] = ("gumbel", "cdf", "unknown")
FILTERS: dict[str, dict[str, float | int]] = {
    "no filter": {},
    "top-k 50": {"top_k": 50},
    "top-p 0.9": {"top_p": 0.9},
    "min-p 0.05": {"min_p": 0.05},
    "all filters, penalty 1.1": {"top_k": 50, "top_p": 0.9, "min_p": 0.05, "repetition_penalty": 1.1},
    "penalty 0.5": {"repetition_penalty": 0.5},
    "temperature 1e-6": {"temperature": 1e-6, "top_p": 0.9},
    "temperature 1000": {"temperature": 1000.0, "top_p": 0.9},
    "top-p 1 − 1e-16": {"top_p": 1 - 1e-16},
    "top-p 1e-300": {"top_p": 1e-300},
    "top-k V − 1, top-p 0.999": {"top_k": DEAR_VOCABULARY - 1, "top_p": 0.999},
}
NOTHING: Sequence[Sequence[int]] = [()] * TOKENS


def figures(quick: bool) -> Iterator[Figure]:
    torch.set_num_threads(1)
    generator = np.random.default_rng(13)
    logits = _logits(generator, TOKENS)
    for width in WIDTHS[:1] if quick else WIDTHS:
        yield from _costs(width, logits, 3 if quick else 25)
    yield from _dear(generator, 1 if quick else 5)
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


def _dear(generator: np.random.Generator, count: int) -> Iterator[Figure]:
    """The CPU seconds a token of answers that cost most, and of rows that are all alike or half of them out."""
    rng = random.Random(15)
    usual = (5 * generator.standard_normal((DEAR_TOKENS, DEAR_VOCABULARY))).astype(np.float32)
    is_out = generator.random(usual.shape) < 0.5
    kinds = {"usual": usual, "equal": np.zeros_like(usual), "half out": np.where(is_out, -np.inf, usual)}
    prompt = generator.integers(0, DEAR_VOCABULARY, LONG).tolist()
    answer = generator.integers(0, DEAR_VOCABULARY, DEAR_TOKENS).tolist()
    product = partial(torch.mm, torch.randn(DEAR_TOKENS, DEAR_WIDTH), torch.randn(DEAR_VOCABULARY, DEAR_WIDTH).T)
    for form in FORMS:
        arms: dict[str, Any] = {"head": product}
        for name, settings in FILTERS.items():
            sampler = Sampler(form=form, seed=3, **settings)  # type: ignore[arg-type]
            for kind, logits in kinds.items():
                arms[f"{name}, {kind}"] = partial(judge_sampler, logits, prompt, answer, sampler, SamplerRule())
        rounds = take_rounds(arms, count, rng)
        per_token = {name: _a_token(rounds, name) for name in arms}
        dearest = max((name for name in arms if name != "head"), key=per_token.__getitem__)
        value = interval(rounds, partial(_a_token, name=dearest), rng)
        details = {f"{name}, ms": 1000 * seconds for name, seconds in per_token.items()}
        details["dearest ÷ head"] = per_token[dearest] / per_token["head"]
        what = f"CPU seconds a token that no sampler chose, {form}, V {DEAR_VOCABULARY}, dearest: {dearest}"
        yield Figure(
            f"sampler_verify: dearest, {form}", what, value, count, "CPU (median)", "s", DEAR_SECONDS, details=details
        )


def _a_token(rounds: Sequence[Any], name: str) -> float:
    return float(np.median([taken[name].cpu for taken in rounds])) / DEAR_TOKENS


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
