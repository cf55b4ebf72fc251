"""A nonce chooses elements that nobody can foresee, each equally often."""

from __future__ import annotations

from collections import Counter

import numpy as np

from tallystick.verdicts.leaf.judge import chosen_places


def test_a_nonce_chooses_places_that_nobody_can_foresee() -> None:
    first = chosen_places(b"nonce", "leaf/n1", 10**6, 64)
    assert np.array_equal(first, chosen_places(b"nonce", "leaf/n1", 10**6, 64))
    assert len(set(first.tolist()) & set(chosen_places(b"nonce", "leaf/n2", 10**6, 64).tolist())) <= 1
    assert len(set(first.tolist()) & set(chosen_places(b"other", "leaf/n1", 10**6, 64).tolist())) <= 1
    assert (first >= 0).all()
    assert (first < 10**6).all()
    assert np.array_equal(first, np.unique(first))


def test_the_named_place_is_always_among_them() -> None:
    assert 123456 in chosen_places(b"nonce", "leaf", 10**6, 8, named=123456)
    assert len(chosen_places(b"nonce", "leaf", 0, 8)) == 0


def test_every_place_is_chosen_equally_often() -> None:
    counts = Counter(int(p) for n in range(400) for p in chosen_places(n.to_bytes(2, "big"), "leaf", 50, 8))
    assert len(counts) == 50
    expected = 400 * 50 * (1 - (1 - 1 / 50) ** 8) / 50
    assert max(abs(count - expected) for count in counts.values()) < 5 * expected**0.5
