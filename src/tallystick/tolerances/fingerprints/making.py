"""Encodes hidden states as the wire form of a fingerprint."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from tallystick.errors import UnavailableError
from tallystick.tolerances.fingerprints import toploc
from tallystick.tolerances.fingerprints.projection import block_norms, summarise
from tallystick.tolerances.fingerprints.residues import HALF_OCTAVE, ZERO, Bytes, Integers, Numbers, grid_steps
from tallystick.tolerances.fingerprints.settings import FingerprintSettings, Rows, blocks_of, rows_of

EXPONENT_MAX: Final = 127


def encode_rows(rows: Rows, settings: FingerprintSettings) -> bytes:
    """The wire form of rows [tokens, d] of every layer in `settings`: by block, and inside a block by layer.

    Raises:
        MalformedError: a layer is missing, or the layers differ in their number of tokens.
        UnavailableError: a hidden state is not finite or too large.
    """
    checked = rows_of(rows, settings.layers)
    if settings.method == "toploc":
        return b"".join(toploc.encode_block(block, settings.width) for block in blocks_of(checked, settings))
    summaries = np.stack([summarise(checked[layer], layer, settings) for layer in settings.layers])
    norms = np.stack([block_norms(checked[layer], settings.block) for layer in settings.layers])
    return encode_summaries(summaries, norms, settings)


def encode_summaries(
    summaries: npt.NDArray[np.float64], norms: npt.NDArray[np.float64], settings: FingerprintSettings
) -> bytes:
    """The wire form of a projection's numbers [layers, blocks, width] and the norms [layers, blocks] of the blocks."""
    in_order = summaries.transpose(1, 0, 2).reshape(-1, settings.width)
    return encode_numbers(in_order, norms.T.reshape(-1), settings.bits, settings.resolution).tobytes()


def encode_numbers(numbers: Numbers, norms: Numbers, bits: int, grid: int) -> Bytes:
    """The wire form of numbers [blocks, width] with the norms [blocks] of their hidden states: [blocks, bytes].

    Raises `UnavailableError` for numbers that are not finite or too large.
    """
    with np.errstate(over="ignore"):
        narrow = numbers.astype("<f4")
    if not np.isfinite(narrow).all() or not np.isfinite(norms).all():
        raise UnavailableError("hidden states: not finite, or too large for a fingerprint")
    if bits == 32:
        return narrow.view(np.uint8)
    exponents = _exponents(norms)
    codes = np.where(exponents[:, None] == ZERO, 0.0, np.floor(numbers / grid_steps(exponents, grid)))
    residues = np.mod(codes, 2**bits).astype(np.uint8)
    return np.concatenate([exponents.astype(np.int8).view(np.uint8)[:, None], _pack(residues, bits)], axis=1)


def _exponents(norms: Numbers) -> Integers:
    """log₂ of each norm, rounded; `ZERO` for a norm of 0 or too small for the exponent."""
    mantissas, exponents = np.frexp(norms)
    rounded = exponents.astype(np.int64) - (mantissas < HALF_OCTAVE)
    if (rounded > EXPONENT_MAX).any():
        raise UnavailableError("hidden states: too large for a fingerprint")
    return np.where((norms == 0.0) | (rounded <= ZERO), ZERO, rounded)


def _pack(residues: Bytes, bits: int) -> Bytes:
    if bits == 8:
        return residues
    if bits == 1:
        return np.packbits(residues, axis=1, bitorder="little")
    nibbles = np.pad(residues, ((0, 0), (0, residues.shape[1] % 2)))
    return np.asarray(nibbles[:, ::2] | nibbles[:, 1::2] << 4, np.uint8)
