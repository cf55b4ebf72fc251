"""Example calls of the random draws."""

from __future__ import annotations

import numpy as np

from tallystick.commitments.mt19937 import seeded
from tests.operators.examples import call

SEED = np.array([7, -9])
STATE = seeded(7)
MOVE = np.array([-1, 3])

EXAMPLES = {
    "tally.philox_uniform": [
        call("tally.philox_uniform", seed=SEED, offset=0, size=(3, 5), dtype="F32"),
        call("tally.philox_uniform", seed=SEED, offset=2**40 + 3, size=(2, 0), dtype="F64"),
        call("tally.philox_uniform", seed=SEED, offset=6, size=(9,), dtype="BF16"),
    ],
    "tally.dropout_mask": [
        call("tally.dropout_mask", seed=SEED, offset=0, size=(3, 5), keep=0.9, dtype="F32"),
        call("tally.dropout_mask", seed=SEED, offset=5, size=(), keep=0.0, dtype="BOOL"),
    ],
    "tally.mt19937_move": [
        call("tally.mt19937_move", state=STATE, move=MOVE),
        call("tally.mt19937_move", state=STATE, move=np.array([5, 1000])),
    ],
    "tally.mt19937_mask": [
        call("tally.mt19937_mask", state=STATE, size=(3, 5), keep=0.9, dtype="F32"),
        call("tally.mt19937_mask", state=STATE, size=(), keep=0.0, dtype="BOOL"),
    ],
    "tally.mcg31_mask": [
        call("tally.mcg31_mask", state=STATE, size=(3, 5), keep=0.9, dtype="F32"),
        call("tally.mcg31_mask", state=STATE, size=(7,), keep=0.5, dtype="F64"),
    ],
}
MALFORMED = {
    "tally.philox_uniform": [
        call("tally.philox_uniform", seed=SEED, offset=0, size=(3, 5), dtype="I64"),
        call("tally.philox_uniform", seed=SEED[:1], offset=0, size=(3, 5), dtype="F32"),
        call("tally.philox_uniform", seed=SEED, offset=-1, size=(3, 5), dtype="F32"),
    ],
    "tally.dropout_mask": [
        call("tally.dropout_mask", seed=SEED, offset=0, size=(3, 5), keep=1.5, dtype="F32"),
        call("tally.dropout_mask", seed=SEED, offset=0, size=(-3, 5), keep=0.5, dtype="F32"),
    ],
    "tally.mt19937_move": [call("tally.mt19937_move", state=STATE[:5], move=MOVE)],
    "tally.mt19937_mask": [
        call("tally.mt19937_mask", state=STATE, size=(3,), keep=-0.5, dtype="F32"),
        call("tally.mt19937_mask", state=STATE[:5], size=(3,), keep=0.5, dtype="F32"),
    ],
    "tally.mcg31_mask": [
        call("tally.mcg31_mask", state=STATE, size=(3,), keep=1.5, dtype="F32"),
        call("tally.mcg31_mask", state=STATE, size=(-1,), keep=0.5, dtype="F32"),
    ],
}
