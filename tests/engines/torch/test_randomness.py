"""Draws are Philox words, the same from the definition, from PyTorch and from the published stream."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional

from tallystick.core.errors import MalformedError, UnavailableError, UsageError
from tallystick.core.tensors import Tensor, TensorSpec
from tallystick.engines.torch.randomness import dropout_mask, explicit_randomness, philox_uniform, seed_tensor
from tallystick.programs.operators.arrays import NUMPY
from tallystick.programs.operators.tally import sampling as definitions
from tallystick.programs.operators.types import Types
from tallystick.programs.operators.values import Values
from tallystick.programs.random_words import words
from tests.support.array_libraries import library

KEY = bytes(range(200, 216))
DRAWS = [(0, (5,)), (7, (2, 3)), (8, ()), (4, (0, 3)), (2**40 + 1, (33,))]
DTYPES = {"F64": torch.float64, "F32": torch.float32}


@pytest.mark.parametrize("name", ["numpy", "torch"])
@pytest.mark.parametrize("dtype", sorted(DTYPES))
@pytest.mark.parametrize(("offset", "size"), DRAWS)
def test_the_definition_draws_the_bits_of_the_fast_draw(
    name: str, dtype: str, offset: int, size: tuple[int, ...]
) -> None:
    seed, algebra = seed_tensor(KEY), Values(library(name))
    held = algebra.load(Tensor.of(seed.numpy()))
    defined = definitions.philox_uniform(algebra, held, offset, size, dtype)
    fast = philox_uniform(seed, offset, list(size), DTYPES[dtype])
    assert np.array_equal(algebra.unload(defined).array(), fast.numpy())
    mask = definitions.dropout_mask(algebra, held, offset, size, 0.6, dtype)
    assert np.array_equal(algebra.unload(mask).array(), dropout_mask(seed, offset, list(size), 0.6, DTYPES[dtype]))
    assert definitions.philox_uniform(Types(), TensorSpec("I64", (2,)), offset, size, dtype) == TensorSpec(dtype, size)


def test_a_draw_is_the_leading_bits_of_the_words_of_the_stream() -> None:
    expected = [int(word) >> 11 for word in words(KEY, 6, 3)]
    drawn = philox_uniform(seed_tensor(KEY), 3, [6], torch.float64)
    assert (drawn * 2.0**53).to(torch.int64).tolist() == expected


def test_the_zero_seed_draws_the_published_vector() -> None:
    """Random123's known answers, philox4x64-10 with counter and key 0: 16554d9eca36314c db20fe9d672d0fdc …"""
    algebra = Values(NUMPY)
    seed = algebra.load(Tensor.of(np.zeros(2, np.int64)))
    drawn = algebra.unload(definitions.philox_uniform(algebra, seed, 0, (4,), "F64")).array()
    published = (0x16554D9ECA36314C, 0xDB20FE9D672D0FDC, 0xD7E772CEE186176B, 0x7E68B68AEC7BA23B)
    assert drawn.tolist() == [(word >> 11) / 2**53 for word in published]


@pytest.mark.parametrize(
    ("offset", "size", "dtype"), [(-1, (2,), "F32"), (2**53, (1,), "F32"), (0, (2,), "I32"), (0, (-1,), "F32")]
)
def test_a_draw_outside_the_stream_is_refused(offset: int, size: tuple[int, ...], dtype: str) -> None:
    with pytest.raises(MalformedError):
        definitions.philox_uniform(Types(), TensorSpec("I64", (2,)), offset, size, dtype)


def test_seeds_and_probabilities_are_checked() -> None:
    with pytest.raises(MalformedError, match="seed"):
        definitions.philox_uniform(Types(), TensorSpec("I64", (3,)), 0, (2,), "F32")
    with pytest.raises(MalformedError, match="probability"):
        definitions.dropout_mask(Types(), TensorSpec("I64", (2,)), 0, (2,), 1.5, "F32")
    with pytest.raises(UsageError, match="16 bytes"):
        seed_tensor(bytes(15))


def test_dropout_under_a_seed_is_the_mask_over_the_share_kept() -> None:
    x = torch.linspace(1, 2, 10)
    with explicit_randomness(KEY):
        first, second = functional.dropout(x, 0.3), functional.dropout(x, 0.3)
    assert torch.equal(first, x * (dropout_mask(seed_tensor(KEY), 0, [10], 0.7, torch.float32) / 0.7))
    assert torch.equal(second, x * (dropout_mask(seed_tensor(KEY), 12, [10], 0.7, torch.float32) / 0.7))
    with explicit_randomness(KEY):
        assert torch.equal(functional.dropout(x, 0.3), first)
    with explicit_randomness(bytes(16)):
        assert not torch.equal(functional.dropout(x, 0.3), first)


def test_the_share_that_is_kept_is_the_share_asked_for() -> None:
    kept = dropout_mask(seed_tensor(KEY), 0, [100_000], 0.8, torch.float32).mean().item()
    assert abs(kept - 0.8) < 6 * (0.8 * 0.2 / 100_000) ** 0.5


def drawn_by(name: str, dtype: torch.dtype) -> torch.Tensor:
    x = torch.linspace(0.4, 0.6, 7, dtype=dtype)
    return {
        "dropout": lambda: functional.dropout(x, 0.3),
        "native dropout": lambda: torch.native_dropout(x, 0.3, True)[0],
        "rand": lambda: torch.rand(7, dtype=dtype),
        "rand_like": lambda: torch.rand_like(x),
        "uniform_": lambda: torch.zeros_like(x).uniform_(-2.0, 3.0),
        "bernoulli": lambda: torch.bernoulli(x),
        "bernoulli_": lambda: torch.zeros_like(x).bernoulli_(x),
        "attention": lambda: functional.scaled_dot_product_attention(*[x[None, :, None]] * 3, dropout_p=0.3)[0, :, 0],
    }[name]()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "name", ["dropout", "native dropout", "rand", "rand_like", "uniform_", "bernoulli", "bernoulli_", "attention"]
)
def test_every_draw_follows_from_the_seed_and_its_place_in_the_stream(name: str, dtype: torch.dtype) -> None:
    generator = torch.get_rng_state()
    with explicit_randomness(KEY) as stream:
        first, second = drawn_by(name, dtype), drawn_by(name, dtype)
    assert stream.offset == (2 * 8 if name != "attention" else 2 * 52)
    with explicit_randomness(KEY):
        again = drawn_by(name, dtype)
    assert torch.equal(first, again)
    assert first.dtype == dtype
    assert not torch.equal(first, second)
    assert torch.equal(generator, torch.get_rng_state())


def test_attention_that_does_not_drop_draws_nothing() -> None:
    x = torch.randn(1, 2, 5, 8)
    with explicit_randomness(KEY) as stream:
        functional.scaled_dot_product_attention(x, x, x)
    assert stream.offset == 0


def test_other_random_numbers_are_refused_under_a_seed() -> None:
    with explicit_randomness(KEY), pytest.raises(UnavailableError, match="randn"):
        torch.randn(3)
    assert torch.randn(3).shape == (3,)
