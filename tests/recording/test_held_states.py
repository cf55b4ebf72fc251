"""States are held for challenges by bytes, whatever the number of answers."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from tallystick.core.errors import UnavailableError
from tallystick.formats.hidden_states import CommittedStates, commit_states
from tallystick.recording.receipts import HASH_BYTES, HeldStates

ANSWERS = 40


def states_of(rows: int, layers: int = 3, dtype: str = "float32") -> CommittedStates:
    values = np.random.default_rng(rows).standard_normal((rows, 64)).astype(dtype)
    return commit_states(dict.fromkeys(range(layers), values), tuple(range(layers)), 8)


def test_forty_answers_stay_within_the_limit_and_the_latest_stay() -> None:
    held, one = HeldStates(200_000), states_of(40)
    size = one.size_bytes + HASH_BYTES * len(one.leaves)
    assert size > 30_000, "forty of them are six times the limit"
    for number in range(ANSWERS):
        held.hold(f"r{number}", one)
        assert held.size_bytes <= 200_000
    assert len(held) == 200_000 // size
    assert held.size_bytes == len(held) * size
    assert held.of(f"r{ANSWERS - 1}") is one
    with pytest.raises(UnavailableError, match=r"request r0 are not held.*200000 bytes"):
        held.of("r0")


def test_an_answer_larger_than_the_limit_pushes_nobody_out() -> None:
    held = HeldStates(40_000)
    held.hold("small", states_of(4))
    held.hold("large", states_of(400))
    assert held.of("small")
    with pytest.raises(UnavailableError, match="request large"):
        held.of("large")


def test_a_request_answered_twice_counts_once() -> None:
    held = HeldStates()
    for _ in range(3):
        held.hold("r", states_of(8))
    assert len(held) == 1
    assert held.size_bytes == 3 * 8 * 64 * 4 + 3 * HASH_BYTES


def test_states_of_half_precision_take_half() -> None:
    assert states_of(8, dtype="float16").size_bytes * 2 == states_of(8).size_bytes


def test_threads_that_hold_at_once_leave_a_right_sum() -> None:
    held, one = HeldStates(50_000), states_of(8)
    threads = [
        threading.Thread(target=lambda k=k: [held.hold(f"{k}-{i}", one) for i in range(50)])  # type: ignore[misc]
        for k in range(4)
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert held.size_bytes == len(held) * (one.size_bytes + 3 * HASH_BYTES) <= 50_000
