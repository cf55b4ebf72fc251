"""What receipts cost on a pretrained model: SmolLM2-135M-Instruct in BF16, 30 blocks, 49,152 tokens, one thread.

The model answers a prompt of 32 tokens with 96, alone, by transformers' `generate`. Every figure is a ratio of two
things in one process, in rounds. Recording is what it takes beside `generate`: the time of the recorded call outside,
plus the hooks, whose price is that of what they do, called by itself. Verifying starts from the signed receipt as JSON
text and ends with a verdict; it is compared with one bare pass over the same tokens, and with generating them. Its
share of the pass is all its time ÷ the time of its own pass, in the same call. A greedy answer is the cheapest one to
check; a sampled one (temperature 0.7, top-p 0.9) is also compared with six other temperatures under its seed. The
answers carry the standard fingerprints: a block, the final norm and the logits. What verifying takes beside the pass
does not grow with the model. Without the package that holds the model there are no figures.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import torch

from benchmarks.figure import Figure, Goal
from benchmarks.infer_commit import Recorded
from benchmarks.measure import CLOCKS, Spent, interval, median_ratio, stopwatch, take_rounds, time_arm, total_ratio
from tallystick.audits.answers.policy import ReceiptPolicy
from tallystick.audits.answers.reading import read_response
from tallystick.audits.answers.report import ReceiptReport
from tallystick.audits.answers.verify import verify_receipt
from tallystick.engines.torch.generation.language_models import TorchLanguageModel, load_language_model
from tallystick.engines.torch.generation.layer_tap import logit_rows
from tallystick.formats.fingerprints import PUBLIC_SEED, standard_fingerprints
from tallystick.formats.receipt import Sampler
from tallystick.formats.signing import SigningKey
from tallystick.recording.generation import AnswerRequest, generate_plain
from tallystick.recording.receipts import ReceiptIssuer, RecordSettings
from tests.support import real_model

PROMPT, ANSWER, ROUNDS, VERIFIED = 32, 96, 4, 24
FINAL_GOAL, PREFILL_GOAL, GENERATION_GOAL = Goal(1.001), Goal(1.02), Goal(1 / 11)
HOOK_CALLS = 2_000
SAMPLED = Sampler(temperature=0.7, top_p=0.9, seed=3)


@dataclass
class Workload:
    """The model, a prompt, and a `generate` that says how long it took."""

    language_model: TorchLanguageModel
    tokens: int
    last: Spent = field(default_factory=lambda: Spent(0.0, 0.0))

    def __post_init__(self) -> None:
        model = self.language_model.model
        model.generation_config.eos_token_id = None
        self.prompt = torch.randint(0, 40_000, (1, PROMPT), generator=torch.Generator().manual_seed(2))
        model.generate = partial(self._timed, model.generate)

    def generate(self) -> None:
        """One answer, greedily."""
        ones = torch.ones_like(self.prompt)
        self.language_model.model.generate(
            self.prompt, attention_mask=ones, max_new_tokens=self.tokens, do_sample=False, pad_token_id=0
        )

    def recorded(self, folder: Path, layers: tuple[int, ...]) -> Recorded:
        """An arm that answers with receipts of these layers."""
        card = self.language_model.card
        settings = RecordSettings(standard_fingerprints(card.layers, card.dtype, layers))
        journal = folder / f"{len(layers)}.jsonl"
        issuer = ReceiptIssuer(self.language_model, SigningKey(bytes(32)), settings, journal)
        return Recorded(self, issuer)  # type: ignore[arg-type]

    def sampled(self, layers: tuple[int, ...]) -> str:
        """The receipt of a sampled answer, as JSON text."""
        settings = RecordSettings(
            standard_fingerprints(self.language_model.card.layers, self.language_model.card.dtype, layers)
        )
        issuer = ReceiptIssuer(self.language_model, SigningKey(bytes(32)), settings)
        asked = [AnswerRequest("r1", sampler=SAMPLED)]
        [made] = generate_plain(self.language_model, self.prompt.tolist(), self.tokens, asked, issuer)
        return json.dumps(made.issued.signed.to_json())

    @torch.inference_mode()
    def prefill(self, tokens: tuple[int, ...]) -> None:
        """One bare pass over all tokens that were fed."""
        ids = torch.tensor([tokens])
        self.language_model.model(input_ids=ids, use_cache=False, logits_to_keep=self.tokens)

    def _timed(self, generate: Callable[..., Any], *given: Any, **named: Any) -> Any:
        elapsed = stopwatch()
        output = generate(*given, **named)
        self.last = elapsed()
        return output


@dataclass
class Verifying:
    """An arm that verifies one receipt, and keeps its reports and their shares of the pass."""

    model: TorchLanguageModel
    text: str
    reports: list[ReceiptReport] = field(default_factory=list)
    shares: list[float] = field(default_factory=list)

    def __call__(self) -> None:
        """From text to verdict."""
        elapsed = stopwatch()
        response = read_response(json.loads(self.text))
        policy = ReceiptPolicy()
        report = verify_receipt(response.receipt, self.model, policy, response=response)
        self.shares.append(elapsed().wall / report.seconds["prefill"])
        self.reports.append(report)


def figures(quick: bool) -> Iterator[Figure]:
    torch.set_num_threads(1)
    if real_model.missing():
        return
    loaded = load_language_model(real_model.directory("BF16"), "BF16")
    model = TorchLanguageModel(loaded.model, SimpleNamespace(eos_token_id=None), loaded.card)
    tokens, count, rng = (8, 2, random.Random(5)) if quick else (ANSWER, ROUNDS, random.Random(5))
    workload, final = Workload(model, tokens), model.card.layers
    kinds = {"final layer": (final,), "three layers": (final // 3, final, final + 1)}
    with TemporaryDirectory() as folder:
        arms = {name: workload.recorded(Path(folder), layers) for name, layers in kinds.items()}
        rounds = take_rounds({"bare": workload.generate, **arms}, count, rng)
        for name, layers in kinds.items():
            hooks = _hooks(model, layers, tokens)
            yield _recording(name, rounds, arms[name].outside[-count:], hooks, rng)
        text = (Path(folder) / "3.jsonl").read_text().splitlines()[-1]
    count = 3 if quick else VERIFIED
    yield from _verifying("greedy", workload, text, rounds, count, rng)
    yield from _verifying("sampled", workload, workload.sampled(kinds["three layers"]), rounds, count, rng)


def _recording(name: str, rounds: Any, outside: list[Spent], hooks: Spent, rng: random.Random) -> Figure:
    timed = [{**spent, "added": added} for spent, added in zip(rounds, outside, strict=True)]

    def inside(seen: Any) -> float:
        added = sum(each["added"].cpu + hooks.cpu for each in seen)
        return 1.0 + added / float(sum(each["bare"].cpu for each in seen))

    details = {f"whole {clock}": interval(rounds, median_ratio(name, "bare", clock), rng) for clock in CLOCKS}
    what = f"an answer with receipt ({name}) ÷ the same answer without"
    return Figure(
        f"real_model: receipts, {name}",
        what,
        interval(timed, inside, rng),
        len(rounds),
        "CPU (inside)",
        goal=FINAL_GOAL,
        details={**details, "hooks_us_a_token": 1e6 * hooks.cpu / ANSWER},
    )


def _verifying(name: str, workload: Workload, text: str, made: Any, count: int, rng: random.Random) -> Iterator[Figure]:
    arm = Verifying(workload.language_model, text)
    receipt = json.loads(text)["receipt"]
    fed = (*receipt["request"]["prompt"]["ids"], *receipt["answer"]["tokens"]["ids"][:-1])
    rounds = take_rounds({"bare": partial(workload.prefill, fed), "verify": arm}, count, rng)
    reports = arm.reports[-len(rounds) :]
    shares = [{"share": each} for each in arm.shares[-len(rounds) :]]
    estimates: dict[str, Any] = {"median cpu": interval(rounds, median_ratio("verify", "bare", "cpu"), rng)}
    estimates["total cpu"] = interval(rounds, total_ratio("verify", "bare", "cpu"), rng)
    seconds = {
        f"{check}_wall_ms": 1e3 * median(each.seconds[check] for each in reports) for check in reports[-1].seconds
    }
    size = sum(len(each["data"]) * 3 // 4 for each in receipt["fingerprints"])
    sizes = {"fingerprint_bytes_a_token": size / workload.tokens, "receipt_bytes": len(text)}
    yield Figure(
        f"real_model: verification ÷ prefill, {name}",
        f"verifying a {name} answer (standard fingerprints) ÷ a pass over its tokens",
        interval(shares, lambda seen: float(median(each["share"] for each in seen)), rng),  # type: ignore[arg-type, index]
        len(rounds),
        "wall (inside)",
        goal=PREFILL_GOAL,
        details={**estimates, **seconds, **sizes, "outcome": reports[-1].outcome, "tokens": workload.tokens},
    )
    both = [{"verify": a["verify"], "generate": b["bare"]} for a, b in zip(rounds, made, strict=False)]
    yield Figure(
        f"real_model: verification ÷ generation, {name}",
        f"verifying a {name} answer (standard fingerprints) ÷ generating one, a token at a time",
        interval(both, median_ratio("verify", "generate", "cpu"), rng),
        len(both),
        "CPU (median)",
        goal=GENERATION_GOAL,
    )


def _hooks(model: TorchLanguageModel, layers: tuple[int, ...], tokens: int) -> Spent:
    """What the hooks of an answer cost: an append a layer, and a sample of the logits where they are recorded."""
    held: list[Any] = []
    logits = torch.zeros(1, 1, model.card.vocabulary, dtype=torch.bfloat16)
    has_logits = layers[-1] > model.card.layers

    def run() -> None:
        for _ in range(HOOK_CALLS):
            for _ in layers:
                held.append(logits)
            if has_logits:
                held.append(logit_rows(logits[:, -1:], PUBLIC_SEED))
        held.clear()

    run()
    spent = min((time_arm(run) for _ in range(5)), key=lambda each: each.cpu)
    return Spent(spent.cpu * tokens / HOOK_CALLS, spent.wall * tokens / HOOK_CALLS)
