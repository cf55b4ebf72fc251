"""The wire forms of a projection's numbers: float32, or low bits on a grid whose step follows the block's norm.

| bits | a block of one layer is | grid, relative to 2ᵉ |
|-|-|-|
| 32 | `width` little-endian float32 numbers | |
| 8 | e, then a byte a number | 2⁻¹⁰, or 2⁻ᵍ |
| 4 | e, then a nibble a number, the first in the low one | 2⁻⁸, or 2⁻ᵍ |
| 1 | e, then a bit a number, the first in the lowest | 2⁻⁶, or 2⁻ᵍ |

e is a signed byte: log₂ of the norm of the block's hidden states, rounded. A number s is written as its cell on the
grid, ⌊s / step⌋ modulo 2^bits; settings may state a grid g of their own. The high bits are left out because the
verifier has a number of its own nearby (universal quantisation: Boufounos 2012). So all bits serve small differences; a
large difference gives a random code. A block whose norm is 0, or below 2⁻¹²⁷, has e = −128 and codes 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from tallystick.errors import MalformedError

Numbers = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
RESOLUTION: Final = {8: 10, 4: 8, 1: 6}
"""The grid of each number of bits where settings state none."""
ZERO: Final = -128
HALF_OCTAVE: Final = 0.7071067811865476
"""√½ in binary64: from this mantissa on, log₂ rounds up."""
FLOAT32_HALF_STEP: Final = 2.0**-24


def block_bytes(width: int, bits: int) -> int:
    """The bytes of one block of one layer."""
    return 4 * width if bits == 32 else 1 + -(-width * bits // 8)


def reach(bits: int, grid: int) -> float:
    """The distance, in the mean, of a claim that is unrelated to the block: its codes are random.

    With M codes, √((M − 1)³ / 12 M) steps. A limit near it accepts anything.
    """
    codes = 2**bits
    return math.inf if bits == 32 else math.sqrt((codes - 1) ** 3 / (12 * codes)) * 2.0**-grid


def relative_gaps(data: Bytes, own: Numbers, norms: Numbers, bits: int, grid: int) -> Numbers:
    """How far own numbers [blocks, width] lie from the numbers that claimed bytes [blocks, bytes] encode: [blocks].

    √(Σₖ gapₖ² / width) relative to the own norm; or, if larger, the gap between the own norm and the norms that round
    to the claimed exponent. The gap is 0 where an own number lies in a cell with the claimed code. The exact claimed
    number lies in such a cell too, so the distance never exceeds that of the exact numbers.

    Raises `MalformedError` for bytes that encode no numbers.
    """
    assert data.shape == (len(own), block_bytes(own.shape[1], bits))
    if bits == 32:
        return _relative(_float_gaps(np.ascontiguousarray(data).view("<f4"), own), norms)
    exponents = np.ascontiguousarray(data[:, :1]).view(np.int8)[:, 0].astype(np.int64)
    codes = _unpack(data[:, 1:], own.shape[1], bits)
    if codes[exponents == ZERO].any():
        raise MalformedError("fingerprint.data: a code in a block whose norm is 0")
    steps = grid_steps(exponents, grid)
    offsets = np.mod(own / steps - codes - 0.5, 2**bits)
    cells = np.minimum(offsets, 2**bits - offsets)
    gaps = np.maximum(cells - 0.5, 0.0) * steps
    gaps[exponents == ZERO] = 0.0
    return np.maximum(_relative(gaps, norms), _norm_gaps(exponents, norms))


@dataclass(frozen=True)
class SignedGaps:
    """Claimed numbers less own ones, F64[blocks, width], and the width of the cells they are known to, [blocks, 1].

    High bits are not claimed: a residual is the smallest that fits the code. A block whose norm is 0 claims zeros.
    """

    gaps: Numbers
    cells: Numbers


def signed_gaps(data: Bytes, own: Numbers, bits: int, grid: int) -> SignedGaps:
    """The signed distances of own numbers [blocks, width] from the middle of the cells that claimed bytes encode."""
    assert bits < 32
    exponents = np.ascontiguousarray(data[:, :1]).view(np.int8)[:, 0].astype(np.int64)
    steps = grid_steps(exponents, grid)
    offsets = np.mod(_unpack(data[:, 1:], own.shape[1], bits) + 0.5 - own / steps + 2 ** (bits - 1), 2**bits)
    gaps = (offsets - 2 ** (bits - 1)) * steps
    gaps[exponents == ZERO] = -own[exponents == ZERO]
    return SignedGaps(gaps, steps)


def grid_steps(exponents: Integers, grid: int) -> Numbers:
    """The distance of neighbouring cells of the grid, F64[blocks, 1]."""
    return np.ldexp(1.0, exponents - grid)[:, None]


def _float_gaps(narrow: npt.NDArray[np.float32], own: Numbers) -> Numbers:
    """The gaps of float32 numbers, less what rounding to float32 explains."""
    if not np.isfinite(narrow).all():
        raise MalformedError("fingerprint.data: a number is not finite")
    claimed = narrow.astype(np.float64)
    return np.maximum(np.abs(claimed - own) - np.abs(claimed) * FLOAT32_HALF_STEP, 0.0)


def _norm_gaps(exponents: Integers, norms: Numbers) -> Numbers:
    """The relative gap from each norm to the interval of norms that round to the claimed exponent."""
    low = np.where(exponents == ZERO, 0.0, np.ldexp(HALF_OCTAVE, exponents))
    high = np.where(exponents == ZERO, np.ldexp(1.0, ZERO + 1), np.ldexp(2 * HALF_OCTAVE, exponents))
    gaps = np.maximum(np.maximum(low - norms, norms - high), 0.0)
    return np.where(gaps == 0.0, 0.0, np.divide(gaps, norms, out=np.full_like(norms, np.inf), where=norms > 0.0))


def _relative(gaps: Numbers, norms: Numbers) -> Numbers:
    """The root mean square of each block's gaps ÷ its norm; 0 without gaps, infinite for a norm of 0."""
    sizes = np.sqrt(np.square(gaps).mean(axis=1))
    return np.where(sizes == 0.0, 0.0, np.divide(sizes, norms, out=np.full_like(sizes, np.inf), where=norms > 0.0))


def _unpack(packed: Bytes, width: int, bits: int) -> Integers:
    if bits == 8:
        return packed.astype(np.int64)
    if bits == 1:
        codes = np.unpackbits(packed, axis=1, bitorder="little")
    else:
        codes = np.stack([packed & 0x0F, packed >> 4], axis=2).reshape(len(packed), 2 * packed.shape[1])
    if codes[:, width:].any():
        raise MalformedError("fingerprint.data: a code beyond the last number")
    return codes[:, :width].astype(np.int64)
