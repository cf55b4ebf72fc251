"""The random signs of a projection, from Philox: the same on every machine and in every framework."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from tallystick.commitments.digests import digest, digest_bytes
from tallystick.commitments.encoding import encode
from tallystick.commitments.philox import words

Signs = npt.NDArray[np.int8]


@lru_cache(maxsize=64)
def direction_signs(seed: str, layer: int, width: int, size: int) -> Signs:
    """The directions of a layer: ±1 of shape [size, width]; row j has the signs of hidden dimension j.

    Bit `j · width + k` of the Philox words under the digest of `["direction", layer, seed, width]`; a set bit is −1.
    """
    return _signs(["direction", layer, seed, width], 0, size * width).reshape(size, width)


@lru_cache(maxsize=64)
def position_signs(seed: str, layer: int, width: int, first: int, count: int) -> Signs:
    """The signs of answer tokens `first` to `first + count − 1` in a layer: ±1 of shape [count, width].

    Bit `i · width + k` of the words under the digest of `["position", layer, seed, width]` is for token i.
    """
    return _signs(["position", layer, seed, width], first * width, count * width).reshape(count, width)


def _signs(key: list[str | int], start: int, count: int) -> Signs:
    """The signs of `count` bits from bit `start` on of the Philox words under `key`; read-only, as it is cached."""
    first, skipped = divmod(start, 64)
    drawn = words(digest_bytes(digest("directions", encode([*key]))), -(-(skipped + count) // 64), first)
    bits = np.unpackbits(drawn.astype("<u8", copy=False).view(np.uint8), count=skipped + count, bitorder="little")
    signs = 1 - 2 * bits[skipped:].astype(np.int8)
    signs.flags.writeable = False
    return signs
