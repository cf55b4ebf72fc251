"""Runs opened layers again from the opened states of the layer before, and asks whether they are as near as one stack.

Over many layers, rounding adds up until it hides a few steps of training. In one layer from an exact input there is
little of it, and most of that is the same on every stack: kernels differ in a few elements, other weights in most. So
the claimed rows are compared with those of the verifier's own stacks, in units of how far these lie from a run in F32.
An honest provider of the same library lies near one of them. Nobody knows how near a library with other kernels lies:
there the distance decides nothing, and the report says what is not excluded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from tallystick.answers.distance_limits import FingerprintRule
from tallystick.answers.report import CheckLog
from tallystick.answers.states import StatesChallenge, opened_layers
from tallystick.tolerances.tolerance import Finding
from tallystick.transcripts.receipt import EngineStatement, Receipt
from tallystick.workloads.language_model import LanguageModel, Rows

NAME: Final = "rerun"
MEASURED: Final = ("transformers", "cpu", "native")
"""Engine, device and cache of the providers on which the limit was measured."""


def judge_reruns(
    log: CheckLog,
    receipt: Receipt,
    challenge: StatesChallenge,
    tokens: Sequence[int],
    models: tuple[LanguageModel, LanguageModel],
    rule: FingerprintRule,
) -> None:
    """Compare each layer opened in full together with the one before; `models` are the promised one and that in F32.

    Raises `ProofError` for a wrong opening.
    """
    card, states = models[0].card, receipt.states
    allowed = rule.rounding_for(card).get("layer")
    if states is None or not states.prompt or states.dtype != card.dtype or allowed is None:
        return
    opened = opened_layers(challenge, states)
    given = {layer - 1: opened.get(layer - 1, opened[layer]) for layer in opened if layer == 0 or layer - 1 in opened}
    given = {layer: rows for layer, rows in given.items() if layer + 1 < card.layers}
    if not given:
        return
    near, wide = [*models[0].reruns(tokens, given)], next(models[1].reruns(tokens, given), {})
    for layer in sorted(each + 1 for each in given) if near and wide else ():
        ratio = nearest(opened[layer], [each[layer] for each in near], wide[layer])
        known = is_measured(receipt.engine)
        detail = f"of own rounding from the nearest of {len(near)} own stacks, run from the layer before"
        where = f"layer {layer}, {len(opened[layer])} rows"
        log.add(Finding(ratio, allowed, NAME, where, detail, advisory=not known))
        if not known and not ratio <= allowed:
            log.not_checked.append(
                f"{NAME}: small changes of weights: layer {layer} lies {ratio:.2f} of own rounding away, and how far "
                f"{receipt.engine.name} on {receipt.engine.device} does was not measured"
            )


def is_measured(engine: EngineStatement) -> bool:
    """Whether the limit was measured on providers like this one; its word makes the check no milder than none."""
    return (engine.name, engine.device, engine.kv_cache) == MEASURED


def nearest(claimed: Rows, near: Sequence[Rows], wide: Rows) -> float:
    """The least distance of claimed rows [tokens, width] from own ones, in units of how far these lie from F32.

    Rows count relative to their norm, so that no large row decides. NaN is infinite.
    """
    size = np.maximum(np.linalg.norm(wide.astype(np.float64), axis=1, keepdims=True), 1e-300)

    def ratio(own: Rows) -> float:
        if own.shape != claimed.shape:
            return math.inf
        away, rounding = ((each.astype(np.float64) - own) / size for each in (claimed, wide))
        found = float(np.linalg.norm(away)) / max(float(np.linalg.norm(rounding)), 1e-300)
        return math.inf if math.isnan(found) else found

    return min(map(ratio, near))
