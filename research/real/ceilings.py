#!/usr/bin/env python3
"""What anybody could see of two small cheats in receipts without opened states.

Usage: python -m research.real.ceilings MODEL ANSWERS --passes DIR [--out FILE] [--each N]

ANSWERS and DIR are those of `research.real.power`. An oracle knows the cheater's weights and how honest stacks round,
and makes the likelihood-ratio test. Of int8 tokens it sees tokens: each is one of two, with probabilities that follow
from the fitted drift, and both verdicts are drawn from them. Of a tuned model it sees numbers of fingerprints: their
shift is known, and rounding is normal with the verifier's own as its scale.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import NormalDist
from typing import Any, Final

import numpy as np
import torch

from research.real.power import SEED, passed_answers
from research.real.power_answers import CHEATS, named_answers
from tallystick.audits.answers.fingerprints import CELL, own_rounding
from tallystick.audits.answers.likelihoods import ClaimedAnswer, drift_of
from tallystick.audits.answers.limits import SamplerRule
from tallystick.engines.torch.generation.language_models import TorchLanguageModel, load_language_model
from tallystick.formats.fingerprints import PUBLIC_SEED, standard_fingerprints
from tallystick.tally.calibration.stacks import machine
from tallystick.verdicts.fingerprints import block_norms, logit_rows, summarise
from tallystick.verdicts.sampling.rivals import rivals_of_models

DATA: Final = Path("docs/data/real_ceilings.json")
TOKENS, TUNED = "int8 tokens under honest fingerprints", "tuned for 5 steps at 1e-5"
WHOLE: Final = 128
FITTED: Final = 0.83
"""The drift of honest tokens, in deviations of own logits from F32: the logistic that fits a normal difference."""
RATES: Final = (1e-3, 1e-6)
DRAWS: Final = 20000
COUNTS: Final = (1, 2, 4, 8, 16, 32)


def main() -> int:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("answers", type=Path)
    parser.add_argument("--passes", type=Path, required=True)
    parser.add_argument("--each", type=int, default=10)
    parser.add_argument("--out", type=Path, default=DATA)
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = load_language_model(options.model, "BF16")
    figures: dict[str, Any] = {"machine": machine(), "software": f"torch {torch.__version__}"}
    pairs = [*token_pairs(model, options.answers, options.each)]
    figures["int8 tokens"] = {"answers": len(pairs), **token_ceiling(pairs)}
    shifts = [*shifts_of(model, options.answers, options.passes, options.each)]
    figures["tuned"] = {"answers": len(shifts), **shift_ceiling(np.array(shifts))}
    options.out.write_text(json.dumps(figures, indent=1) + "\n")
    return 0


def token_pairs(model: TorchLanguageModel, folder: Path, count: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Of answers of int8 tokens: how likely the rival is in each row, honestly and with int8 weights."""
    wide = model.widened()
    assert wide is not None
    coarse, rule = wide.in_fewer_bits("int8 by row, steps in 16 bits"), SamplerRule().for_model(model.card)
    whole = [f for _, f in named_answers(folder) if f.way == TOKENS and len(f.answer) == WHOLE]
    for found in whole[:count]:
        fed = ((*found.asked.prompt, *found.answer[:-1]), len(found.asked.prompt) - 1)
        own, true, other = (each.prefill(*fed).logits for each in (model, wide, coarse))
        sampler = found.asked.sampler
        histories = ClaimedAnswer(own, found.asked.prompt, found.answer, sampler, rule).histories
        pairs = rivals_of_models(true, other, sampler, range(WHOLE), histories, rule.band or 0.0)
        drift = FITTED * drift_of(own, true, 1.0 if sampler.is_greedy else sampler.temperature)
        here, there = (0.5 * (1 - np.tanh(0.5 * each / drift)) for each in (pairs.lead, pairs.lead_there))
        yield here, there


def token_ceiling(pairs: list[tuple[np.ndarray, np.ndarray]]) -> dict[str, Any]:
    """By number of answers and rate of false accusations, the power of the likelihood-ratio test."""
    rng, told = np.random.default_rng(SEED), {}
    honest, cheat = (np.clip(np.stack([pair[n] for pair in pairs]), 1e-6, 1 - 1e-6) for n in (0, 1))
    for count in COUNTS:
        logs: list[list[float]] = [[], []]
        for _ in range(DRAWS // count):
            chosen = rng.integers(len(pairs), size=count)
            p, q = honest[chosen].ravel(), cheat[chosen].ravel()
            near = np.abs(np.log(q / p)) > 1e-3
            p, q = p[near], q[near]
            for logs_of, rate in zip(logs, (p, q), strict=True):
                is_rival = rng.random(len(p)) < rate
                logs_of.append(float(np.where(is_rival, np.log(q / p), np.log1p(-q) - np.log1p(-p)).sum()))
        base, other = NormalDist.from_samples(logs[0]), np.array(logs[1])
        told[str(count)] = [
            round(float((other > base.mean + base.stdev * NormalDist().inv_cdf(1 - each)).mean()), 3) for each in RATES
        ]
    return {"power": told}


def shifts_of(model: TorchLanguageModel, folder: Path, passes: Path, count: int) -> Iterator[list[float]]:
    """Of answers of a tuned model: the squared shift of its fingerprints in units of rounding, and signed shares.

    The shares are how much of the energy of a row lies in the mean over rows, for the tuning and for own rounding,
    both in units of the energy of own rounding, at the final norm.
    """
    card = model.card
    tuned = replace(model, model=CHEATS[TUNED].model(model)).widened()  # type: ignore[misc]
    assert tuned is not None
    done = 0
    for name, found, own, true, _ in passed_answers(model, folder, passes):
        if found.way != TUNED or len(found.answer) < WHOLE or done == count:
            continue
        done += 1
        print(name, file=sys.stderr, flush=True)
        fed = ((*found.asked.prompt, *found.answer[:-1]), len(found.asked.prompt) - 1, (card.layers // 3, card.layers))
        passed = tuned.prefill(*fed)
        there = {**passed.hidden, card.layers + 1: logit_rows(passed.logits, PUBLIC_SEED)}
        total = 0.0
        for settings in standard_fingerprints(card.layers, card.dtype):
            for layer in settings.layers:
                shift = summarise(there[layer] - true[layer], layer, settings)
                cells = 2.0**-settings.resolution * block_norms(true[layer], settings.block)[:, None]
                variance = own_rounding(own, true, layer, settings) ** 2 + CELL * cells**2
                total += float((shift**2 / variance).sum())
        final = card.layers
        moved, rounded = ((each[final] - true[final]).astype(np.float64) for each in (there, own))
        energy = float((rounded**2).sum())
        signed = [len(each) * float((each.mean(axis=0) ** 2).sum()) / energy for each in (moved, rounded)]
        yield [total, *signed, float((moved**2).sum()) / energy]


def shift_ceiling(shifts: np.ndarray) -> dict[str, Any]:
    """The power of an oracle by number of answers; and the signed means, which say what others can see."""
    rng, normal, told = np.random.default_rng(SEED), NormalDist(), {}
    for count in COUNTS:
        sums = np.sqrt(shifts[rng.integers(len(shifts), size=(2000, count)), 0].sum(axis=1))
        told[str(count)] = [
            round(float(np.mean([normal.cdf(each - normal.inv_cdf(1 - rate)) for each in sums])), 3) for rate in RATES
        ]
    names = ("squared_shift", "signed_tuning", "signed_rounding", "energy")
    return {"power": told} | {
        name: round(float(each), 4) for name, each in zip(names, np.median(shifts, axis=0), strict=True)
    }


if __name__ == "__main__":
    sys.exit(main())
