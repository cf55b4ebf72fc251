"""Hidden states to the wire form of a fingerprint."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tallystick.tolerances.fingerprints import residues, toploc
from tallystick.tolerances.fingerprints.projection import block_norms, summarise
from tallystick.tolerances.fingerprints.settings import FingerprintSettings, Rows, rows_of
from tallystick.tolerances.fingerprints.wire import blocks_of


def encode_rows(rows: Rows, settings: FingerprintSettings) -> bytes:
    """The wire form over rows [tokens, d] of every layer of `settings`: blocks in order, inside a block the layers.

    Raises:
        MalformedError: a layer is not there, or their numbers of tokens differ.
        UnavailableError: a hidden state is not finite or too large.
    """
    held = rows_of(rows, settings.layers)
    if settings.method == "toploc":
        return b"".join(toploc.encode_block(block, settings.width) for block in blocks_of(held, settings))
    summaries = np.stack([summarise(held[layer], layer, settings) for layer in settings.layers])
    norms = np.stack([block_norms(held[layer], settings.block) for layer in settings.layers])
    return encode_summaries(summaries, norms, settings)


def encode_summaries(
    summaries: npt.NDArray[np.float64], norms: npt.NDArray[np.float64], settings: FingerprintSettings
) -> bytes:
    """The wire form of a projection's numbers [layers, blocks, width] and the norms [layers, blocks] of the blocks."""
    in_order = summaries.transpose(1, 0, 2).reshape(-1, settings.width)
    return residues.encode_numbers(in_order, norms.T.reshape(-1), settings.bits).tobytes()
