"""Logits as a layer: which entries, and what is taken off."""

from __future__ import annotations

import numpy as np
import pytest

from tallystick.formats.fingerprints import PUBLIC_SEED
from tallystick.verdicts.fingerprints import ENTRIES_MAX, logit_entries, logit_rows

torch = pytest.importorskip("torch")


def test_a_large_vocabulary_is_sampled_by_the_seed_and_a_small_one_is_whole() -> None:
    drawn = logit_entries(PUBLIC_SEED, 49_152)
    assert len(set(drawn.tolist())) == ENTRIES_MAX
    assert (np.diff(drawn) > 0).all()
    assert 0 <= drawn[0] < drawn[-1] < 49_152
    assert drawn.tolist() != logit_entries("00" * 32, 49_152).tolist()
    assert logit_entries(PUBLIC_SEED, 100).tolist() == [*range(100)]


def test_what_is_common_to_a_row_is_no_part_of_it() -> None:
    logits = np.random.default_rng(0).normal(size=(3, 2000)).astype(np.float32)
    moved = logits + np.array([[7.0], [-3.0], [0.0]], np.float32)
    assert np.allclose(logit_rows(logits, PUBLIC_SEED), logit_rows(moved, PUBLIC_SEED), atol=1e-5)
    assert logit_rows(logits, PUBLIC_SEED).shape == (3, ENTRIES_MAX)


def test_tensors_give_the_same_rows_as_arrays() -> None:
    from tallystick.engines.torch.generation import layer_tap as fingerprints

    logits = np.random.default_rng(1).normal(size=(2, 3, 1500)).astype(np.float32)
    found = fingerprints.logit_rows(torch.from_numpy(logits), PUBLIC_SEED).numpy()
    assert np.allclose(found[1], logit_rows(logits[1], PUBLIC_SEED), atol=1e-6)
