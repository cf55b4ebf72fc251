"""The settings of a fingerprint of hidden states, its numbers on the wire, and the standard ones."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from tallystick.core.digests import digest
from tallystick.core.errors import MalformedError, UnavailableError, UsageError
from tallystick.formats.receipt import LAYERS_MAX

# The wire forms of a projection's numbers: float32, or low bits on a grid whose step follows the block's norm.
#
# | bits | a block of one layer is | grid, relative to 2ᵉ |
# |-|-|-|
# | 32 | `width` little-endian float32 numbers | |
# | 8 | e, then a byte a number | 2⁻¹⁰, or 2⁻ᵍ |
# | 4 | e, then a nibble a number, the first in the low one | 2⁻⁸, or 2⁻ᵍ |
# | 1 | e, then a bit a number, the first in the lowest | 2⁻⁶, or 2⁻ᵍ |
#
# e is a signed byte: log₂ of the norm of the block's hidden states, rounded. A number s is written as its cell on the
# grid, ⌊s / step⌋ modulo 2^bits; settings may state a grid g of their own. The high bits are left out because the
# verifier has a number of its own nearby (universal quantisation: Boufounos 2012). So all bits serve small differences;
# a large difference gives a random code. A block whose norm is 0, or below 2⁻¹²⁷, has e = −128 and codes 0.

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


# The settings of a fingerprint of hidden states, and the result of comparing one block of one layer.

Array: TypeAlias = npt.NDArray[np.floating[Any]]
Rows: TypeAlias = Mapping[int, Array]
"""Hidden states by layer, each [tokens, width of the model]."""

PUBLIC_SEED: Final = digest("directions", b"public").removeprefix("sha256:")
"""The default seed. It is public, as is any seed that is fixed beforehand."""
BLOCK_MAX: Final = 1024
WIDTH_MAX: Final = 1024
GRID_MAX: Final = 32
_SEED: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class FingerprintSettings:
    """What is summarised and how; a receipt states these settings.

    A block of up to `block` tokens in one layer gives one summary. With `projection`, it has `width` numbers of `bits`
    bits each, with signs drawn from `seed`, on a grid whose step is 2^-grid of the block's norm; without a `grid`, on
    that of `RESOLUTION`. With `toploc`, it has the `width` largest values of the block; `bits` is then 8, `seed` and
    `grid` are None, and none has a meaning.
    """

    method: Literal["projection", "toploc"] = "projection"
    layers: tuple[int, ...] = (0,)
    block: int = 32
    width: int = 15
    bits: Literal[1, 4, 8, 32] = 8
    seed: str | None = PUBLIC_SEED
    grid: int | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.block <= BLOCK_MAX:
            raise UsageError(f"block: {self.block} tokens are not from 1 to {BLOCK_MAX}")
        if not 1 <= self.width <= WIDTH_MAX:
            raise UsageError(f"width: {self.width} numbers are not from 1 to {WIDTH_MAX}")
        if not self.layers or len(self.layers) > LAYERS_MAX or list(self.layers) != sorted(set(self.layers)):
            raise UsageError("layers: none, too many, or not in ascending order")
        if self.method == "projection" and not _SEED.fullmatch(self.seed or ""):
            raise UsageError("seed: a projection needs 64 hexadecimal digits")
        if self.method == "toploc" and (self.seed, self.bits, self.grid) != (None, 8, None):
            raise UsageError("seed, bits, grid: TOPLOC has none")
        if self.grid is not None and (self.usual in (0, self.grid) or not 0 <= self.grid <= GRID_MAX):
            raise UsageError(f"grid: {self.grid} for {self.bits} bits: not from 0 to {GRID_MAX}, or to be left out")

    @property
    def usual(self) -> int:
        """The grid of `bits` where none is stated; 0 for 32 bits, which need none."""
        return RESOLUTION.get(self.bits, 0)

    @property
    def resolution(self) -> int:
        """The grid: its step is 2^-resolution of the norm of a block."""
        return self.usual if self.grid is None else self.grid

    @classmethod
    def toploc(cls, layer: int, values: int = 128, block: int = 32) -> FingerprintSettings:
        """TOPLOC with the published parameters: 128 values of every 32 tokens, 8.06 bytes a token."""
        return cls("toploc", (layer,), block, values, 8, None)

    def blocks(self, tokens: int) -> int:
        """The number of blocks for `tokens`; the last block may be shorter."""
        return -(-tokens // self.block)

    def spans(self, tokens: int) -> Iterator[tuple[int, int]]:
        """First token and number of tokens of every block."""
        return ((first, min(self.block, tokens - first)) for first in range(0, tokens, self.block))


@dataclass(frozen=True)
class Distance:
    """How far the claimed summary of one block lies from the verifier's own, in `layer`.

    The block has `tokens` answer tokens, from token `first` on. For a projection the distance is relative to the norm
    of the block's hidden states. For TOPLOC it is the share of values whose exponents differ; `mantissa_mean` and
    `mantissa_median` are over the other values, in units of the last place.
    """

    layer: int
    first: int
    tokens: int
    distance: float
    mantissa_mean: float = 0.0
    mantissa_median: float = 0.0


def rows_of(rows: Rows, layers: tuple[int, ...]) -> dict[int, Array]:
    """The rows of `layers`, checked: each is [tokens, width], all have the same number of tokens, all are finite.

    Raises:
        MalformedError: a layer is missing, or the layers differ in their number of tokens.
        UnavailableError: a value is not finite, so no distance can be computed.
    """
    missing = [layer for layer in layers if layer not in rows]
    if missing:
        raise MalformedError(f"layers: there are no hidden states of layer {missing[0]}")
    arrays = {layer: np.asarray(rows[layer]) for layer in layers}
    if any(array.ndim != 2 for array in arrays.values()) or len({len(array) for array in arrays.values()}) != 1:
        raise MalformedError("rows: not one row a token in every layer")
    for layer, array in arrays.items():
        if not np.isfinite(array).all():
            raise UnavailableError(f"layer {layer}: a hidden state is not finite")
    return arrays


def blocks_of(rows: Rows, settings: FingerprintSettings) -> Iterator[Array]:
    """The rows of every block, and inside a block of every layer: the order of the wire form."""
    tokens = len(rows[settings.layers[0]])
    return (rows[layer][first : first + n] for first, n in settings.spans(tokens) for layer in settings.layers)


# The standard fingerprints: 24 bytes for every 32 tokens, and 34 more in BF16; sensitive to every part of a model.

STANDARD_WIDTH: Final = 7
STANDARD_BITS: Final = 8
GRIDS: Final[Mapping[str, int | None]] = {"F32": 18, "BF16": 8, "F16": None}
"""The grid of each precision of a model: its cells are small beside honest distances, and its reach is far above them.

In bfloat16 honest answers of 8 tokens may be 0.11 of the norm off, and random codes on the usual grid of 8 bits 0.07;
on a grid of 2⁻⁸ they are 0.29 off. In float32 honest distances are below 10⁻⁵: on a grid of 2⁻¹⁸ a change of 10⁻⁴ moves
every number to another cell. Measured in `docs/real_model_distances.md`.
"""

MORE_WIDTH: Final = 31
MORE_BITS: Final = 4
MORE_GRID: Final = 6
"""In bfloat16 a second fingerprint has more numbers of the final norm and the logits, each a little coarser.

Rounding hides small changes in every number, so it takes many numbers to see them. Honest rounding of these layers is
about one cell of 2⁻⁶ wide, and 4 bits reach 8 cells. `docs/real_model_power.md` has what they add.
"""


def standard_fingerprints(
    final: int, dtype: Literal["F32", "BF16", "F16"], layers: tuple[int, ...] | None = None
) -> tuple[FingerprintSettings, ...]:
    """The block after a third of the model, the final norm, and the logits: 7 numbers of 8 bits and a norm's exponent.

    That is 24 bytes for every 32 tokens or part of them: 1 byte a token in an answer of 48, 0.75 in a long one. In BF16
    there are 31 numbers of 4 bits more of the last two, without `layers`: 58 bytes for every 32 tokens.

    An early block shows small changes best, because rounding adds up in later blocks. The final norm shows changes in
    those later blocks, and the logits show the output matrix behind them. Measured in `docs/inference.md`.

    Args:
        final: the number of blocks, which is the layer number of the final norm; the logits follow it.
        dtype: the precision of the model, which decides the grid (`GRIDS`).
        layers: the layers to use in place of these three.

    Raises `UsageError` for a precision that has no grid.
    """
    chosen = layers or tuple(sorted({final // 3, final, final + 1}))
    if dtype not in GRIDS:
        raise UsageError(f"dtype: {dtype!r:.40} is none of {', '.join(GRIDS)}")
    first = FingerprintSettings(layers=chosen, width=STANDARD_WIDTH, bits=STANDARD_BITS, grid=GRIDS[dtype])
    if layers is not None or dtype != "BF16":
        return (first,)
    return first, FingerprintSettings(layers=(final, final + 1), width=MORE_WIDTH, bits=MORE_BITS, grid=MORE_GRID)
