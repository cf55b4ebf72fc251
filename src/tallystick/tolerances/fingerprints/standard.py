"""The standard fingerprints: 24 bytes for every 32 tokens, and 34 more in BF16; sensitive to every part of a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from tallystick.errors import UsageError
from tallystick.tolerances.fingerprints.settings import FingerprintSettings

STANDARD_WIDTH: Final = 7
STANDARD_BITS: Final = 8
GRIDS: Final[Mapping[str, int | None]] = {"F32": 18, "BF16": 8, "F16": None}
"""The grid of each precision of a model: its cells are small beside honest distances, and its reach is far above them.

In bfloat16 honest answers of 8 tokens of a model of 30 layers may be 0.11 of the norm off. Random codes on the usual
grid of 8 bits are 0.07 off, so that it tells no answer below 65 tokens; on a grid of 2⁻⁸ they are 0.29 off, and a cell
is 0.004. 2⁻⁷ would judge shorter answers still, in the final norm and the logits alone, with twice the cell. Honest
distances in float16 are an eighth of those in bfloat16, which the usual grid shows. In float32 they are below 10⁻⁵: on
the usual grid a change of 10⁻⁴ moves one number in twelve to another cell, on a grid of 2⁻¹⁸ every number. Measured in
`docs/real_model_distances.md`.
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
    those later blocks, and the logits show the output matrix behind them. Numbers have 8 bits, because in bfloat16
    honest stacks already differ by the whole range of 4-bit numbers. Measured in `docs/inference.md`.

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
