"""Right hidden states in the wrong place or with the wrong sign, and fingerprints with blocks moved or missing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tallystick.formats.fingerprints import FingerprintSettings
from tallystick.formats.receipt import Fingerprint
from tallystick.verdicts.fingerprints import fingerprint_of, settings_of, wire_bytes

Rows = npt.NDArray[np.floating[Any]]
Hidden = Mapping[int, Rows]


def signs_flipped(rows: Hidden, share: float = 1.0) -> dict[int, Rows]:
    """The first `share` of the hidden dimensions negated."""
    return {layer: _negated(each, round(share * each.shape[1])) for layer, each in rows.items()}


def rows_shifted(rows: Hidden, by: int = 1) -> dict[int, Rows]:
    """Every token with the states of another, `by` places before it, in a circle."""
    return {layer: np.roll(each, by, axis=0) for layer, each in rows.items()}


def layers_swapped(rows: Hidden, first: int, second: int) -> dict[int, Rows]:
    """Two layers with each other's states."""
    return {**rows, first: rows[second], second: rows[first]}


def blocks_swapped(fingerprint: Fingerprint) -> Fingerprint:
    """The first two blocks of a projection in each other's place."""
    size = _block_bytes(settings_of(fingerprint))
    data = fingerprint.raw
    moved = data[size : 2 * size] + data[:size] + data[2 * size :]
    return fingerprint_of(moved, fingerprint.tokens, settings_of(fingerprint))


def blocks_dropped(fingerprint: Fingerprint, *, tokens: int | None = None) -> Fingerprint:
    """A projection without its last block, said to be of `tokens` tokens, or of as many as before."""
    settings = settings_of(fingerprint)
    kept = fingerprint.raw[: -_block_bytes(settings)]
    return fingerprint_of(kept, fingerprint.tokens if tokens is None else tokens, settings)


def _negated(rows: Rows, count: int) -> Rows:
    signs = np.where(np.arange(rows.shape[1]) < count, -1.0, 1.0).astype(rows.dtype)
    return rows * signs


def _block_bytes(settings: FingerprintSettings) -> int:
    return wire_bytes(1, 1, settings)
