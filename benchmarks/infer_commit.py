"""Generation with receipts ÷ the same generation without, finalisation included.

A Llama-style model (d = 512, 8 blocks) answers a prompt of 32 tokens with 96, by transformers' `generate`, greedily and
one prompt at a time. Recording keeps references of hidden states at every pass; at the end it makes the fingerprints
and the root over the states where there is one, and encodes, signs and appends the receipt to the journal. All arms run
on one model, in an order drawn anew for every round.

`inside` is what recording adds by itself: the time of the recorded call outside `generate`, read directly in every
round, plus the hooks, whose price is taken from a module of nothing called with and without one. It is precise on any
machine, and blind to what recording does to the passes themselves. The figure, and the word on the goal, is the one of
median, ratio of sums and `inside` whose upper end is the largest.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import torch

from benchmarks.figure import Figure, Goal
from benchmarks.measure import (
    CLOCKS,
    Clock,
    Round,
    Spent,
    Statistic,
    interval,
    median_ratio,
    spin_after,
    stopwatch,
    take_rounds,
    time_arm,
    total,
    total_ratio,
)
from tallystick.core.digests import digest
from tallystick.engines.torch.generation.language_models import TorchLanguageModel
from tallystick.engines.torch.generation.layer_tap import LayerTap
from tallystick.formats.claims import ModelCard
from tallystick.formats.fingerprints import FingerprintSettings
from tallystick.formats.receipt import Sampler
from tallystick.formats.signing import SigningKey
from tallystick.recording.generation import AnswerRequest, record_generation
from tallystick.recording.receipts import ReceiptIssuer, RecordSettings

WIDTH, BLOCKS, VOCABULARY = 512, 8, 8192
PROMPT, ANSWER = 32, 96
FINAL_GOAL, ALL_GOAL = Goal(1.001), Goal(1.003)
PLANTED = 0.003
HOOK_CALLS = 20_000


@dataclass
class Recorded:
    """An arm that generates with receipts, and what it spent outside `generate`."""

    workload: Workload
    issuer: ReceiptIssuer
    sampler: Sampler | None = None
    outside: list[Spent] = field(default_factory=list)

    def __call__(self) -> None:
        """One answer and its receipt."""
        asked = [AnswerRequest(sampler=self.sampler)] if self.sampler else []
        elapsed = stopwatch()
        with record_generation(self.workload.language_model, self.issuer, asked):
            self.workload.generate()
        whole, generating = elapsed(), self.workload.last
        self.outside.append(Spent(whole.cpu - generating.cpu, whole.wall - generating.wall))


class Workload:
    """The model, a prompt, and a `generate` that says how long it took."""

    def __init__(self, width: int, blocks: int, tokens: int) -> None:
        from transformers import LlamaConfig, LlamaForCausalLM

        config = LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=width,
            intermediate_size=width * 11 // 4,
            num_hidden_layers=blocks,
            num_attention_heads=width // 64,
            max_position_embeddings=256,
            eos_token_id=None,
            bos_token_id=None,
        )
        torch.manual_seed(1)
        model = LlamaForCausalLM(config).eval()
        self.blocks, self.tokens = blocks, tokens
        self.language_model = TorchLanguageModel(model, SimpleNamespace(eos_token_id=None), _card(width, blocks))
        self.prompt = torch.randint(0, VOCABULARY, (1, PROMPT), generator=torch.Generator().manual_seed(2))
        self.last = Spent(0.0, 0.0)
        model.generate = self._timed(model.generate)

    def generate(self, **settings: Any) -> None:
        """One answer."""
        ones = torch.ones_like(self.prompt)
        self.language_model.model.generate(
            self.prompt, attention_mask=ones, max_new_tokens=self.tokens, pad_token_id=0, **settings
        )

    def arm(self, folder: Path, settings: RecordSettings, sampler: Sampler | None = None) -> Recorded:
        """An arm with a journal of its own."""
        journal = folder / f"{len(list(folder.iterdir()))}.jsonl"
        return Recorded(self, ReceiptIssuer(self.language_model, SigningKey(bytes(32)), settings, journal), sampler)

    def _timed(self, generate: Any) -> Any:
        @wraps(generate)
        def timed(*given: Any, **named: Any) -> Any:
            elapsed = stopwatch()
            output = generate(*given, **named)
            self.last = elapsed()
            return output

        return timed


def figures(quick: bool) -> Iterator[Figure]:
    torch.set_num_threads(1)
    width, blocks, tokens, count = (128, 2, 16, 6) if quick else (WIDTH, BLOCKS, ANSWER, 20)
    workload, rng = Workload(width, blocks, tokens), random.Random(11)
    every, final = tuple(range(blocks + 1)), (blocks,)
    hook = _hook_price()
    with TemporaryDirectory() as folder:
        kinds = {
            "final layer": (final, (), FINAL_GOAL),
            "all layers": (every, (), ALL_GOAL),
            "final layer, states committed": (final, final, FINAL_GOAL),
            "all layers, states committed": (every, every, ALL_GOAL),
        }
        arms = {
            name: workload.arm(Path(folder), RecordSettings((FingerprintSettings(layers=layers),), committed))
            for name, (layers, committed, _) in kinds.items()
        }
        planted = PLANTED * median(time_arm(workload.generate).cpu for _ in range(5))
        bare = {"bare": workload.generate, "bare again": workload.generate}
        rounds = take_rounds({**bare, "planted": lambda: spin_after(workload.generate, planted), **arms}, count, rng)
        shared = _shared(workload, rounds, hook, rng)
        for name, (layers, _, goal) in kinds.items():
            hooks = Spent(hook.cpu * tokens * len(layers), hook.wall * tokens * len(layers))
            yield _figure(name, goal, rounds, [_plus(each, hooks) for each in arms[name].outside[-count:]], shared, rng)
        yield _sampler(workload, Path(folder), count, rng)


def _figure(
    name: str,
    goal: Goal,
    rounds: Sequence[Round],
    inside: Sequence[Spent],
    shared: dict[str, Any],
    rng: random.Random,
) -> Figure:
    estimates = {
        f"{kind} {clock}": interval(rounds, statistic(name, "bare", clock), rng)
        for clock in CLOCKS
        for kind, statistic in (("median", median_ratio), ("total", total_ratio))
    }
    timed: list[Round] = [{**spent, "inside": added} for spent, added in zip(rounds, inside, strict=True)]
    estimates |= {f"inside {clock}": interval(timed, _inside(clock), rng) for clock in CLOCKS}
    kind = max((kind for kind in estimates if kind.endswith("cpu")), key=lambda kind: estimates[kind].high)
    return Figure(
        f"infer_commit: {name}",
        f"an answer with receipt ({name}) ÷ the same answer without",
        estimates[kind],
        len(rounds),
        f"CPU ({kind.split()[0]})",
        goal=goal,
        is_void=1.0 not in shared["bare ÷ bare"] or 1 + PLANTED not in shared["planted"],
        details={**estimates, "inside_outcome": goal.judge(estimates["inside cpu"]), **shared},
    )


def _sampler(workload: Workload, folder: Path, count: int, rng: random.Random) -> Figure:
    """The canonical sampler in the place of transformers' own, which draws from another generator."""
    drawn = Sampler(temperature=0.8, top_k=50, top_p=0.95, seed=1)
    arms = {
        "own": lambda: workload.generate(do_sample=True, temperature=0.8, top_k=50, top_p=0.95),
        "canonical": workload.arm(folder, RecordSettings(), drawn),
    }
    rounds = take_rounds(arms, count, rng)
    estimates = {clock: interval(rounds, median_ratio("canonical", "own", clock), rng) for clock in CLOCKS}
    what = "an answer by the canonical sampler, signed, ÷ one by transformers' own (temperature, top-k, top-p)"
    return Figure("infer_commit: sampler", what, estimates["cpu"], count, "CPU (median)", details=estimates)


def _inside(clock: Clock) -> Statistic:
    return lambda rounds: 1.0 + total(rounds, "inside", clock) / total(rounds, "bare", clock)


def _plus(one: Spent, other: Spent) -> Spent:
    return Spent(one.cpu + other.cpu, one.wall + other.wall)


def _shared(workload: Workload, rounds: Sequence[Round], hook: Spent, rng: random.Random) -> dict[str, Any]:
    """The controls, and what the workload is."""
    return {
        "bare ÷ bare": interval(rounds, median_ratio("bare again", "bare", "cpu"), rng),
        "planted": interval(rounds, median_ratio("planted", "bare", "cpu"), rng),
        "unit_ms": 1e3 * median(spent["bare"].cpu for spent in rounds),
        "hook_us": 1e6 * hook.cpu,
        "parameters": sum(each.numel() for each in workload.language_model.model.parameters()),
        "tokens": workload.tokens,
        "threads": torch.get_num_threads(),
    }


def _hook_price() -> Spent:
    """What one call of a tap's hook costs."""

    class Nothing(torch.nn.Module):
        def forward(self, states: torch.Tensor) -> torch.Tensor:
            return states

    class Backbone(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList([Nothing()])
            self.norm = Nothing()
            self.config = type("Config", (), {"num_hidden_layers": 1})

    backbone, states = Backbone(), torch.zeros(1, 1, 8)

    def call() -> None:
        for _ in range(HOOK_CALLS):
            backbone.norm(states)

    differences = []
    for _ in range(7):
        without = time_arm(call)
        with LayerTap(backbone, (1,)):
            seen = time_arm(call)
        differences.append(Spent(seen.cpu - without.cpu, seen.wall - without.wall))
    cpu, wall = (median(getattr(each, clock) for each in differences) / HOOK_CALLS for clock in CLOCKS)
    return Spent(max(cpu, 0.0), max(wall, 0.0))


def _card(width: int, blocks: int) -> ModelCard:
    nothing = digest("blob", b"")
    fields = {"architecture": "llama", "vocabulary": VOCABULARY, "layers": blocks, "width": width}
    return ModelCard(config=nothing, weights=digest("state", b""), tokenizer=nothing, **fields)  # type: ignore[arg-type]
