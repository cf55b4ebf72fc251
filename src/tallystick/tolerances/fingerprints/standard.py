"""The standard fingerprints: 24 bytes for every 32 tokens, sensitive to every part of a model."""

from __future__ import annotations

from typing import Final

from tallystick.tolerances.fingerprints.settings import FingerprintSettings

STANDARD_WIDTH: Final = 7
STANDARD_BITS: Final = 8


def standard_fingerprints(final: int, layers: tuple[int, ...] | None = None) -> tuple[FingerprintSettings, ...]:
    """The block after a third of the model, the final norm, and the logits: 7 numbers of 8 bits and a norm's exponent.

    That is 24 bytes for every 32 tokens or part of them: 1 byte a token in an answer of 48, 0.75 in a long one.

    An early block shows small changes best, because rounding adds up in later blocks. The final norm shows changes in
    those later blocks, and the logits show the output matrix behind them. Numbers have 8 bits, because in bfloat16
    honest stacks already differ by the whole range of 4-bit numbers. Measured in `docs/inference.md`.

    Args:
        final: the number of blocks, which is the layer number of the final norm; the logits follow it.
        layers: the layers to use in place of these three.
    """
    chosen = layers or tuple(sorted({final // 3, final, final + 1}))
    return (FingerprintSettings(layers=chosen, width=STANDARD_WIDTH, bits=STANDARD_BITS),)
