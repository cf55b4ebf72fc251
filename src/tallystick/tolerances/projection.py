"""A seeded sketch of the state: cheap enough for every step, and only a screen.

The seed is fixed in the spec, so the prover knows the projection beforehand and can forge it exactly: adding
a correction to one row per column gives any state any sketch. It therefore binds nothing. It shows accidents
and careless edits at once, and on one stack it is an equality check of the arithmetic; digests and residuals
judge.
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

    Give it the weights: beside a step counter among them their update would drown. A tensor, flattened and
    padded with zeros to rows of `width`, adds signs · rows; the signs are ±1 from Philox, keyed by (seed,
    tensor name, width). The squared norm of the sketch is on average that of the state. The summary is
    `width` little-endian float32. The distance is relative to the segment's own update, or to the share
    `update_floor` of the state where the update is smaller than float32 sums resolve.
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
        """The signs of the first `count` rows of tensor `name`: bit i of the words, a set bit is -1."""
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
        """The distance of the sketches in units of the update; an operator's first input is its start."""
        return self.compare_sketches(claimed, self.sketch(origin(replayed)), self.sketch(outcome(replayed)))

    def compare_sketches(self, claimed: bytes, start: Sketch, end: Sketch) -> Finding:
        """As `compare`, from sketches of the replayed states that were taken elsewhere, such as on a GPU."""
        with np.errstate(all="ignore"):
            gap = _norm(self.decode(claimed) - _as_written(end))
            scale = max(_norm(end - start), self.update_floor * _norm(end))
        return Finding(ratio(gap, scale), self.allowed, "projection")

    def rounding(self, elements: int) -> float:
        """How far an honest sketch of so many numbers may lie from the exact one, relative to the state's norm.

        A column adds R = elements / width numbers under random signs, in any order and in binary32. Each running sum is
        at most about as large as the column's norm, and to round it adds up to u of that, up or down: u·√R together, of
        which four times is allowed, and four roundings for the sketch as it is written. Sums in binary64, or in blocks,
        lie far inside.
        """
        return 4 * ROUNDOFF["F32"] * (1 + math.sqrt(-(-elements // self.width)))

    def encode(self, sketch: npt.NDArray[np.floating]) -> bytes:
        """The wire form of a sketch; beyond the range of float32 it is infinite and agrees with nothing."""
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
                total += signs[row : row + len(rows)].astype(np.float64) @ rows
            row += len(rows)
        return total


def _as_written(sketch: Sketch) -> Sketch:
    return sketch.astype(np.float32).astype(np.float64)


def _norm(sketch: Sketch) -> float:
    return math.sqrt(float(np.dot(sketch, sketch)))
