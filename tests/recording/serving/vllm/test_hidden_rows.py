"""Rows of running requests in a fixed amount of memory."""

from __future__ import annotations

import pytest
import torch

from tallystick.core.errors import UnavailableError
from tallystick.recording.serving.vllm.hidden_rows import HiddenRows

WIDTH = 4
ROW_BYTES = 2 * WIDTH * 4


def passed(number: int, count: int) -> dict[int, torch.Tensor]:
    """The rows of a pass, all different: two layers of `count` rows."""
    first = torch.arange(count * WIDTH, dtype=torch.float32).view(count, WIDTH) + 100 * number
    return {1: first, 5: -first}


def test_rows_come_back_by_request_and_are_freed() -> None:
    rows = HiddenRows(ROW_BYTES * 8)
    for number in range(3):
        rows.add(["a", "b"], [number, number], passed(number, 2))
    taken = rows.take("b", 3)
    assert torch.equal(taken[1], torch.stack([passed(number, 2)[1][1] for number in range(3)]))
    assert torch.equal(taken[5], -taken[1])
    assert rows.requests == ("a",)
    for number in range(5):  # the freed space and the rest
        rows.add(["c"], [number], passed(number, 1))
    assert rows.requests == ("a", "c")


def test_a_later_row_at_a_position_takes_the_place_of_the_one_before() -> None:
    rows = HiddenRows(ROW_BYTES * 8)
    for number, position in enumerate((0, 0, 1, 1, 2)):
        rows.add(["a"], [position], passed(number, 1))
    assert rows.take("a", 3)[1][:, 0].tolist() == [100.0, 300.0, 400.0]


def test_the_request_that_was_added_to_longest_ago_makes_space() -> None:
    rows = HiddenRows(ROW_BYTES * 4)
    for number in range(2):
        rows.add(["old"], [number], passed(number, 1))
    for number in range(3):
        rows.add(["new"], [number], passed(number, 1))
    rows.add(["old"], [2], passed(9, 1))  # its first rows are gone: it gets no more
    assert rows.requests == ("new",)
    with pytest.raises(UnavailableError, match="0 rows are held for 3 tokens"):
        rows.take("old", 3)
    assert rows.take("new", 3)[1][:, 0].tolist() == [0.0, 100.0, 200.0]


def test_a_pass_that_does_not_fit_keeps_what_fits() -> None:
    rows = HiddenRows(ROW_BYTES * 2)
    rows.add(["a", "b", "c"], [0, 0, 0], passed(0, 3))
    assert rows.requests == ("b", "c")
    assert [rows.take(name, 1)[1][0, 0].item() for name in ("b", "c")] == [4.0, 8.0]


def test_rows_of_a_request_that_was_taken_or_dropped_are_left_out() -> None:
    rows = HiddenRows(ROW_BYTES * 8)
    rows.add(["a", "b"], [0, 0], passed(0, 2))
    rows.take("a", 1)
    rows.drop("b")
    rows.drop("nobody")
    rows.add(["a", "b"], [1, 1], passed(1, 2))  # a pass that was under way
    assert rows.requests == ()
    with pytest.raises(UnavailableError, match="held for 1"):
        rows.take("a", 1)


def test_the_largest_batch_is_that_of_the_request_s_own_passes() -> None:
    rows = HiddenRows(ROW_BYTES * 8)
    rows.add(["a"], [0], passed(0, 1))
    rows.add(["a", "b"], [1, 0], passed(1, 2), batch=4)
    rows.add(["b"], [1], passed(2, 1))
    assert [rows.largest(name) for name in ("a", "b")] == [4, 4]
    rows.drop("a")
    rows.add(["a"], [0], passed(3, 1))
    assert rows.largest("a") == 1
    with pytest.raises(UnavailableError, match="nobody"):
        rows.largest("nobody")
