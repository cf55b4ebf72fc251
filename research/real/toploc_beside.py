#!/usr/bin/env python3
"""TOPLOC, from its own package, beside our fingerprints on the same answers of a real model.

Usage: python -m research.real.toploc_beside MODEL ANSWERS [--answers-max N] [--cheats M] [--out FILE]

Needs the package `toploc` (0.1.6). ANSWERS is a folder that `research.real.serving` filled: N of these answers of at
least 65 tokens are honest, M of them are also computed by cheaper or other models, which are fed the same tokens.
The verifier makes one pass with the promised model. TOPLOC encodes the final norm as published, 128 values of every
32 tokens, and judges by its published thresholds; ours are the standard fingerprints and the shipped limits.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import torch

from research.real.distances import rows_of
from research.real.serving import Answered, read_answers
from tallystick.audits.answers.fingerprints import judge_fingerprint
from tallystick.audits.answers.limits import FingerprintRule
from tallystick.engines.torch.generation.language_models import TorchLanguageModel, load_language_model
from tallystick.formats.fingerprints import PUBLIC_SEED, standard_fingerprints
from tallystick.tally.attacks.provers import integer_weights
from tallystick.tally.calibration.answer_limits import Rows
from tallystick.tally.calibration.stacks import machine
from tallystick.verdicts.evidence import clopper_pearson
from tallystick.verdicts.fingerprints import logit_rows, make_fingerprint
from tests.support.attacks.cheaper_models import coarse_head, float8_weights, without_layers

DATA: Final = Path("docs/data/toploc_beside.json")
VALUES, BLOCK = 128, 32
LIMITS: Final = (37, 10.0, 8.0)
"""The published thresholds for bfloat16: exponents that differ, mean and median of the errors of mantissas."""
TOKENS_MIN: Final = 65
CHEATS: Final[dict[str, Callable[[TorchLanguageModel], Any]]] = {
    "int8 weights": lambda model: integer_weights(model, 8),
    "int4 weights": lambda model: integer_weights(model, 4),
    "fp8 weights": float8_weights,
    "early exit": lambda model: without_layers(model, (-1,)),
    "output matrix in 4 bits": lambda model: coarse_head(model, 4),
}


def main() -> int:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("answers", type=Path)
    parser.add_argument("--answers-max", type=int, default=80)
    parser.add_argument("--cheats", type=int, default=16)
    parser.add_argument("--out", type=Path, default=DATA)
    options = parser.parse_args()
    model = load_language_model(options.model, "BF16")
    answers = [each for each in read_answers(options.answers) if len(each.answer) >= TOKENS_MIN][: options.answers_max]
    held = [(each, *rows_of(model, each)) for each in answers]
    figures: dict[str, Any] = {"machine": machine(), "model": options.model.name, "toploc": "0.1.6", "ways": {}}
    figures["ways"]["honest"] = _outcomes(model, [(claimed, own) for _, claimed, own in held])
    final = model.card.layers
    flipped = [({**claimed, final: -claimed[final]}, own) for _, claimed, own in held[: options.cheats]]
    figures["ways"]["signs flipped"] = _outcomes(model, flipped)
    for name, change in CHEATS.items():
        cheap = TorchLanguageModel(change(model), model.tokenizer, model.card)
        pairs = [(_rows(cheap, each, [*claimed]), own) for each, claimed, own in held[: options.cheats]]
        figures["ways"][name] = _outcomes(model, pairs)
        print(name, figures["ways"][name], file=sys.stderr, flush=True)
    options.out.write_text(json.dumps(figures, indent=1) + "\n")
    return 0


def _rows(model: TorchLanguageModel, answered: Answered, layers: Sequence[int]) -> Rows:
    """The rows that a model has on the tokens of an answer."""
    prompt, final = answered.asked.prompt, model.card.layers
    passed = model.prefill(
        [*prompt, *answered.answer[:-1]], len(prompt) - 1, [layer for layer in layers if layer <= final]
    )
    return {**passed.hidden, final + 1: logit_rows(passed.logits, PUBLIC_SEED)}


def _outcomes(model: TorchLanguageModel, pairs: Sequence[tuple[Rows, Rows]]) -> dict[str, Any]:
    """Of answers, how many each method rejects, with intervals at 95 % confidence, and bytes a token."""
    final = model.card.layers
    settings, *_ = standard_fingerprints(final, model.card.dtype)
    theirs = [_toploc(claimed[final], own[final]) for claimed, own in pairs]
    prints = [make_fingerprint(claimed, settings) for claimed, _ in pairs]
    rule = FingerprintRule()
    ours = [judge_fingerprint(each, own, rule, model.card) for each, (_, own) in zip(prints, pairs, strict=True)]
    tokens = sum(len(own[final]) for _, own in pairs)
    return {
        "answers": len(pairs),
        "tokens": tokens,
        "toploc": _rate(sum(rejected for rejected, _ in theirs), len(pairs)),
        "toploc_bytes_a_token": round(sum(size for _, size in theirs) / tokens, 3),
        "ours": _rate(sum(any(not finding.agrees for finding in each) for each in ours), len(pairs)),
        "ours_bytes_a_token": round(sum(len(each.raw) for each in prints) / tokens, 3),
    }


def _toploc(claimed: Any, own: Any) -> tuple[bool, int]:
    """Whether the package's own verifier finds a block beyond the thresholds, and the bytes of the proofs."""
    from toploc import build_proofs_bytes, verify_proofs_bytes  # type: ignore[import-not-found]

    # the package takes a prompt's states first; these are the rows of the answer, the first of them as that pass
    proofs = build_proofs_bytes(_bfloat16(claimed), decode_batching_size=BLOCK, topk=VALUES, skip_prefill=True)
    results = verify_proofs_bytes(_bfloat16(own), proofs, decode_batching_size=BLOCK, topk=VALUES, skip_prefill=True)
    exponents, mean, middle = LIMITS
    far = [
        each.exp_mismatches > exponents or each.mant_err_mean > mean or each.mant_err_median > middle
        for each in results
    ]
    return any(far), sum(map(len, proofs))


def _bfloat16(rows: Any) -> list[torch.Tensor]:
    return [torch.from_numpy(row).to(torch.bfloat16)[None] for row in rows]


def _rate(rejected: int, of: int) -> dict[str, Any]:
    low, high = clopper_pearson(rejected, of)
    return {"rejected": rejected, "of": of, "interval_95": [round(low, 4), round(high, 4)]}


if __name__ == "__main__":
    sys.exit(main())
