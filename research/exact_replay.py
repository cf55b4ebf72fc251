"""What an exact replay on one stack (rung 4) finds: honest answers and cheats, by tokens alone and by bits.

    python -m research.exact_replay MODEL --dtype BF16 --answers 3 --out docs/data/exact_replay_bf16.json

Each case is generated, stated as if it were honest, and judged by `judge_replay`. Other tokens convict only behind a
whole block of fingerprints with equal bits, so answers have several blocks.
"""

from __future__ import annotations

import argparse
import copy
import json
import platform
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch

from tallystick.audits.answers.ladder import Replay, ReplayRule, judge_replay
from tallystick.engines.torch.generation.language_models import TorchLanguageModel, load_language_model
from tallystick.formats.fingerprints import standard_fingerprints
from tallystick.formats.receipt import Receipt, Sampler
from tallystick.formats.signing import SigningKey
from tallystick.recording.generation import AnswerRequest, generate_plain
from tallystick.recording.receipts import ReceiptIssuer, RecordSettings
from tallystick.tally.answers import PlainReplayer
from tallystick.verdicts.verdict import Findings, Verdict

QUESTIONS: Final = (
    "What is the capital of France?",
    "Write a short poem about a river.",
    "Explain why the sky is blue.",
    "Name three uses of a paper clip.",
    "How does a bicycle stay upright?",
)
REPLACED: Final = 12
"""The step whose most likely token is kept from being chosen."""
Change = Callable[[Any], None]


@dataclass(frozen=True)
class Case:
    """An answer: how the model is changed, how it is sampled, what of the receipt is stated otherwise."""

    name: str
    change: Change | None = None
    sampler: dict[str, float] | None = None
    threads: int | None = None
    rows: int = 1
    is_honest: bool = False


@torch.no_grad()
def round_to_int8(weights: torch.Tensor) -> None:
    """Symmetric rounding to 8 bits, one scale a row."""
    scale = weights.float().abs().amax(dim=1, keepdim=True) / 127
    weights.copy_((weights.float() / scale).round().clamp(-127, 127) * scale)


def int8_head(model: Any) -> None:
    """The output matrix in 8 bits; it is untied from the embedding first."""
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone(), requires_grad=False)
    round_to_int8(model.lm_head.weight)


def int8_blocks(model: Any) -> None:
    """Every matrix of the blocks in 8 bits."""
    for name, weights in model.model.layers.named_parameters():
        if weights.ndim == 2:
            round_to_int8(weights)
            assert name


def one_block(model: Any) -> None:
    """The matrices of the last block in 8 bits."""
    for weights in model.model.layers[-1].parameters():
        if weights.ndim == 2:
            round_to_int8(weights)


def nudged(relative: float) -> Change:
    """All weights moved at random, relative to their size, as by light fine-tuning."""

    @torch.no_grad()
    def change(model: Any) -> None:
        generator = torch.Generator().manual_seed(5)
        for weights in model.parameters():
            weights.mul_(1 + relative * torch.randn(weights.shape, generator=generator).to(weights.dtype))

    return change


def coarse(model: Any) -> None:
    """Weights rounded to bfloat16 and computed as before."""
    for weights in model.parameters():
        weights.data = weights.data.bfloat16().to(weights.dtype)


def skipped(model: Any) -> None:
    """The block before the last is left out."""
    model.model.layers[-2].forward = lambda hidden, *_, **__: hidden


def replaced(model: Any) -> None:
    """At one step the most likely token cannot be chosen."""
    steps = Counter[str]()

    def forbid(_: Any, __: Any, logits: torch.Tensor) -> torch.Tensor:
        steps["all"] += 1
        if steps["all"] == REPLACED:
            logits[..., int(logits[0, -1].argmax())] = -1e4
        return logits

    model.lm_head.register_forward_hook(forbid)


CASES: Final = (
    Case("honest, same stack", is_honest=True),
    Case("honest, 2 threads", threads=2, is_honest=True),
    Case("honest, in a batch of 3", rows=3, is_honest=True),
    Case("temperature 0.97 for 1.0", sampler={"temperature": 0.97}),
    Case("top-p 0.95 for 0.9", sampler={"top_p": 0.95}),
    Case("another seed", sampler={"seed": 1000}),
    Case("one plausible token replaced", replaced),
    Case("int8 output matrix", int8_head),
    Case("int8 blocks", int8_blocks),
    Case("int8 last block", one_block),
    Case("weights moved by 1e-2", nudged(1e-2)),
    Case("weights moved by 1e-4", nudged(1e-4)),
    Case("weights in bfloat16", coarse),
    Case("one block skipped", skipped),
)


@contextmanager
def threads(count: int | None) -> Iterator[None]:
    """As many threads as a case asks for."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    yield
    torch.set_num_threads(before)


def answered(promised: TorchLanguageModel, case: Case, number: int, tokens: int) -> Receipt:
    """The receipt of one answer, with the stated sampler in place of the one that was used."""
    model = promised.model
    if case.change is not None:
        model = copy.deepcopy(model)
        case.change(model)
    used = replace(promised, model=model)
    final = promised.card.layers
    stated = Sampler(temperature=1.0, top_p=0.9, seed=number)
    sampler = stated.model_copy(update=case.sampler or {})
    questions = [QUESTIONS[(number + row) % len(QUESTIONS)] for row in range(case.rows)]
    prompts = [used.encode_chat([{"role": "user", "content": each}]) for each in questions]
    with threads(case.threads):
        issuer = ReceiptIssuer(
            used, SigningKey.generate(), RecordSettings(standard_fingerprints(final, promised.card.dtype))
        )
        asked = [AnswerRequest(f"r-{number}-{row}", None, sampler) for row in range(case.rows)]
        found = generate_plain(used, prompts, tokens, asked, issuer)[0]
    assert found.issued is not None
    return found.issued.signed.receipt.model_copy(update={"sampler": stated})


class OnceReplayer(PlainReplayer):
    """Replays each receipt once, for both rules."""

    def replay(self, receipt: Receipt, prompt: tuple[int, ...]) -> Replay:
        """As the plain one."""
        held = self.__dict__.setdefault("held", {})
        if receipt.identity not in held:
            held[receipt.identity] = super().replay(receipt, prompt)
        found: Replay = held[receipt.identity]
        return found


def judged(replayer: PlainReplayer, receipt: Receipt, bits: bool) -> Verdict:
    """The verdict of the replay alone."""
    log, prompt, answer = Findings(), receipt.request.prompt.ids or (), receipt.answer.tokens.ids or ()
    rule = ReplayRule(bits, replayer.language_model.card.layers)
    judge_replay(log, receipt, prompt, answer, replayer, None, rule)
    return Verdict(tuple(log.seen), tuple(log.open_lines))


def measure(promised: TorchLanguageModel, answers: int, tokens: int) -> Iterator[dict[str, Any]]:
    """One row a case: how often it was accepted, rejected or left open, by tokens and by bits."""
    replayer = OnceReplayer(promised)
    for case in CASES:
        receipts = [answered(promised, case, number, tokens) for number in range(answers)]
        row: dict[str, Any] = {"case": case.name, "honest": case.is_honest, "answers": answers}
        for name, bits in (("tokens", False), ("bits", True)):
            verdicts = [judged(replayer, each, bits) for each in receipts]
            row[name] = dict(Counter(each.outcome for each in verdicts))
            row["reason"] = next((line for each in verdicts for line in each.unavailable), row.get("reason", ""))
        yield row


def main() -> None:
    """Measure one model in one precision."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--dtype", default="F32")
    parser.add_argument("--answers", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    promised = load_language_model(asked.model, asked.dtype)
    rows = []
    for row in measure(promised, asked.answers, asked.tokens):
        print(row, flush=True)
        rows.append(row)
    described = {"machine": platform.machine(), "dtype": asked.dtype, "tokens": asked.tokens, "rows": rows}
    asked.out.write_text(json.dumps(described, indent=1) + "\n")


if __name__ == "__main__":
    main()
