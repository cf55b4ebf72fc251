"""Verifying an answer of 256 tokens ÷ one bare pass over the same tokens, and ÷ generating them.

Llama-style models (d = 512 with 8 blocks, d = 2048 with 4; 8,192 tokens, fp32, one thread) answer a prompt of 32 tokens
by the canonical sampler. The bare pass is teacher-forced: no hooks, logits of the 256 rows, nothing done with them.
Verifying starts from the signed receipt as JSON text and ends with a verdict: parsing, signature, statements, pass,
sampler, fingerprints. The heads of the random models are scaled so that logits spread as those of a trained one
(standard deviation 4.5): what the check of tokens costs depends on how many rivals a token has. It does not depend on
the model's width, so that its share falls as the model grows.

`inside` is what it took beside its own pass, read in every round by its own clocks; it is precise on any machine, and
blind to what the hooks do to the pass. The figure is the one of median, ratio of sums and `inside` whose upper end is
the largest.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median
from types import SimpleNamespace
from typing import Any

import torch

from benchmarks.figure import Figure, Goal
from benchmarks.measure import (
    CLOCKS,
    Round,
    interval,
    median_ratio,
    spin_after,
    take_rounds,
    time_arm,
    total_ratio,
)
from tallystick.audits.answers.policy import ReceiptPolicy
from tallystick.audits.answers.reading import read_response
from tallystick.audits.answers.report import ReceiptReport
from tallystick.audits.answers.verify import verify_receipt
from tallystick.core.digests import digest
from tallystick.engines.torch.generation.language_models import TorchLanguageModel
from tallystick.formats.claims import ModelCard
from tallystick.formats.fingerprints import FingerprintSettings
from tallystick.formats.receipt import Sampler
from tallystick.formats.signing import SigningKey
from tallystick.recording.generation import AnswerRequest, generate_plain
from tallystick.recording.receipts import ReceiptIssuer, RecordSettings

SMALL, LARGE, VOCABULARY = (512, 8), (2048, 4), 8192
PROMPT, ANSWER = 32, 256
PREFILL_GOAL, GENERATION_GOAL = Goal(1.02), Goal(1 / 11)
PLANTED = 0.02
SPREAD = 4.5
POLICY = ReceiptPolicy(demands=())
"""Each arm measures what is in its receipt, whatever a policy would demand."""
SAMPLER = Sampler(temperature=0.8, top_p=0.95, seed=3)


@dataclass
class Verifying:
    """An arm that verifies one receipt, and the share of its time that was not the pass."""

    model: TorchLanguageModel
    text: str
    beside: list[float] = field(default_factory=list)
    reports: list[ReceiptReport] = field(default_factory=list)

    def __call__(self) -> None:
        """From text to verdict."""
        response = read_response(json.loads(self.text))
        report = verify_receipt(response.receipt, self.model, POLICY, response=response)
        assert report.outcome == "accepted", report.verdict
        seconds = report.seconds
        self.beside.append(sum(seconds.values()) / seconds["prefill"])
        self.reports.append(report)


class Workload:
    """The model, an answer with its receipts, and the pass that any verifier has to make."""

    def __init__(self, width: int, blocks: int, tokens: int) -> None:
        from transformers import LlamaConfig, LlamaForCausalLM

        config = LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=width,
            intermediate_size=width * 11 // 4,
            num_hidden_layers=blocks,
            num_attention_heads=width // 64,
            max_position_embeddings=PROMPT + tokens,
            eos_token_id=None,
            bos_token_id=None,
        )
        torch.manual_seed(1)
        module, nothing = LlamaForCausalLM(config).eval(), digest("blob", b"")
        card = ModelCard(
            architecture="llama",
            config=nothing,
            weights=digest("state", b""),
            tokenizer=nothing,
            vocabulary=VOCABULARY,
            layers=blocks,
            width=width,
        )
        with torch.no_grad():
            module.lm_head.weight.mul_(SPREAD / (0.02 * width**0.5))
        self.model = TorchLanguageModel(module, SimpleNamespace(eos_token_id=None), card)
        generator = torch.Generator().manual_seed(2)
        self.prompt = torch.randint(0, VOCABULARY, (PROMPT,), generator=generator).tolist()
        self.tokens = tokens
        self.answer = self.generate(RecordSettings()).tokens

    def generate(self, settings: RecordSettings) -> Any:
        """The answer, and its receipt."""
        issuer = ReceiptIssuer(self.model, SigningKey(bytes(32)), settings)
        return generate_plain(self.model, [self.prompt], self.tokens, [AnswerRequest("r1", sampler=SAMPLER)], issuer)[0]

    def verifying(self, layers: tuple[int, ...]) -> Verifying:
        """The arm for a receipt with fingerprints of these layers."""
        fingerprints = (FingerprintSettings(layers=layers),) if layers else ()
        return Verifying(self.model, json.dumps(self.generate(RecordSettings(fingerprints)).issued.signed.to_json()))

    @torch.inference_mode()
    def prefill(self) -> None:
        """One bare pass over prompt and answer."""
        ids = torch.tensor([[*self.prompt, *self.answer[:-1]]])
        self.model.model(input_ids=ids, use_cache=False, logits_to_keep=self.tokens)


def figures(quick: bool) -> Iterator[Figure]:
    torch.set_num_threads(1)
    if quick:
        yield from _figures(128, 2, 64, 5)
        return
    yield from _figures(*SMALL, ANSWER, 40)
    yield from _figures(*LARGE, ANSWER, 6)


def _figures(width: int, blocks: int, tokens: int, count: int) -> Iterator[Figure]:
    workload, rng = Workload(width, blocks, tokens), random.Random(17)
    arms = {
        "tokens alone": workload.verifying(()),
        "final layer": workload.verifying((blocks,)),
        "all layers": workload.verifying(tuple(range(blocks + 1))),
    }
    planted = PLANTED * median(time_arm(workload.prefill).cpu for _ in range(5))
    controls = {"bare": workload.prefill, "bare again": workload.prefill}
    rounds = take_rounds({**controls, "planted": lambda: spin_after(workload.prefill, planted), **arms}, count, rng)
    shared = {
        "bare ÷ bare": interval(rounds, median_ratio("bare again", "bare", "cpu"), rng),
        "planted": interval(rounds, median_ratio("planted", "bare", "cpu"), rng),
        "prefill_ms": 1e3 * median(spent["bare"].cpu for spent in rounds),
        "parameters": sum(each.numel() for each in workload.model.model.parameters()),
        "tokens": tokens,
    }
    for name, arm in arms.items():
        yield _over_prefill(width, name, arm, rounds, shared, rng)
    yield _over_generation(width, workload, arms["final layer"], max(3, count // 5), rng)


def _over_prefill(
    width: int, name: str, arm: Verifying, rounds: Sequence[Round], shared: dict[str, Any], rng: random.Random
) -> Figure:
    estimates = {
        f"{kind} {clock}": interval(rounds, statistic(name, "bare", clock), rng)
        for clock in CLOCKS
        for kind, statistic in (("median", median_ratio), ("total", total_ratio))
    }
    inside = [{"share": each} for each in arm.beside[-len(rounds) :]]
    estimates["inside wall"] = interval(inside, _median_share, rng)  # type: ignore[arg-type]
    kind = max((kind for kind in estimates if kind.endswith("cpu")), key=lambda kind: estimates[kind].high)
    report = arm.reports[-1]
    checks = {f"{check}_wall_ms": 1e3 * median(each.seconds[check] for each in arm.reports) for check in report.seconds}
    details = {**estimates, "inside_outcome": PREFILL_GOAL.judge(estimates["inside wall"]), **checks, **shared}
    return Figure(
        f"verify_over_prefill: d {width}, {name}",
        f"verifying an answer ({name}) ÷ a bare pass over its tokens",
        estimates[kind],
        len(rounds),
        f"CPU ({kind.split()[0]})",
        goal=PREFILL_GOAL,
        is_void=1.0 not in shared["bare ÷ bare"] or 1 + PLANTED not in shared["planted"],
        details={**details, "evidence_bytes": sum(report.bytes.values())},
    )


def _over_generation(width: int, workload: Workload, arm: Verifying, count: int, rng: random.Random) -> Figure:
    arms = {"verify": arm, "generate": lambda: workload.generate(RecordSettings())}
    rounds = take_rounds(arms, count, rng)
    estimates = {clock: interval(rounds, median_ratio("verify", "generate", clock), rng) for clock in CLOCKS}
    what = "verifying an answer (final layer) ÷ generating it, a token at a time"
    return Figure(
        f"verify_over_prefill: d {width}, generation",
        what,
        estimates["cpu"],
        count,
        "CPU (median)",
        goal=GENERATION_GOAL,
        details=estimates,
    )


def _median_share(seen: Sequence[Any]) -> float:
    return float(median(each["share"] for each in seen))
