#!/usr/bin/env python3
"""Calibrate the limits of fingerprints over stacks that really differ, and see whom they reject.

Usage: python -m research.fingerprint_calibration [--model DIR ...] [--answers N] [--out DIR] [--quick]

Models are directories in the form of transformers; without one, the demo's model and the larger one of the inference
study are trained first. The limits hold for models no deeper and no wider than these; `tally verify-response --limits`
takes the table. Puts the limits into <out>/src/tallystick/answers/fingerprints.json, in the place of those for models
of the same size, and writes what they rest on to <out>/docs/data/fingerprints.json. Exits 1 if an honest answer is
rejected more often than once in a hundred.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from itertools import product
from pathlib import Path
from typing import Any

from research.fingerprints.calibrate import (
    Study,
    Trial,
    calibrate,
    compute_all,
    feed,
    honest_pairs,
    rejections,
    size_of,
    write_json,
)
from research.fingerprints.producers import DTYPES
from research.inference.models import make_model, source_text
from research.shipped_limits import merged, write_table
from tallystick.audits.answers.limits import FingerprintCalibration, FingerprintRule, shipped_calibration
from tallystick.formats.fingerprints import FingerprintSettings

DATA = Path("docs/data/fingerprints.json")
TRIALS = {
    "final layer: 15 numbers of 8 bits, 0.5 bytes a token": Trial(FingerprintSettings()),
    "first and final layer: 7 numbers of 8 bits, 0.5 bytes a token": Trial(FingerprintSettings(width=7), (0, -2)),
    "first layer, final layer, logits: 7 numbers of 8 bits, 0.75 bytes a token": Trial(
        FingerprintSettings(width=7), (0, -2, -1)
    ),
    "logits: 15 numbers of 8 bits, 0.5 bytes a token": Trial(FingerprintSettings(), (-1,)),
    "first and final layer: 13 numbers of 4 bits, 0.5 bytes a token": Trial(
        FingerprintSettings(width=13, bits=4), (0, -2)
    ),
    "final layer: 7 numbers of 8 bits, 0.25 bytes a token": Trial(FingerprintSettings(width=7)),
    "final layer: 4 numbers of 32 bits, 0.5 bytes a token": Trial(FingerprintSettings(width=4, bits=32)),
    "final layer: 30 numbers of 4 bits, 0.5 bytes a token": Trial(FingerprintSettings(width=30, bits=4)),
    "final layer: 120 numbers of 1 bit, 0.5 bytes a token": Trial(FingerprintSettings(width=120, bits=1)),
    "final layer: TOPLOC, 8.06 bytes a token": Trial(FingerprintSettings.toploc(0)),
}
TOKENS = 32
PAIRS = 12
FUSED = "fused attention"
REJECTED_MAX = 0.01


def main() -> int:
    """Run the study."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, action="append", default=[])
    parser.add_argument("--answers", type=int, default=32, help="answers a model; half calibrate, half try")
    parser.add_argument("--out", type=Path, default=Path())
    parser.add_argument("--quick", action="store_true", help="sixteen answers, to see that it runs")
    options = parser.parse_args()
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        models = options.model or [make_model(each, folder / "models") for each in ("demo", "served")]
        answers = 16 if options.quick else options.answers
        feeds = {str(model): feed(model, source_text(), answers, seed) for seed, model in enumerate(models)}
        study = Study(folder, feeds, sizes={str(model): size_of(model) for model in models})
        refused = compute_all(study)
        print(f"states: {time.monotonic() - begun:.0f} s", file=sys.stderr)
        table = calibrate(study)
        print(f"limits: {time.monotonic() - begun:.0f} s", file=sys.stderr)
        figures = figures_of(study, table)
    (options.out / DATA).parent.mkdir(parents=True, exist_ok=True)
    write_table(merged(shipped_calibration(), table), options.out)
    write_json(options.out / DATA, {"refused": refused, "answers": answers, **figures})
    print(f"done: {time.monotonic() - begun:.0f} s", file=sys.stderr)
    honest = [each for by in figures["honest"].values() for name, each in by.items() if "TOPLOC" not in name]
    return int(any(each["rejected"] > REJECTED_MAX * each["of"] for each in honest))


def figures_of(study: Study, table: FingerprintCalibration) -> dict[str, Any]:
    """Whom the limits reject: honest providers on answers that set no limit, and cheats.

    Cheats are tried against the limits over all models and both kinds of attention, and against those that the same
    study gives for one model by itself where attention is computed as the receipt states.
    """
    rule = FingerprintRule(rows=table.rows)
    seen = [*honest_pairs(study, held_out=False)]
    honest = {"stacks that set limits": seen[:: -(-len(seen) // PAIRS)]}
    honest["stacks held out"] = [*honest_pairs(study, held_out=True)][:PAIRS]
    figures: dict[str, Any] = {"machine": table.machine, "software": table.software}
    figures["models"] = [Path(model).name for model in study.models]
    figures |= {"stacks": table.stacks, "held_out": table.held_out, "honest": {}, "cheats": {}, "cheats_alone": {}}
    for dtype, (name, pairs) in product(DTYPES, honest.items()):
        figures["honest"][f"{dtype}, {name}"] = rejections(study, pairs, TRIALS, rule, dtype, 1)
    for model in study.models:
        producers = tuple(p for p in study.producers if p.stack != FUSED)
        alone = Study(study.folder, {model: study.models[model]}, producers, {model: study.sizes[model]})
        own = calibrate(alone)
        figures["cheats"] |= cheats_of(alone, rule)
        figures["cheats_alone"] |= cheats_of(alone, FingerprintRule(rows=own.rows))
    return figures


def cheats_of(study: Study, rule: FingerprintRule) -> dict[str, Any]:
    """How often each cheat is rejected on the study's one model."""
    verifiers = [each for each in study.producers if each.is_verifier]
    found = {}
    for dtype, cheat in product(DTYPES, [each for each in study.producers if each.cheat]):
        name = f"{cheat.cheat} weights as {dtype}, {Path(*study.models).name}"
        found[name] = rejections(study, [(cheat, each) for each in verifiers], TRIALS, rule, dtype, TOKENS)
    return found


if __name__ == "__main__":
    sys.exit(main())
