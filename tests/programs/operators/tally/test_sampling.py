"""Each operator of the sampler does what its line says, on small rows that can be checked by eye."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tallystick.core.canonical_json import encode
from tallystick.core.digests import digest, digest_bytes
from tallystick.core.errors import MalformedError
from tallystick.core.tensors import Tensor, TensorSpec
from tallystick.programs.operators.arrays import NUMPY
from tallystick.programs.operators.batches import Batched, Batches
from tallystick.programs.operators.definition import operator
from tallystick.programs.operators.tally.fixed_point import LOWEST, MASKED, ONE, WEIGHT_ONE, gumbel, logit_scale
from tallystick.programs.operators.values import Values
from tallystick.programs.random_words import position_words, seed_words, words
from tallystick.verdicts.sampling.filters import ARRAYS

ALGEBRA = Values(NUMPY)
NAN, INF = np.nan, np.inf


def run(name: str, *operands: Any, **attributes: Any) -> npt.NDArray[Any]:
    described = operator(f"tally.{name}")
    names = [parameter.name for parameter in described.parameters if parameter.is_operand]
    loaded = {each: ALGEBRA.load(Tensor.of(np.asarray(x))) for each, x in zip(names, operands, strict=True)}
    (result,) = described.read(ALGEBRA, {**loaded, **attributes})
    return np.asarray(result.array)


def logits(*numbers: float) -> npt.NDArray[np.float32]:
    return np.array(numbers, np.float32)


def test_a_penalty_lowers_what_was_seen_whatever_its_sign() -> None:
    found = run("repetition_penalty", logits(2, 2, -2, -2, 0), np.array([1, 0, 1, 0, 1], np.bool_), penalty=2.0)
    assert found.tolist() == [1, 2, -4, -2, 0]


def test_a_penalised_logit_is_an_exact_product_of_two_float32() -> None:
    x = np.random.default_rng(0).normal(size=50).astype(np.float32)
    found = run("repetition_penalty", x, np.ones(50, np.bool_), penalty=1.3)
    above, below = np.float64(np.float32(1 / 1.3)), np.float64(np.float32(1.3))
    assert (found == np.where(x > 0, x * above, x * below)).all()


def test_a_key_is_a_logarithm_to_base_two_below_the_largest() -> None:
    keys = run("scale_logits", logits(0, -np.log(2), -3 * np.log(2)), temperature=1.0)
    assert np.abs(keys - np.array([0, -ONE, -3 * ONE])).max() < 400  # the logits are rounded to float32
    assert run("scale_logits", logits(0, -1), temperature=0.5)[1] == -int(np.ceil(2 * logit_scale(1.0)))


@pytest.mark.parametrize("temperature", [0.0, 5e-324, 1e-30, 0.7, 1000.0])
def test_only_the_largest_logit_has_key_0(temperature: float) -> None:
    x = np.nextafter(np.float32(3), np.float32(0))
    keys = run("scale_logits", logits(3, x, 3, -7), temperature=temperature)
    assert (keys == 0).tolist() == [True, False, True, False]
    assert keys.min() >= LOWEST


def test_nan_is_out_and_infinity_is_the_largest_number() -> None:
    keys = run("scale_logits", logits(NAN, INF, -INF, np.finfo(np.float32).max, 0), temperature=1.0)
    assert keys.tolist() == [MASKED, 0, MASKED, 0, LOWEST]
    assert run("scale_logits", logits(NAN, -INF), temperature=1.0).tolist() == [MASKED, MASKED]


def test_numbers_that_some_devices_flush_are_zero() -> None:
    keys = run("scale_logits", logits(0, -1e-39, 1e-39, -0.0), temperature=1.0)
    assert keys.tolist() == [0, 0, 0, 0]


def test_a_finite_logit_is_never_out() -> None:
    largest = np.finfo(np.float32).max
    assert run("scale_logits", logits(-largest, largest), temperature=1e-30).tolist() == [LOWEST, 0]
    low = run("repetition_penalty", logits(-largest, -INF), np.ones(2, np.bool_), penalty=100.0)
    assert run("scale_logits", low, temperature=1.0).tolist() == [0, MASKED]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_floats_of_every_width_have_the_same_keys(dtype: Any) -> None:
    x = np.array([0.5, -1.25, INF, 3, NAN], dtype)
    found = run("scale_logits", x, temperature=1.0)
    assert found.argmax() == 2
    assert (found[4], (found[[0, 1, 3]] == LOWEST).all()) == (MASKED, True)
    assert (
        run("scale_logits", x[[0, 1, 3]], temperature=1.0)
        == run("scale_logits", x[[0, 1, 3]].astype(np.float32), temperature=1.0)
    ).all()


@pytest.mark.parametrize(("k", "kept"), [(0, 6), (1, 1), (2, 2), (3, 3), (4, 4), (6, 6), (100, 6)])
def test_top_k_keeps_exactly_k_of_equals_the_first(k: int, kept: int) -> None:
    keys = np.array([-5, 0, -5, 0, -9, -5])
    found = run("keep_top_k", keys, k=k)
    assert (found != MASKED).sum() == kept
    expected = sorted(range(6), key=lambda i: (-keys[i], i))[:kept]
    assert np.flatnonzero(found != MASKED).tolist() == sorted(expected)


@pytest.mark.parametrize(
    ("p", "kept"),
    [(0.0, [1]), (0.25, [1]), (0.3, [1]), (0.34, [1, 3]), (0.66, [1, 3]), (0.7, [0, 1, 3]), (0.999, [0, 1, 2, 3])],
)
def test_top_p_keeps_the_shortest_front_that_weighs_p(p: float, kept: list[int]) -> None:
    """Weights 1/6, 1/3, 1/6, 1/3 and nothing."""
    keys = np.array([-ONE, 0, -ONE, 0, -50 * ONE])
    found = run("keep_top_p", keys, p=p)
    assert (run("keep_top_p", keys, p=1.0) == keys).all()
    assert np.flatnonzero(found != MASKED).tolist() == kept


@pytest.mark.parametrize(("p", "kept"), [(0.0, 4), (0.24, 4), (0.25, 3), (0.5, 2), (0.51, 1), (1.0, 1)])
def test_min_p_keeps_what_weighs_p_of_the_heaviest(p: float, kept: int) -> None:
    keys = np.array([0, -ONE, -2 * ONE + 2, -2 * ONE - 90 * (1 << 20)])
    assert (run("keep_min_p", keys, p=p) != MASKED).sum() == kept


def test_masked_tokens_stay_masked_and_weigh_nothing() -> None:
    keys = np.array([MASKED, 0, MASKED, -ONE])
    for name, attributes in (("keep_top_k", {"k": 3}), ("keep_top_p", {"p": 0.99}), ("keep_min_p", {"p": 0.0})):
        assert run(name, keys, **attributes).tolist() == keys.tolist()
    assert run("softmax_weights", keys).tolist() == [0, WEIGHT_ONE, 0, WEIGHT_ONE // 2]
    noisy = run("add_gumbel_noise", keys, np.array([1, 2]), np.array(0))
    assert noisy[[0, 2]].tolist() == [MASKED, MASKED]


def test_where_nothing_is_left_there_is_no_token() -> None:
    masked, seed, position = np.full(3, MASKED), np.array([1, 2]), np.array(0)
    assert run("select_largest", masked) == -1
    assert run("select_token", np.zeros(3, np.int64), seed, position) == -1
    assert run("select_largest", np.array([MASKED, MASKED + 1])) == 1


def test_of_equal_keys_the_first_is_selected() -> None:
    assert run("select_largest", np.array([[-3, -1, -1], [0, 0, 0]])).tolist() == [1, 0]


def test_the_threshold_is_the_exact_product_of_word_and_total() -> None:
    key = digest_bytes(digest("sampler", encode([7])))[:16]
    seed = np.frombuffer(key, "<i8").astype(np.int64)
    weights = np.random.default_rng(1).integers(0, 1 << 41, (40, 300))
    sums = np.cumsum(weights, 1)
    found = run("select_token", sums, seed, np.arange(40))
    for row, position in zip(sums, range(40), strict=True):
        word = int(words(key, 1, position << 20)[0])
        threshold = (word >> 2) * int(row[-1]) >> 62
        assert found[position] == next(i for i, total in enumerate(row) if total > threshold)


def test_every_row_may_have_a_seed_and_a_position() -> None:
    keys, rng = np.zeros((3, 9), np.int64), np.random.default_rng(2)
    seeds, positions = rng.integers(-(1 << 62), 1 << 62, (3, 2)), np.array([0, 5, 1 << 30])
    together = run("add_gumbel_noise", keys, seeds, positions)
    for row in range(3):
        assert (together[row] == run("add_gumbel_noise", keys[row], seeds[row], positions[row])).all()
    shared = run("add_gumbel_noise", keys, seeds[0], positions[0])
    assert (shared == together[0]).all()


def test_noise_is_that_of_the_words_of_the_stream() -> None:
    found = run("add_gumbel_noise", np.zeros(301, np.int64), seed_words(3), np.array(11))
    assert (found == gumbel(ARRAYS, position_words(3, 11, 301))).all()


def test_a_marked_token_is_seen() -> None:
    seen = np.array([[1, 0, 0], [0, 0, 0]], np.bool_)
    assert run("mark_token", seen, np.array([2, -1])).tolist() == [[True, False, True], [False, False, False]]


@pytest.mark.parametrize("name", ["scale_logits", "keep_top_k", "keep_top_p", "softmax_weights", "select_largest"])
def test_examples_of_a_batch_stay_apart(name: str) -> None:
    described = operator(f"tally.{name}")
    dtype = "F32" if name == "scale_logits" else "I64"
    attributes = {"scale_logits": {"temperature": 1.0}, "keep_top_k": {"k": 2}, "keep_top_p": {"p": 0.5}}.get(name, {})
    operand = described.parameters[0].name
    (result,) = described.read(Batches(3), {operand: Batched(TensorSpec(dtype, (3, 11)), 0), **attributes})
    assert result.axis == 0


@pytest.mark.parametrize("temperature", [-1.0, NAN, INF])
def test_a_temperature_is_a_finite_number_from_0_on(temperature: float) -> None:
    with pytest.raises(MalformedError, match="temperature"):
        logit_scale(temperature)


def test_a_vocabulary_has_at_most_a_million_tokens() -> None:
    with pytest.raises(MalformedError, match="vocabulary"):
        run("scale_logits", np.zeros((1 << 20) + 1, np.float32), temperature=1.0)
    assert run("scale_logits", np.zeros(1 << 20, np.float32), temperature=1.0).shape == (1 << 20,)
