"""Random draws as pure functions: the seed is an operand, the place in the stream an attribute.

Philox4x64-10 (Salmon et al., *Parallel random numbers: as easy as 1, 2, 3*, SC 2011, §3.3 and table 2) in integer
operations alone, so that every engine draws the same bits. Element i takes word `offset` + i of the stream that
`commitments.philox.words` defines. Words are stored as I64 with the bits of the unsigned word.
"""

from __future__ import annotations

import math
from typing import Final

from tallystick.commitments.philox import MULTIPLIERS, ROUNDS, WEYL
from tallystick.errors import MalformedError
from tallystick.operators.algebra import Algebra, V
from tallystick.operators.definition import Exactness, Family

FAMILY = Family()

WORD: Final = 64
LANES: Final = 4
SIGNIFICAND: Final = {"F64": 53, "F32": 24, "F16": 11, "BF16": 8}
WORDS_MAX: Final = 1 << 53


@FAMILY.operator(
    "tally.philox_uniform",
    "Tensor seed, int offset, int[] size, dtype dtype",
    "numbers of [0, 1) from the leading bits of Philox words",
    Exactness.EXACT,
)
def philox_uniform(a: Algebra[V], seed: V, offset: int, size: tuple[int, ...], dtype: str) -> V:
    """The leading 53, 24, 11 or 8 bits of each word over 2 to that power; every value is a float of `dtype`."""
    if dtype not in SIGNIFICAND:
        raise MalformedError(f"dtype is {dtype}, no float")
    bits = SIGNIFICAND[dtype]
    leading = _logical_right(a, _words(a, seed, offset, size), WORD - bits)
    return a.mul(a.cast(leading, dtype), 2.0**-bits)


@FAMILY.operator(
    "tally.dropout_mask",
    "Tensor seed, int offset, int[] size, float keep, dtype dtype",
    "1 with probability keep, else 0, from Philox words",
    Exactness.EXACT,
)
def dropout_mask(a: Algebra[V], seed: V, offset: int, size: tuple[int, ...], keep: float, dtype: str) -> V:
    """1 where the leading 53 bits of the word, over 2⁵³, are below `keep`."""
    if not 0.0 <= keep <= 1.0:
        raise MalformedError(f"keep is {keep!r:.40}, no probability")
    return a.cast(a.compare(philox_uniform(a, seed, offset, size, "F64"), keep, "lt"), dtype)


def _words(a: Algebra[V], seed: V, offset: int, size: tuple[int, ...]) -> V:
    """The words of a draw, I64 of shape `size`."""
    if (seed.dtype, tuple(seed.shape)) != ("I64", (2,)):
        raise MalformedError(f"seed is {seed.dtype}{list(seed.shape)}, not I64[2]")
    count = math.prod(size)
    if offset < 0 or min(size, default=1) < 0 or offset + count > WORDS_MAX:
        raise MalformedError(f"{count} words from word {offset} are outside the stream")
    if count == 0:
        return a.full(size, 0, "I64")
    first, skipped = divmod(offset, LANES)
    blocks = -(-(skipped + count) // LANES)
    counter = a.add(a.iota((blocks,), 0, "I64"), first)
    low, high = a.slice(seed, (0,), (1,), (1,)), a.slice(seed, (1,), (2,), (1,))
    lanes = [a.reshape(lane, (blocks, 1)) for lane in philox(a, counter, low, high)]
    stream = a.reshape(a.concat(lanes, 1), (blocks * LANES,))
    return a.reshape(a.slice(stream, (skipped,), (skipped + count,), (1,)), size)


def philox(a: Algebra[V], counter: V, low: V, high: V) -> tuple[V, V, V, V]:
    """Ten rounds over the counters (counter, 0, 0, 0) under the keys (low, high): four words each.

    The shape is that of the counter, to which keys broadcast, or of the keys.
    """
    zero = a.sub(counter, counter)
    c0, c1, c2, c3 = counter, zero, zero, zero
    for _ in range(ROUNDS):
        upper0, lower0 = _wide_product(a, c0, MULTIPLIERS[0])
        upper1, lower1 = _wide_product(a, c2, MULTIPLIERS[1])
        c0, c1 = _xor(a, _xor(a, upper1, c1), low), lower1
        c2, c3 = _xor(a, _xor(a, upper0, c3), high), lower0
        low, high = a.add(low, _signed(WEYL[0])), a.add(high, _signed(WEYL[1]))
    return c0, c1, c2, c3


def _wide_product(a: Algebra[V], x: V, factor: int) -> tuple[V, V]:
    """The upper and the lower 64 bits of the unsigned product, out of 32-bit halves."""
    high, low = factor >> 32, factor & 0xFFFFFFFF
    x_high, x_low = _logical_right(a, x, 32), _lower_half(a, x)
    one, other = a.mul(x_high, low), a.mul(x_low, high)
    carried = _logical_right(a, a.mul(x_low, low), 32)
    middle = a.add(a.add(carried, _lower_half(a, one)), _lower_half(a, other))
    outer = a.add(a.add(_logical_right(a, one, 32), _logical_right(a, other, 32)), _logical_right(a, middle, 32))
    return a.add(a.mul(x_high, high), outer), a.mul(x, _signed(factor))


def _xor(a: Algebra[V], x: V, y: V) -> V:
    shape = x.shape if math.prod(x.shape) >= math.prod(y.shape) else y.shape
    return a.logical_xor(a.broadcast(x, shape), a.broadcast(y, shape))


def _lower_half(a: Algebra[V], x: V) -> V:
    return a.logical_and(x, a.full(x.shape, 0xFFFFFFFF, "I64"))


def _logical_right(a: Algebra[V], x: V, places: int) -> V:
    return a.logical_and(a.shift_right(x, places), a.full(x.shape, (1 << (WORD - places)) - 1, "I64"))


def _signed(word: int) -> int:
    """The I64 that has the bits of an unsigned word."""
    return word - (1 << WORD) if word >> (WORD - 1) else word
