"""The projection of a block of hidden states under random signs: a few numbers that depend on every dimension.

For a block of tokens and a layer, number k is Σᵢ σᵢₖ Σⱼ rⱼₖ hᵢⱼ over tokens i and hidden dimensions j. The signs r
depend on the layer, the signs σ on the position of a token in the answer. With H the block's hidden states, E[s²] =
‖H‖² (Johnson and Lindenstrauss 1984; signs: Achlioptas 2003). So a difference ΔH shows as about ‖ΔH‖ in every number.

The numbers are linear in the hidden states: no hidden state is clipped, normalised or left out. A larger dimension
weighs more, and its honest rounding is larger in the same proportion.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tallystick.tolerances.fingerprints.settings import Array, FingerprintSettings
from tallystick.tolerances.fingerprints.signs import direction_signs, position_signs

Summary = npt.NDArray[np.float64]


def summarise(rows: Array, layer: int, settings: FingerprintSettings) -> Summary:
    """The numbers of every block of a layer's rows [tokens, d]: [blocks, width], in float64."""
    tokens, size = rows.shape
    assert settings.seed is not None
    directions = direction_signs(settings.seed, layer, settings.width, size)
    signed = rows.astype(np.float64) @ directions.astype(np.float64)
    signed *= position_signs(settings.seed, layer, settings.width, 0, tokens)
    return np.add.reduceat(signed, np.arange(0, tokens, settings.block), axis=0)


def block_norms(rows: Array, block: int) -> npt.NDArray[np.float64]:
    """The Euclidean norm of every block of rows [tokens, d]: [blocks], in float64."""
    wide = rows.astype(np.float64)
    squares = np.einsum("ij,ij->i", wide, wide)
    return np.sqrt(np.add.reduceat(squares, np.arange(0, len(rows), block)))
