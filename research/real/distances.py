#!/usr/bin/env python3
"""Limits on distances for a real model, from kept answers of a server, and what they see of its output matrix.

Usage: python -m research.real.distances MODEL ANSWERS [--every K] [--name NAME] [--dtype D] [--out DIR]

MODEL is a directory in the form of transformers; ANSWERS a folder that `research.real.serving` filled, of which every
K-th answer is taken. It is compared with a pass with fused attention, every fourth one also without. Two thirds of the
answers set limits. The others try them, beside output matrices in fewer bits behind the same hidden states. Writes the
limits into the shipped table, in the place of those for models of the same size, and what they rest on to
<out>/docs/data/real_distances.json.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from research.real.serving import Answered, read_answers
from research.shipped_limits import replaced, write_table
from tallystick.audits.answers.fingerprints import judge_fingerprint
from tallystick.audits.answers.limits import FingerprintRule, MeasuredModels, shipped_calibration
from tallystick.engines.torch.generation.language_models import TorchLanguageModel, load_language_model
from tallystick.engines.torch.generation.layer_tap import logit_rows
from tallystick.formats.claims import ModelCard
from tallystick.formats.fingerprints import PUBLIC_SEED, standard_fingerprints
from tallystick.tally.calibration.answer_limits import Rows, add_up, compare_answer, distances_of_runs, row_limits
from tallystick.tally.calibration.stacks import machine
from tallystick.verdicts.evidence import clopper_pearson
from tallystick.verdicts.fingerprints import make_fingerprint

DATA: Final = Path("docs/data/real_distances.json")
TRYING: Final = 3
"""One answer of so many sets no limit, and tries them."""
EAGER: Final = 4
HEADS: Final = {"8 bits by row": (8, True), "8 bits": (8, False), "4 bits by row": (4, True)}
"""Output matrices behind the same hidden states: bits, and whether each row has a scale of its own."""
LENGTHS: Final = (1, 32, 65, 128, 256, 1 << 20)
PLACES: Final = ("block", "final", "logits")


@dataclass
class Trial:
    """Answers of one kind that were judged: how many, rejected, and inconclusive for want of tokens; and distances."""

    of: int = 0
    rejected: int = 0
    unjudged: int = 0
    distances: dict[str, list[float]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The figures, with the exact interval of the rate of rejection at 95 % confidence."""
        judged = self.of - self.unjudged
        low, high = clopper_pearson(self.rejected, judged) if judged else (0.0, 1.0)
        shown = {place: [round(float(f(each)), 5) for f in (np.mean, np.max)] for place, each in self.distances.items()}
        interval = [round(low, 5), round(high, 5)]
        return {"of": self.of, "unjudged": self.unjudged, "rejected": self.rejected, "interval_95": interval} | shown


def main() -> int:
    """Run the study."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("answers", type=Path)
    parser.add_argument("--name", default="SmolLM2-135M-Instruct")
    parser.add_argument("--dtype", default="BF16", choices=("F32", "BF16", "F16"))
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path())
    options = parser.parse_args()
    answers = [*read_answers(options.answers)][:: options.every]
    pairs = [(n, *each) for n, each in compared(options.model, options.dtype, answers)]
    card = load_language_model(options.model, options.dtype).card
    setting = [n for n in range(len(answers)) if n % TRYING]
    models = MeasuredModels(
        dtype=card.dtype, layers=card.layers, width=card.width, models=(options.name,), answers=len(setting)
    )
    seen = add_up(compare_answer(claimed, own, card.layers) for n, _, claimed, own in pairs if n % TRYING)
    limits = row_limits(seen, models)
    shipped = shipped_calibration()
    write_table(shipped.model_copy(update={"rows": replaced(shipped.rows, limits)}), options.out)
    tried = trials([each for each in pairs if not each[0] % TRYING], FingerprintRule(rows=limits), card)
    ways = sorted({each.stack for each in answers})
    figures = {"machine": machine(), "software": f"torch {torch.__version__}", "model": options.name}
    figures |= {"dtype": card.dtype, "stacks": ways, "answers": len(answers), "setting": len(setting), **tried}
    (options.out / DATA).parent.mkdir(parents=True, exist_ok=True)
    (options.out / DATA).write_text(json.dumps(figures, indent=1, ensure_ascii=False) + "\n")
    return 0


def compared(model: Path, dtype: Any, answers: Sequence[Answered]) -> Iterator[tuple[int, tuple[str, Rows, Rows]]]:
    """Number of an answer, what computed it, and rows by layer: those claimed, and those of the verifier's own pass."""
    for attention, every in (("sdpa", 1), ("eager", EAGER)):
        loaded = load_language_model(model, dtype, attention)  # type: ignore[arg-type]
        coarse = {name: coarser(loaded, *bits) for name, bits in HEADS.items()}
        for number in range(0, len(answers), every):
            claimed, own = rows_of(loaded, answers[number])
            yield number, ("honest", claimed, own)
            for name, matrix in coarse.items() if number % TRYING == 0 and every == 1 else ():
                logits = answers[number].rows[loaded.card.layers] @ matrix.T
                rows = logit_rows(logits, PUBLIC_SEED).numpy()
                yield number, (f"output matrix in {name}", {**claimed, loaded.card.layers + 1: rows}, own)


def rows_of(model: TorchLanguageModel, answered: Answered) -> tuple[Rows, Rows]:
    """The rows that a provider kept, and those of one pass. Logits that were not kept follow from the final norm."""
    final = model.card.layers
    held = {layer: rows.float().numpy() for layer, rows in answered.rows.items()}
    if final + 1 not in held:
        with torch.inference_mode():
            logits = model.model.get_output_embeddings()(answered.rows[final])
        held[final + 1] = logit_rows(logits, PUBLIC_SEED).numpy()
    prompt = answered.asked.prompt
    hidden = [layer for layer in held if layer <= final]
    passed = model.prefill([*prompt, *answered.answer[:-1]], len(prompt) - 1, hidden)
    behind = logit_rows(torch.from_numpy(passed.logits), PUBLIC_SEED).numpy()
    return held, {**passed.hidden, final + 1: behind}


def coarser(model: TorchLanguageModel, bits: int, by_row: bool) -> torch.Tensor:
    """The output matrix in whole numbers of `bits` bits, back in the model's dtype."""
    weight = model.model.get_output_embeddings().weight.detach()
    wide = weight.float()
    largest = wide.abs().amax(1, keepdim=True) if by_row else wide.abs().max()
    scale = largest / (2 ** (bits - 1) - 1)
    coarse: torch.Tensor = ((wide / scale).round() * scale).to(weight.dtype)
    return coarse


def trials(pairs: Sequence[tuple[int, str, Rows, Rows]], rule: FingerprintRule, card: ModelCard) -> dict[str, Any]:
    """By kind and length of answer, how many are rejected by the standard fingerprints."""
    found: dict[str, dict[str, Trial]] = {}
    settings, *_ = standard_fingerprints(card.layers, card.dtype)
    for _, kind, claimed, own in pairs:
        tokens = len(own[card.layers])
        low, high = next((a, b) for a, b in pairwise(LENGTHS) if a <= tokens < b)
        by_length = found.setdefault(kind, {})
        trial = by_length.setdefault(
            f"{low} to {high - 1} tokens" if high < LENGTHS[-1] else f"{low} and more", Trial()
        )
        findings = judge_fingerprint(make_fingerprint(claimed, settings), own, rule, card)
        trial.of += 1
        trial.rejected += any(not each.agrees for each in findings)
        trial.unjudged += sum("all" in each.where for each in findings) < len(settings.layers)
        for place, layer in zip(PLACES, settings.layers, strict=True):
            trial.distances.setdefault(place, []).append(float(distances_of_runs(claimed[layer], own[layer], 1).mean()))
    return {kind: {length: each.to_json() for length, each in by.items()} for kind, by in found.items()}


if __name__ == "__main__":
    sys.exit(main())
