"""The digest of a state of 300 equal tensors ÷ its renewal after one of them changed.

Given the previous digests and the names that changed, the other tensors are not read again: 300 is the most there is
to gain. Both arms run in one thread; the median of per-round ratios by CPU time.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np

from benchmarks.figure import Figure, Goal
from benchmarks.measure import interval, median_ratio, take_rounds
from tallystick.core.tensor_digests import digest_state
from tallystick.core.tensors import Tensor

TENSORS = 300


def figures(quick: bool) -> Iterator[Figure]:
    size, count, rng = (1 << 18 if quick else 1 << 22), (4 if quick else 12), random.Random(4)
    values = np.random.default_rng(4).integers(0, 256, size * TENSORS, np.uint8)
    state = {f"tensor.{index:03d}": Tensor.of(part) for index, part in enumerate(np.split(values, TENSORS))}
    known = digest_state(state, threads=1)
    assert known.digest  # the digests of the other tensors are known by now
    arms = {
        "full": lambda: digest_state(state, threads=1).digest,
        "renewed": lambda: digest_state(state, threads=1, previous=known, changed={"tensor.007"}).digest,
    }
    rounds = take_rounds(arms, count, rng)
    value = interval(rounds, median_ratio("full", "renewed", "cpu"), rng)
    details = {"tensors": TENSORS, "bytes_each": size, "renewed_ms": 1e3 * min(r["renewed"].cpu for r in rounds)}
    what = "digest of 300 tensors ÷ renewal after one changed"
    yield Figure("incremental", what, value, count, "CPU", "×", Goal(250, at_most=False), details=details)
