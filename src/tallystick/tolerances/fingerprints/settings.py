"""What a fingerprint of hidden states is made with, and what a comparison of one block of one layer shows."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from tallystick.commitments.digests import digest
from tallystick.errors import MalformedError, UnavailableError, UsageError

Array: TypeAlias = npt.NDArray[np.floating[Any]]
Rows: TypeAlias = Mapping[int, Array]
"""Hidden states by layer, each [tokens, width of the model]."""

PUBLIC_SEED: Final = digest("directions", b"public").removeprefix("sha256:")
"""The seed where none is agreed on. It is public, as is any seed that is fixed beforehand."""
BLOCK_MAX: Final = 1024
WIDTH_MAX: Final = 1024
LAYERS_MAX: Final = 1 << 10
_SEED: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class FingerprintSettings:
    """What is summarised and how; a receipt states it.

    A block of up to `block` tokens and one layer give one summary: of `width` numbers in `bits` bits each under a
    projection drawn from `seed`, or by TOPLOC of the `width` largest of the block (`bits` and `seed` then mean nothing
    and keep their defaults).
    """

    method: Literal["projection", "toploc"] = "projection"
    layers: tuple[int, ...] = (0,)
    block: int = 32
    width: int = 15
    bits: Literal[1, 4, 8, 32] = 8
    seed: str | None = PUBLIC_SEED

    def __post_init__(self) -> None:
        if not 1 <= self.block <= BLOCK_MAX:
            raise UsageError(f"block: {self.block} tokens are not from 1 to {BLOCK_MAX}")
        if not 1 <= self.width <= WIDTH_MAX:
            raise UsageError(f"width: {self.width} numbers are not from 1 to {WIDTH_MAX}")
        if not self.layers or len(self.layers) > LAYERS_MAX or list(self.layers) != sorted(set(self.layers)):
            raise UsageError("layers: none, too many, or not in ascending order")
        if self.method == "projection" and not _SEED.fullmatch(self.seed or ""):
            raise UsageError("seed: a projection needs 64 hexadecimal digits")
        if self.method == "toploc" and (self.seed, self.bits) != (None, 8):
            raise UsageError("seed, bits: TOPLOC has none")

    @classmethod
    def toploc(cls, layer: int, values: int = 128, block: int = 32) -> FingerprintSettings:
        """TOPLOC with the published parameters: 128 values of every 32 tokens, 8.06 bytes a token."""
        return cls("toploc", (layer,), block, values, 8, None)

    def blocks(self, tokens: int) -> int:
        """How many blocks `tokens` fill; the last may be shorter."""
        return -(-tokens // self.block)

    def spans(self, tokens: int) -> Iterator[tuple[int, int]]:
        """First token and number of tokens of every block."""
        return ((first, min(self.block, tokens - first)) for first in range(0, tokens, self.block))


@dataclass(frozen=True)
class Distance:
    """How far the claimed summary of `tokens` answer tokens from `first` on lies from the verifier's own, in `layer`.

    For a projection the distance is relative to the norm of the block's hidden states. For TOPLOC it is the share of
    values whose exponents differ, and `mantissa_mean` and `mantissa_median` are over the others, in units of the last
    place.
    """

    layer: int
    first: int
    tokens: int
    distance: float
    mantissa_mean: float = 0.0
    mantissa_median: float = 0.0


def rows_of(rows: Rows, layers: tuple[int, ...]) -> dict[int, Array]:
    """The rows of `layers`, checked: each [tokens, width], alike in tokens, finite.

    Raises:
        MalformedError: a layer is not there, or their numbers of tokens differ.
        UnavailableError: a value is not finite, so that nothing can be said of it.
    """
    missing = [layer for layer in layers if layer not in rows]
    if missing:
        raise MalformedError(f"layers: there are no hidden states of layer {missing[0]}")
    found = {layer: np.asarray(rows[layer]) for layer in layers}
    if any(each.ndim != 2 for each in found.values()) or len({len(each) for each in found.values()}) != 1:
        raise MalformedError("rows: not one row a token in every layer")
    for layer, values in found.items():
        if not np.isfinite(values).all():
            raise UnavailableError(f"layer {layer}: a hidden state is not finite")
    return found
