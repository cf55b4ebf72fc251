#!/usr/bin/env python3
"""What one opened layer shows: run again from the states of the layer before, and compared with the verifier's own.

Usage: python -m research.real.opened MODEL ANSWERS [--out FILE]

ANSWERS is a folder that `research.real.power_answers … --opened` filled: the states of all blocks, of prompt and
answer. Every layer of every answer is run again. Of each answer, the nonces of `DRAWN` challenges draw the layers on
which the whole verdict is found. `research.real.power judge` puts the figures into page and tables.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from research.real.power_answers import named_answers
from research.real.serving import Answered
from tallystick.audits.answers.limits import FingerprintRule
from tallystick.audits.answers.states import judge_states, nearest
from tallystick.audits.answers.subject import StatesChallenge
from tallystick.core.errors import MalformedError
from tallystick.engines.torch.generation.language_models import TorchLanguageModel, load_language_model
from tallystick.engines.torch.tensors import to_tensor
from tallystick.formats.hidden_states import commit_states, drawn_layer, judged_layers
from tallystick.tally.calibration.stacks import machine

DATA: Final = Path("docs/data/real_opened.json")
DRAWN: Final = 4
BLOCK: Final = 32
Judged = dict[str, Any]


def main() -> int:
    """Judge and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("answers", type=Path)
    parser.add_argument("--out", type=Path, default=DATA)
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = load_language_model(options.model, "BF16")
    found: dict[str, list[Judged]] = defaultdict(list)
    for name, answered in named_answers(options.answers):
        print(name, file=sys.stderr, flush=True)
        judged = judge(model, answered)
        found[answered.way if answered.way != "honest" else f"honest: {answered.stack}"].append(judged)
    ways = {way: found[way] for way in sorted(found)}
    figures = {"machine": machine(), "software": f"torch {torch.__version__}", "drawn": DRAWN, "ways": ways}
    options.out.write_text(json.dumps(figures, ensure_ascii=False) + "\n")
    return 0


def judge(model: TorchLanguageModel, found: Answered) -> Judged:
    """Of one answer: how near each layer is to an own stack, and for each challenge its layer and other objections."""
    tokens = (*found.asked.prompt, *found.answer[:-1])
    told: Judged = {"tokens": len(found.answer), "ratios": [], "drawn": []}
    claimed = {layer: rows.float().numpy() for layer, rows in sorted(found.rows.items())}
    if len(claimed[0]) != len(tokens):
        return told | {"other_length": True}
    told["ratios"] = [round(each, 4) for each in ratios_of(model, tokens, claimed)]
    states = commit_states({layer: to_tensor(found.rows[layer]) for layer in claimed}, [*claimed], BLOCK, prompt=True)
    own = model.prefill(tokens, 0, [*claimed]).hidden
    for number in range(DRAWN):
        nonce = hashlib.sha256(f"{states.statement.root} {number}".encode()).digest()[:16]
        layer = drawn_layer(nonce, states.statement, judged_layers(states.statement))
        assert layer is not None
        rule, card = FingerprintRule(), model.card
        try:
            challenge = StatesChallenge(nonce, 1, states.open(nonce, layer=layer), layer)
            compared = judge_states(challenge, states.statement, own, rule, card)
            far = not all(each.agrees for each in compared)
        except MalformedError:
            far = True
        told["drawn"].append([layer, far])
    return told


def ratios_of(model: TorchLanguageModel, tokens: tuple[int, ...], claimed: Mapping[int, np.ndarray]) -> list[float]:
    """How far each layer lies from the nearest own stack, in units of own rounding."""
    wide = model.widened()
    assert wide is not None
    given = {layer - 1: claimed.get(layer - 1, claimed[layer]) for layer in claimed}
    near, true = [*model.reruns(tokens, given)], next(wide.reruns(tokens, given))
    return [nearest(rows, [each[layer] for each in near], true[layer]) for layer, rows in claimed.items()]


if __name__ == "__main__":
    sys.exit(main())
