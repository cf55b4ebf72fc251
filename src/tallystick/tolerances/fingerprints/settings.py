"""The settings of a fingerprint of hidden states, and the result of comparing one block of one layer."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from tallystick.commitments.digests import digest
from tallystick.errors import MalformedError, UnavailableError, UsageError
from tallystick.tolerances.fingerprints.residues import RESOLUTION

Array: TypeAlias = npt.NDArray[np.floating[Any]]
Rows: TypeAlias = Mapping[int, Array]
"""Hidden states by layer, each [tokens, width of the model]."""

PUBLIC_SEED: Final = digest("directions", b"public").removeprefix("sha256:")
"""The default seed. It is public, as is any seed that is fixed beforehand."""
BLOCK_MAX: Final = 1024
WIDTH_MAX: Final = 1024
LAYERS_MAX: Final = 1 << 10
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
        """The grid of so many bits where none is stated; 0 for 32 bits, which have none."""
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
