"""Example calls of the sampler's operators."""

from __future__ import annotations

import numpy as np

from tallystick.programs.operators.tally.fixed_point import MASKED
from tests.programs.operators.examples import call

SEED = np.array([7, -9])
SEEDS = np.array([[7, -9], [3, 4]])
POSITION = np.array(5)
POSITIONS = np.array([5, 6])
LOGITS = np.random.default_rng(0).normal(0, 3, (2, 11)).astype(np.float32)
SEEN = np.random.default_rng(1).random((2, 11)) < 0.4
KEYS = np.where(SEEN, MASKED, np.random.default_rng(2).integers(-(5 << 32), 0, (2, 11)))
KEYS[:, 0] = 0
WEIGHTS = np.where(SEEN, 0, np.random.default_rng(3).integers(0, 1 << 40, (2, 11)))
SUMS = np.cumsum(WEIGHTS, 1)
TOKENS = np.array([3, -1])

EXAMPLES = {
    "tally.repetition_penalty": [
        call("tally.repetition_penalty", logits=LOGITS, seen=SEEN, penalty=1.3),
        call("tally.repetition_penalty", logits=LOGITS.astype(np.float64), seen=SEEN, penalty=0.5),
    ],
    "tally.scale_logits": [
        call("tally.scale_logits", logits=LOGITS, temperature=0.7),
        call("tally.scale_logits", logits=LOGITS[0].astype(np.float16), temperature=0.0),
    ],
    "tally.keep_top_k": [
        call("tally.keep_top_k", keys=KEYS, k=3),
        call("tally.keep_top_k", keys=KEYS, k=0),
    ],
    "tally.keep_top_p": [
        call("tally.keep_top_p", keys=KEYS, p=0.8),
        call("tally.keep_top_p", keys=KEYS[0], p=1.0),
    ],
    "tally.keep_min_p": [call("tally.keep_min_p", keys=KEYS, p=0.1)],
    "tally.softmax_weights": [call("tally.softmax_weights", keys=KEYS)],
    "tally.cumulative_weights": [call("tally.cumulative_weights", weights=WEIGHTS)],
    "tally.select_token": [
        call("tally.select_token", cumulative=SUMS, seed=SEED, position=POSITIONS),
        call("tally.select_token", cumulative=SUMS, seed=SEEDS, position=POSITION),
    ],
    "tally.add_gumbel_noise": [
        call("tally.add_gumbel_noise", keys=KEYS, seed=SEED, position=POSITION),
        call("tally.add_gumbel_noise", keys=KEYS, seed=SEEDS, position=POSITIONS),
    ],
    "tally.select_largest": [call("tally.select_largest", keys=KEYS)],
    "tally.mark_token": [call("tally.mark_token", seen=SEEN, token=TOKENS)],
}
MALFORMED = {
    "tally.repetition_penalty": [
        call("tally.repetition_penalty", logits=LOGITS, seen=SEEN, penalty=0.0),
        call("tally.repetition_penalty", logits=LOGITS, seen=SEEN[0], penalty=1.5),
        call("tally.repetition_penalty", logits=KEYS, seen=SEEN, penalty=1.5),
    ],
    "tally.scale_logits": [
        call("tally.scale_logits", logits=LOGITS, temperature=-1.0),
        call("tally.scale_logits", logits=LOGITS[:, :0], temperature=1.0),
        call("tally.scale_logits", logits=LOGITS, temperature=float("nan")),
    ],
    "tally.keep_top_k": [
        call("tally.keep_top_k", keys=KEYS, k=-1),
        call("tally.keep_top_k", keys=LOGITS, k=1),
    ],
    "tally.keep_top_p": [call("tally.keep_top_p", keys=KEYS, p=1.5), call("tally.keep_top_p", keys=SEEN, p=0.5)],
    "tally.keep_min_p": [call("tally.keep_min_p", keys=KEYS, p=-0.1), call("tally.keep_min_p", keys=LOGITS, p=0.5)],
    "tally.softmax_weights": [call("tally.softmax_weights", keys=LOGITS)],
    "tally.cumulative_weights": [call("tally.cumulative_weights", weights=np.array(3))],
    "tally.select_token": [
        call("tally.select_token", cumulative=SUMS, seed=SEED[:1], position=POSITION),
        call("tally.select_token", cumulative=SUMS, seed=SEED, position=POSITIONS[:1]),
    ],
    "tally.add_gumbel_noise": [
        call("tally.add_gumbel_noise", keys=KEYS, seed=SEED.astype(np.int32), position=POSITION),
        call("tally.add_gumbel_noise", keys=KEYS, seed=SEED, position=POSITION.astype(np.int32)),
    ],
    "tally.select_largest": [call("tally.select_largest", keys=LOGITS)],
    "tally.mark_token": [
        call("tally.mark_token", seen=KEYS, token=TOKENS),
        call("tally.mark_token", seen=SEEN, token=TOKENS[:1]),
    ],
}
