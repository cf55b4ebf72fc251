"""Example calls of fused updates."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.programs.operators.examples import Bf16, Call, call

SETTINGS = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.01, "decoupled": True, "maximize": False}


def update(*shape: int, steps: int = 3, **changes: Any) -> Call:
    """A call with weights, a gradient and slots of one shape."""
    drawn = np.random.default_rng([7, *shape]).standard_normal((4, *shape)).astype(np.float32)
    tensors = {"weight": drawn[0] / 20, "gradient": drawn[1], "exp_avg": drawn[2] / 10, "exp_avg_sq": drawn[3] ** 2}
    counted = {"step": np.asarray(steps, np.float32), "learning_rate": np.asarray(1e-3)}
    return call("tally.fused_adam", **tensors | counted | SETTINGS | changes)


def narrow(*shape: int) -> dict[str, Bf16]:
    """The same tensors in BF16."""
    given = update(*shape).arguments
    return {name: Bf16(given[name]) for name in ("weight", "gradient", "exp_avg", "exp_avg_sq")}


EXAMPLES = {
    "tally.fused_adam": [
        update(4, 16),
        update(37),  # no multiple of a vector register
        update(5, steps=1, decoupled=False),
        update(5, weight_decay=0.0, maximize=True),
        update(9, beta1=0.3, beta2=0.5),
        update(20, **narrow(20)),
        update(0),
    ],
}
MALFORMED = {
    "tally.fused_adam": [
        update(5, gradient=np.zeros(4, np.float32)),
        update(5, step=np.asarray(3)),
        update(5, learning_rate=np.asarray(1e-3, np.float32)),
        update(5, **{name: np.zeros(5, np.int64) for name in ("weight", "gradient", "exp_avg", "exp_avg_sq")}),
    ],
}
