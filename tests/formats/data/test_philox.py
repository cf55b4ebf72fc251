from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from tallystick.formats.data.step_program import step_key, step_seed
from tallystick.programs.random_words import permutation, sample, words

VECTORS = Path(__file__).parents[3] / "vectors" / "philox"
KNOWN: list[dict[str, list[str]]] = json.loads((VECTORS / "random123.json").read_text())
OWN: list[dict[str, Any]] = json.loads((VECTORS / "words.json").read_text())
STEPS: list[dict[str, Any]] = json.loads((VECTORS / "steps.json").read_text())["steps"]
MASK = 2**64 - 1
KEYS = st.binary(min_size=32, max_size=32)


def key_bytes(*pair: int) -> bytes:
    return b"".join(word.to_bytes(8, "little") for word in pair)


def philox_block(counter: int, key: bytes) -> list[int]:
    """Philox4x64-10 from the paper's definition (Salmon et al. 2011, §3.3), one block in plain integers."""
    c0, c1, c2, c3 = (counter >> 64 * place & MASK for place in range(4))
    k0, k1 = (int.from_bytes(key[start : start + 8], "little") for start in (0, 8))
    for _ in range(10):
        first, second = 0xD2E7470EE14C6C93 * c0, 0xCA5A826395121157 * c2
        c0, c1, c2, c3 = second >> 64 ^ c1 ^ k0, second & MASK, first >> 64 ^ c3 ^ k1, first & MASK
        k0, k1 = (k0 + 0x9E3779B97F4A7C15) & MASK, (k1 + 0xBB67AE8584CAA73B) & MASK
    return [c0, c1, c2, c3]


@pytest.mark.parametrize("case", KNOWN, ids=lambda case: case["counter"][0])
def test_a_block_is_the_one_random123_publishes(case: dict[str, list[str]]) -> None:
    counter = sum(int(word, 16) << 64 * place for place, word in enumerate(case["counter"]))
    key = key_bytes(*(int(word, 16) for word in case["key"]))
    expected = [int(word, 16) for word in case["words"]]
    assert words(key, 4, start=4 * counter).tolist() == expected == philox_block(counter, key)


@pytest.mark.parametrize("case", STEPS, ids=lambda case: f"{case['seed']} {case['step']}")
def test_the_stream_of_a_step_is_that_of_the_vectors(case: dict[str, Any]) -> None:
    key = step_key(case["seed"], case["step"])
    assert key.hex() == case["key"]
    assert [f"{word:016x}" for word in words(key, 4)] == case["words"]
    assert bytes(step_seed(case["seed"], case["step"]).data) == key[:16]


@pytest.mark.parametrize("case", OWN, ids=lambda case: case["what"])
def test_words_permutation_and_sample_are_those_of_the_vectors(case: dict[str, Any]) -> None:
    key = bytes.fromhex(case["key"])
    assert [f"{word:016x}" for word in words(key, 6)] == case["first_words"]
    assert [f"{word:016x}" for word in words(key, 3, start=1_000_003)] == case["words_from_1000003"]
    assert [f"{word:016x}" for word in words(key, 3, start=2**66)] == case["words_from_2_to_66"]
    assert permutation(key, 16).tolist() == case["permutation_of_16"]
    assert sample(key, 1000, 5).tolist() == case["sample_of_5_from_1000"]


@given(KEYS, st.integers(0, 2**70), st.integers(0, 12))
@settings(deadline=None, max_examples=60)
def test_any_word_can_be_addressed_alone(key: bytes, start: int, count: int) -> None:
    expected = [philox_block(place // 4, key)[place % 4] for place in range(start, start + count)]
    found = words(key, count, start)
    assert found.dtype == np.uint64
    assert found.tolist() == expected


@given(KEYS, st.integers(0, 300))
@settings(deadline=None, max_examples=40)
def test_a_permutation_holds_every_number_once_in_the_order_of_the_words(key: bytes, count: int) -> None:
    order, drawn = permutation(key, count), words(key, count).tolist()
    assert sorted(order.tolist()) == list(range(count))
    assert order.tolist() == sorted(range(count), key=lambda index: drawn[index])


@given(KEYS, st.integers(0, 200), st.data())
@settings(deadline=None, max_examples=40)
def test_a_sample_is_the_sorted_start_of_the_permutation(key: bytes, population: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(0, population))
    assert sample(key, population, count).tolist() == sorted(permutation(key, population).tolist()[:count])


def test_only_the_first_sixteen_bytes_are_the_key() -> None:
    key = bytes(range(32))
    assert words(key, 4).tolist() == words(key[:16], 4).tolist() != words(key[1:], 4).tolist()


def test_a_short_key_and_a_sample_beyond_the_population_are_our_own_mistakes() -> None:
    with pytest.raises(AssertionError):
        words(bytes(15), 1)
    with pytest.raises(AssertionError):
        sample(bytes(16), 3, 4)
