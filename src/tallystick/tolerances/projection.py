"""A seeded sketch of the state: cheap enough for every step, but only a screen.

The spec fixes the seed, so the prover knows the projection beforehand. By a correction to one row per column it can
give any state any sketch. So a sketch commits to nothing, and digests and residuals decide. A sketch shows accidents
and careless edits at once, and on one stack it checks that the arithmetic is equal.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from tallystick.commitments.digests import digest, digest_bytes
from tallystick.commitments.encoding import encode
from tallystick.commitments.philox import words
from tallystick.errors import MalformedError, UsageError
from tallystick.tensors.dtypes import ROUNDOFF
from tallystick.tensors.tensor import Tensor
from tallystick.tolerances.streams import PIECE, element_count, pieces, ratio
from tallystick.tolerances.sums import euclidean, row_sum
from tallystick.tolerances.tolerance import (
    Finding,
    Replayed,
    ReplayedState,
    States,
    Values,
    as_state,
    is_float,
    origin,
    outcome,
)

SEED_BYTES: Final = 32
WIDTH_MAX: Final = 4096
Sketch = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Projection:
    """The block-signed sum of every floating-point tensor of a state, `width` numbers in all.

    Pass only the weights: a step counter would be much larger than their update. Each tensor is flattened and padded
    with zeros to rows of `width`; it adds signs · rows. The signs are ±1 from Philox, keyed by (seed, tensor name,
    width). On average the squared norm of the sketch is that of the state. The summary is `width` little-endian
    float32. The distance is relative to the segment's update, or to the fraction `update_floor` of the state if the
    update is smaller than that, because float32 sums cannot resolve less.
    """

    seed: bytes
    width: int = 16
    allowed: float = 1e-3
    update_floor: float = 2.0**-10

    def __post_init__(self) -> None:
        if len(self.seed) != SEED_BYTES:
            raise UsageError(f"a projection seed has {SEED_BYTES} bytes, not {len(self.seed)}")
        if not 1 <= self.width <= WIDTH_MAX:
            raise UsageError(f"projection width {self.width} lies outside 1 … {WIDTH_MAX}")

    def signs(self, name: str, count: int) -> npt.NDArray[np.int8]:
        """The signs of the first `count` rows of tensor `name`, ±1: bit i of the Philox words, a set bit is -1."""
        key = digest_bytes(digest("projection", encode([self.seed.hex(), name, self.width])))
        drawn = words(key, -(-count // 64)).astype("<u8", copy=False)
        bits = np.unpackbits(drawn.view(np.uint8), count=count, bitorder="little")
        return 1 - 2 * bits.astype(np.int8)

    def sketch(self, value: Values | States) -> Sketch:
        """The sketch in float64, shape (width,); tensors are added in the order of their names."""
        total = np.zeros(self.width)
        for name, tensor in as_state(value).items():
            if is_float(tensor):
                total += self._sketch_tensor(name, tensor)
        return total

    def summarize(self, value: Values | States) -> bytes:
        """The sketch as `width` little-endian float32 numbers."""
        return self.encode(self.sketch(value))

    def compare(self, claimed: bytes, replayed: Replayed | ReplayedState) -> Finding:
        """The distance of the sketches in units of the update; an operator starts from its first input."""
        return self.compare_sketches(claimed, self.sketch(origin(replayed)), self.sketch(outcome(replayed)))

    def compare_sketches(self, claimed: bytes, start: Sketch, end: Sketch) -> Finding:
        """As `compare`, from sketches of the replayed states that were computed elsewhere, such as on a GPU."""
        with np.errstate(all="ignore"):
            written_end = end.astype(np.float32).astype(np.float64)  # rounded as the claimed sketch is
            gap = euclidean(self.decode(claimed) - written_end)
            scale = max(euclidean(end - start), self.update_floor * euclidean(end))
        return Finding(ratio(gap, scale), self.allowed, "projection")

    def rounding(self, elements: int) -> float:
        """How far an honest sketch of `elements` numbers may lie from the exact one, relative to the state's norm.

        A column adds R = elements / width numbers with random signs, in any order, in binary32. Each running sum is
        about as large as the column's norm or smaller. Rounding it adds an error of at most u times that, up or down:
        u·√R together. Four times that is allowed, and four roundings for writing the sketch. Sums in binary64 or in
        blocks lie far inside.
        """
        return 4 * ROUNDOFF["F32"] * (1 + math.sqrt(-(-elements // self.width)))

    def encode(self, sketch: npt.NDArray[np.floating]) -> bytes:
        """The wire form of a sketch; a number beyond the range of float32 becomes infinite and agrees with nothing."""
        assert sketch.shape == (self.width,)
        with np.errstate(all="ignore"):
            return sketch.astype("<f4").tobytes()

    def decode(self, claimed: bytes) -> Sketch:
        """A sketch from its wire form; raises `MalformedError` for another width."""
        if len(claimed) != 4 * self.width:
            raise MalformedError(f"projection summary: {len(claimed)} bytes for a width of {self.width}")
        return np.frombuffer(claimed, "<f4").astype(np.float64)

    def _sketch_tensor(self, name: str, tensor: Tensor) -> Sketch:
        signs = self.signs(name, -(-element_count([tensor]) // self.width))
        total, row = np.zeros(self.width), 0
        for values in pieces(tensor, self.width * max(1, PIECE // self.width)):
            rows = np.pad(values, (0, -values.size % self.width)).reshape(-1, self.width)
            with np.errstate(all="ignore"):
                total += row_sum(signs[row : row + len(rows)].astype(np.float64), rows)
            row += len(rows)
        return total
