"""The size of a fingerprint's wire form, and its distance from a verifier's own rows by block and layer."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from tallystick.errors import MalformedError
from tallystick.tolerances.fingerprints import residues
from tallystick.tolerances.fingerprints.projection import block_norms, summarise
from tallystick.tolerances.fingerprints.residues import SignedGaps
from tallystick.tolerances.fingerprints.settings import Array, Distance, FingerprintSettings, Rows, rows_of


def measure(data: bytes, rows: Rows, settings: FingerprintSettings) -> tuple[Distance, ...]:
    """How far the verifier's rows [tokens, d] lie from a claimed wire form, by block and inside a block by layer.

    Raises:
        MalformedError: the bytes are no fingerprint of that many tokens.
        UnavailableError: the verifier's own hidden states are not finite.
    """
    checked = rows_of(rows, settings.layers)
    tokens, size = checked[settings.layers[0]].shape
    needed = wire_bytes(tokens, size, settings)
    if len(data) != needed:
        raise MalformedError(f"fingerprint.data: {len(data)} bytes; {tokens} tokens take {needed}")
    if settings.method == "toploc":
        from tallystick.tolerances.fingerprints import toploc

        return tuple(toploc.compare(data, checked, settings))
    return tuple(_compare_projection(data, checked, settings))


def residuals(data: bytes, rows: Rows, settings: FingerprintSettings) -> dict[int, SignedGaps]:
    """By layer, how far the claimed numbers of a projection lie from those of the rows, with their sign.

    Raises as `measure`; the bytes are those of a projection of 8 bits or fewer.
    """
    checked = rows_of(rows, settings.layers)
    tokens, size = checked[settings.layers[0]].shape
    needed = wire_bytes(tokens, size, settings)
    if len(data) != needed:
        raise MalformedError(f"fingerprint.data: {len(data)} bytes; {tokens} tokens take {needed}")
    part = residues.block_bytes(settings.width, settings.bits)
    coded = np.frombuffer(data, np.uint8).reshape(-1, len(settings.layers), part)
    return {
        layer: residues.signed_gaps(
            coded[:, n], summarise(checked[layer], layer, settings), settings.bits, settings.resolution
        )
        for n, layer in enumerate(settings.layers)
    }


def wire_bytes(tokens: int, size: int, settings: FingerprintSettings) -> int:
    """The bytes that `tokens` tokens of hidden width `size` take."""
    if settings.method == "toploc":
        from tallystick.tolerances.fingerprints import toploc

        counts = [min(settings.width, count * size) for _, count in settings.spans(tokens)]
        return len(settings.layers) * sum(map(toploc.block_bytes, counts))
    return settings.blocks(tokens) * len(settings.layers) * residues.block_bytes(settings.width, settings.bits)


def _compare_projection(data: bytes, checked: Rows, settings: FingerprintSettings) -> Iterator[Distance]:
    tokens, layers = len(checked[settings.layers[0]]), len(settings.layers)
    size = residues.block_bytes(settings.width, settings.bits)
    coded = np.frombuffer(data, np.uint8).reshape(-1, layers, size)
    gaps = [_projected(coded[:, n], checked[layer], layer, settings) for n, layer in enumerate(settings.layers)]
    for block, (first, count) in enumerate(settings.spans(tokens)):
        for n, layer in enumerate(settings.layers):
            yield Distance(layer, first, count, float(gaps[n][block]))


def _projected(
    coded: npt.NDArray[np.uint8], rows: Array, layer: int, settings: FingerprintSettings
) -> npt.NDArray[np.float64]:
    own, norms = summarise(rows, layer, settings), block_norms(rows, settings.block)
    return residues.relative_gaps(coded, own, norms, settings.bits, settings.resolution)
