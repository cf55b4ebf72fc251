"""Dropout as PyTorch draws it on a CPU, as functions of the state of its generator.

A state is I64 [625], as `programs.random_words` has it. `aten.bernoulli_` takes two words of it for each element
(`mt19937_mask`). On processors of Intel it takes one word for all elements, or two if they are F64, as the seed of
MCG31m1 (`mcg31_mask`): L'Ecuyer, *Tables of linear congruential generators* (Math. Comp. 68, 1999), as implemented in
the Vector Statistics Library of oneMKL, whose Bernoulli numbers compare in single precision.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from typing import Final

import numpy as np

from tallystick.core.errors import MalformedError
from tallystick.programs.operators.algebra import Algebra, V
from tallystick.programs.operators.definition import Dtype, Family, Ints
from tallystick.programs.random_words import GOES_ON

FAMILY = Family("tally")

FRACTION_BITS: Final = 53
WORDS_OF_ELEMENT: Final = 2
MCG_MODULUS: Final = 2**31 - 1
MCG_FACTOR: Final = 1132489760
MT19937: Final = "tally.mt19937_mask"
MCG31: Final = "tally.mcg31_mask"
NATIVE: Final = (MT19937, MCG31)
"""The operators that draw as PyTorch does."""


@FAMILY.exact("mt19937_move", "the state after a new seed, or after skipped words")
def mt19937_move(a: Algebra[V], state: V, move: V) -> V:
    """`move` is I64 [2]: a seed of 32 bits, or -1 for none, and how many words to skip from there."""
    return a.mersenne(state, move, 0)[1]


@FAMILY.exact("mt19937_mask", "1 with probability keep, else 0, as PyTorch draws on a CPU")
def mt19937_mask(a: Algebra[V], state: V, size: Ints, keep: float, dtype: Dtype) -> tuple[V, V]:
    """1 where the lower 53 bits of two words, over 2⁵³, are below `keep`; and the state of the generator after that."""
    count = _checked(size, keep)
    words, after = a.mersenne(state, _on(a), WORDS_OF_ELEMENT * count)
    pairs = a.reshape(words, (count, WORDS_OF_ELEMENT))
    upper, lower = (a.slice(pairs, (0, place), (count, place + 1), (1, 1)) for place in (0, 1))
    upper = a.logical_and(upper, a.full((count, 1), (1 << FRACTION_BITS - 32) - 1, "I64"))
    drawn = a.compare(a.add(a.shift_left(upper, 32), lower), math.ceil(keep * 2.0**FRACTION_BITS), "lt")
    return a.reshape(a.cast(drawn, dtype), size), after


@FAMILY.exact("mcg31_mask", "1 with probability keep, else 0, as oneMKL draws")
def mcg31_mask(a: Algebra[V], state: V, size: Ints, keep: float, dtype: Dtype) -> tuple[V, V]:
    """1 where x ÷ (2³¹ − 1) < `keep`, both rounded to F32, for x = seed · 1132489760ⁱ mod (2³¹ − 1); and the state."""
    count = _checked(size, keep)
    taken = WORDS_OF_ELEMENT if dtype == "F64" else 1
    words, after = a.mersenne(state, _on(a), taken)
    seed = a.remainder(a.slice(words, (taken - 1,), (taken,), (1,)), MCG_MODULUS)
    powers = a.where(a.compare(seed, 0, "eq"), a.full((1,), 1, "I64"), seed)
    factor = MCG_FACTOR
    while powers.shape[0] < count:
        powers = a.concat((powers, a.remainder(a.mul(powers, factor), MCG_MODULUS)), 0)
        factor = factor * factor % MCG_MODULUS
    # Rounding keeps the order: so the comparison in F32 is one of integers, with the first that rounds to no less.
    limit = bisect_left(range(MCG_MODULUS), np.float32(keep), key=lambda x: np.float32(x / MCG_MODULUS))
    drawn = a.compare(a.slice(powers, (0,), (count,), (1,)), limit, "lt")
    return a.reshape(a.cast(drawn, dtype), size), after


def words_of(name: str, size: tuple[int, ...], dtype: str) -> int:
    """How many words an operator of `NATIVE` takes from the generator."""
    if name == MT19937:
        return WORDS_OF_ELEMENT * math.prod(size)
    return WORDS_OF_ELEMENT if dtype == "F64" else 1


def _checked(size: tuple[int, ...], keep: float) -> int:
    """The number of elements of a mask."""
    if not 0.0 <= keep <= 1.0:
        raise MalformedError(f"keep is {keep!r:.40}, no probability")
    if min(size, default=1) < 0:
        raise MalformedError(f"size is {list(size)}")
    return math.prod(size)


def _on(a: Algebra[V]) -> V:
    """The move of a generator that goes on."""
    return a.concat((a.full((1,), GOES_ON, "I64"), a.full((1,), 0, "I64")), 0)
