"""The wire form of a fingerprint: its size, and the distance of every block and layer from a verifier's own rows."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from tallystick.errors import MalformedError
from tallystick.tolerances.fingerprints import residues
from tallystick.tolerances.fingerprints.projection import block_norms, summarise
from tallystick.tolerances.fingerprints.settings import Array, Distance, FingerprintSettings, Rows, rows_of


def measure(data: bytes, rows: Rows, settings: FingerprintSettings) -> tuple[Distance, ...]:
    """How far the verifier's rows [tokens, d] lie from a claimed wire form, block by block, inside a block by layer.

    Raises:
        MalformedError: the bytes are no fingerprint of that many tokens.
        UnavailableError: the verifier's own hidden states are not finite.
    """
    held = rows_of(rows, settings.layers)
    tokens, size = held[settings.layers[0]].shape
    needed = wire_bytes(tokens, size, settings)
    if len(data) != needed:
        raise MalformedError(f"fingerprint.data: {len(data)} bytes; {tokens} tokens take {needed}")
    compare = _compare_toploc if settings.method == "toploc" else _compare_projection
    return tuple(compare(data, held, settings))


def wire_bytes(tokens: int, size: int, settings: FingerprintSettings) -> int:
    """The bytes that `tokens` tokens of hidden width `size` take."""
    if settings.method == "toploc":
        from tallystick.tolerances.fingerprints import toploc

        counts = [min(settings.width, count * size) for _, count in settings.spans(tokens)]
        return len(settings.layers) * sum(map(toploc.block_bytes, counts))
    return settings.blocks(tokens) * len(settings.layers) * residues.block_bytes(settings.width, settings.bits)


def blocks_of(held: Rows, settings: FingerprintSettings) -> Iterator[Array]:
    """The rows of every block, inside a block by layer: the order of the wire form."""
    tokens = len(held[settings.layers[0]])
    return (held[layer][first : first + n] for first, n in settings.spans(tokens) for layer in settings.layers)


def _compare_projection(data: bytes, held: Rows, settings: FingerprintSettings) -> Iterator[Distance]:
    tokens, layers = len(held[settings.layers[0]]), len(settings.layers)
    size = residues.block_bytes(settings.width, settings.bits)
    coded = np.frombuffer(data, np.uint8).reshape(-1, layers, size)
    found = [_projected(coded[:, place], held[layer], layer, settings) for place, layer in enumerate(settings.layers)]
    for block, (first, count) in enumerate(settings.spans(tokens)):
        for place, layer in enumerate(settings.layers):
            yield Distance(layer, first, count, float(found[place][block]))


def _projected(
    coded: npt.NDArray[np.uint8], rows: Array, layer: int, settings: FingerprintSettings
) -> npt.NDArray[np.float64]:
    own, norms = summarise(rows, layer, settings), block_norms(rows, settings.block)
    return residues.relative_gaps(coded, own, norms, settings.bits)


def _compare_toploc(data: bytes, held: Rows, settings: FingerprintSettings) -> Iterator[Distance]:
    from tallystick.tolerances.fingerprints import toploc

    places = [(layer, *span) for span in settings.spans(len(held[settings.layers[0]])) for layer in settings.layers]
    start = 0
    for (layer, first, count), block in zip(places, blocks_of(held, settings), strict=True):
        values = min(settings.width, block.size)
        end = start + toploc.block_bytes(values)
        found = toploc.compare_block(toploc.parse_block(data[start:end], values), block)
        share = found.exponents / found.of
        yield Distance(layer, first, count, share, found.mantissa_mean, found.mantissa_median)
        start = end
