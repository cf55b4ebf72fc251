from __future__ import annotations

import numpy as np
import pytest

from tallystick.core.errors import MalformedError
from tallystick.formats.data.samples import ExampleDataset, TokenDataset

TOKENS = np.arange(11, dtype="<u2")


def test_targets_are_the_inputs_one_token_further() -> None:
    dataset = TokenDataset(TOKENS, sequence=5)
    batch = dataset.batch(np.array([1, 0]))
    assert dataset.count == 2
    assert batch["inputs"].tolist() == [[5, 6, 7, 8, 9], [0, 1, 2, 3, 4]]
    assert batch["targets"].tolist() == [[6, 7, 8, 9, 10], [1, 2, 3, 4, 5]]
    assert {array.dtype for array in batch.values()} == {np.dtype(np.int64)}


@pytest.mark.parametrize(("tokens", "windows"), [(0, 0), (1, 0), (5, 0), (6, 1), (10, 1), (11, 2)])
def test_a_window_needs_one_token_more_than_its_length(tokens: int, windows: int) -> None:
    assert TokenDataset(TOKENS[:tokens], sequence=5).count == windows


def test_examples_are_stacked_in_the_order_asked_for() -> None:
    dataset = ExampleDataset(np.arange(3, dtype=np.float32).reshape(3, 1), np.array([5, 6, 7]))
    batch = dataset.batch(np.array([2, 0]))
    assert dataset.count == 3
    assert (batch["images"].tolist(), batch["labels"].tolist()) == ([[2.0], [0.0]], [7, 5])


@pytest.mark.parametrize("index", [-1, 2])
def test_a_sample_that_does_not_exist_is_refused(index: int) -> None:
    for dataset in (
        TokenDataset(TOKENS, 5),
        ExampleDataset(np.zeros((2, 1), np.float32), np.zeros(2, np.int64)),
    ):
        with pytest.raises(MalformedError, match=f"sample {index}"):
            dataset.batch(np.array([0, index]))
