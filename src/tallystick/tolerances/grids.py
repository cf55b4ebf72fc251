"""The two grids of Arknet's buckets: to which point a value is rounded, and how near it lies to an edge.

Buckets are numbered along the number line: neighbouring buckets have neighbouring codes, and both zeros have code 0.
With `fp16_rne` the code counts the float16 numbers from zero (1.0 has code 15360). With `grid` it is the multiple of
eps. Every edge lies midway between two grid points. The distance of these points is the *gap* at the edge.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from tallystick.errors import MalformedError

Mode: TypeAlias = Literal["fp16_rne", "grid"]
Codes: TypeAlias = npt.NDArray[np.int64]

FLOAT16_EDGE: Final = 65520.0  # from here on, rounding to nearest even gives infinity
FLOAT16_TOP: Final = 0x7BFF  # the code of 65504, the largest float16
FLOAT16_SIZE: Final = np.int16(0x7FFF)  # all bits but the sign
GRID_TOP: Final = 2.0**51  # below it float64 still resolves a quarter of a grid step


@dataclass(frozen=True)
class NearestEdges:
    """For each value the nearest rounding edge, which lies between bucket `lower` and bucket `lower + 1`.

    `offset` is the signed distance from the edge in gaps, within ±½. Values at -0.5 and +0.5 are grid points.
    """

    lower: Codes
    offset: npt.NDArray[np.float64]

    def within(self, margin: float) -> npt.NDArray[np.bool_]:
        """Which values lie within `margin` gaps of their edge; with a margin of 0 none does."""
        if margin == 0.0:
            return np.zeros(self.offset.shape, bool)
        return np.asarray(np.abs(self.offset) <= margin)


def bucket_codes(values: npt.NDArray[Any], mode: Mode, eps: float = 1e-6) -> npt.NDArray[np.signedinteger]:
    """The bucket of each value, rounded to nearest with ties to even; same shape, int16 (`fp16_rne`) or int64.

    Raises `MalformedError` if a value has no bucket: NaN, infinite, or out of the grid's range.
    """
    if not in_range(values, mode, eps).all():
        raise MalformedError(f"a value lies outside the range of {mode} buckets, or is not finite")
    return _float16_codes(values) if mode == "fp16_rne" else np.rint(_scaled(values, eps)).astype(np.int64)


def in_range(values: npt.NDArray[Any], mode: Mode, eps: float = 1e-6) -> npt.NDArray[np.bool_]:
    """Which values have a bucket: |x| < 65520 for `fp16_rne`, |x / eps| ≤ 2⁵¹ for `grid`."""
    if mode == "fp16_rne":
        # float16 cannot hold the edge of its own range; float32 and float64 can
        wide = values.astype(np.promote_types(values.dtype, np.float32), copy=False)
        return np.asarray(np.abs(wide) < FLOAT16_EDGE)
    return np.asarray(np.abs(_scaled(values, eps)) <= GRID_TOP)


def nearest_edges(values: npt.NDArray[Any], mode: Mode, eps: float = 1e-6) -> NearestEdges:
    """The rounding edge nearest to each value in range. `offset` is exact within a quarter of a gap of the edge."""
    if mode == "grid":
        scaled = _scaled(values, eps)
        below = np.floor(scaled)
        return NearestEdges(below.astype(np.int64), scaled - below - 0.5)
    wide = values.astype(np.float64)
    codes = _float16_codes(values).astype(np.int64)
    lower = codes - (_float16_points(codes) > wide)
    low, high = _float16_points(lower), _float16_points(lower + 1)
    outermost = (lower == FLOAT16_TOP) | (lower == -FLOAT16_TOP - 1)  # beyond this edge there is no bucket
    return NearestEdges(lower, np.where(outermost, np.nan, (wide - (low + high) / 2) / (high - low)))


def _float16_codes(values: npt.NDArray[Any]) -> npt.NDArray[np.int16]:
    with np.errstate(under="ignore"):
        bits = values.astype("<f2").view("<i2")
    sign = bits >> 15  # 0 or -1; computed without a branch, which random signs would make slow
    return np.asarray(((bits & FLOAT16_SIZE) ^ sign) - sign)


def _float16_points(codes: Codes) -> npt.NDArray[np.float64]:
    bits = np.abs(codes).astype("<u2")
    sizes = np.where(bits > FLOAT16_TOP, 65536.0, bits.view("<f2").astype(np.float64))
    return np.copysign(sizes, codes.astype(np.float64))


def _scaled(values: npt.NDArray[Any], eps: float) -> npt.NDArray[np.float64]:
    with np.errstate(over="ignore", under="ignore"):
        return values.astype(np.float64) / eps
