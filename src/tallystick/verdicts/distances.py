"""Distances between states: residuals in units of the update, and seeded sketches."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from typing import Final

import numpy as np
import numpy.typing as npt

from tallystick.core.canonical_json import encode
from tallystick.core.digests import digest, digest_bytes
from tallystick.core.errors import MalformedError, UsageError
from tallystick.core.tensor_digests import tensor_digest
from tallystick.core.tensors import ROUNDOFF, Tensor
from tallystick.programs.random_words import words
from tallystick.verdicts.buckets import count_elements
from tallystick.verdicts.exact import PIECE, element_count, pieces, side_by_side
from tallystick.verdicts.tolerance import (
    Finding,
    Replayed,
    ReplayedState,
    States,
    Values,
    as_state,
    euclidean,
    inner,
    is_float,
    origin,
    outcome,
    ratio,
    row_sum,
    square_sum,
)

# A seeded sketch of the state: cheap enough for every step, but only a screen.
#
# The spec fixes the seed, so the prover knows the projection beforehand. By a correction to one row per column it can
# give any state any sketch. So a sketch commits to nothing, and digests and residuals decide. A sketch shows accidents
# and careless edits at once, and on one stack it checks that the arithmetic is equal.

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


# How one tensor of an opened state differs from its replay, measured in one pass in float64.

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class TensorDrift:
    """Sums over the elements of one tensor, with d = claimed - replayed end and Δ = replayed end - start."""

    name: str = ""
    size: int = 0
    difference_squares: float = 0.0
    update_squares: float = 0.0
    claimed_update_squares: float = 0.0
    start_squares: float = 0.0
    difference_sum: float = 0.0
    difference_along_update: float = 0.0
    element_max: float = 0.0
    mismatches: int = 0
    non_finite: int = 0

    @property
    def bias(self) -> float:
        """The mean of d in standard errors; 0 for no difference, infinite for a constant one."""
        if self.difference_squares == 0.0:
            return 0.0
        mean = self.difference_sum / self.size
        variance = self.difference_squares / self.size - mean * mean
        return abs(mean) / math.sqrt(variance / self.size) if variance > 0.0 else math.inf

    def plus(self, other: TensorDrift) -> TensorDrift:
        """The same sums over the elements of `self` and `other` together, under the name of `self`."""
        sums = {name: value + getattr(other, name) for name, value in vars(self).items() if name != "name"}
        return TensorDrift(self.name, **sums | {"element_max": max(self.element_max, other.element_max)})


def measure_drift(name: str, claimed: Tensor, start: Tensor, end: Tensor, piece: int = PIECE) -> TensorDrift:
    """The drift of a tensor from three tensors of one shape; memory stays within a few pieces."""
    total = TensorDrift(name)
    for parts in side_by_side(claimed, start, end, piece=piece):
        total = total.plus(_measure_piece(*parts))
    return total


def _measure_piece(claimed: Array, start: Array, end: Array) -> TensorDrift:
    finite = np.isfinite(claimed) & np.isfinite(start) & np.isfinite(end)
    if not finite.all():
        return TensorDrift(size=claimed.size, non_finite=int(np.count_nonzero(~finite)))
    with np.errstate(all="ignore"):
        difference, update = claimed - end, end - start
        return TensorDrift(
            size=claimed.size,
            difference_squares=square_sum(difference),
            update_squares=square_sum(update),
            claimed_update_squares=square_sum(claimed - start),
            start_squares=square_sum(start),
            difference_sum=float(difference.sum()),
            difference_along_update=inner(difference, update),
            element_max=float(np.max(np.abs(difference), initial=0.0)),
            mismatches=count_elements(claimed, end),
        )


# The update-relative residual: an opened state against its replay, in units of what the segment changed.
#
# u = ‖w' - w‖ / ‖Δ‖, with w' claimed, w replayed and Δ the replayed update. An absolute distance accepts a forger who
# moves in infinitesimal steps (Fang et al., EuroS&P 2023). Relative to its own update, such a step is wrong by 100 %.
# Limits are calibrated per optimizer, dtype, window and hardware pair.


@dataclass(frozen=True)
class ResidualLimits:
    """The largest drift allowed; the first four limits come from a calibration.

    `overall` and `worst_tensor` are in units of the update. `mismatch_share` is the share of weights whose float16
    bucket differs. `element` is the largest single difference in units of the learning rate. `update_floor` is the
    smallest update, as a share of the weights' norm, at which a residual is meaningful. `stretch` bounds how much
    longer or shorter the claimed update is along the replayed one. `bias` is in standard errors and only advises.
    """

    overall: float
    worst_tensor: float
    mismatch_share: float
    element: float
    update_floor: float = 1e-6
    stretch: float = math.inf
    bias: float = 8.0


@dataclass(frozen=True)
class Residual:
    """The comparison of opened weights with replayed ones under `limits`.

    Pass only the weights. The optimizer's moments need limits of their own, in a second comparison. Tensors of one
    element (step counters) are judged per tensor but left out of the overall norm. Integer tensors must be equal.
    """

    limits: ResidualLimits

    def compare(self, claimed: States, replayed: ReplayedState, learning_rate: float) -> tuple[Finding, ...]:
        """The findings; all of them must agree. `learning_rate` is the largest of the segment.

        If names, shapes or dtypes differ, the single finding `tensors` counts these tensors.
        """
        states = stated, _, end = tuple(map(as_state, (claimed, replayed.start, replayed.end)))
        unlike = _unlike(*states)
        if unlike:
            return (Finding(float(len(unlike)), 0.0, "tensors", unlike[0]),)
        exact = [name for name, tensor in end.items() if not is_float(tensor)]
        differing = [name for name in exact if tensor_digest(stated[name]) != tensor_digest(end[name])]
        whole_numbers = Finding(float(len(differing)), 0.0, "whole-numbers", differing[0] if differing else "")
        return (*self._judge(_measure(*states), learning_rate), whole_numbers)

    def advise(self, claimed: States, replayed: ReplayedState) -> Finding:
        """The bias of the residual in its most biased tensor, in standard errors: advice, never a verdict.

        A small edit in one direction over many elements shows here long before it shows in a norm. Correlated honest
        drift shows here too, so a person has to look.
        """
        states = tuple(map(as_state, (claimed, replayed.start, replayed.end)))
        drifts = [] if _unlike(*states) else _measure(*states)
        biases = ((drift.bias, drift.name) for drift in drifts)
        return replace(_worst("bias", biases, self.limits.bias), advisory=True)

    def _judge(self, drifts: list[TensorDrift], learning_rate: float) -> tuple[Finding, ...]:
        limits, total = self.limits, reduce(TensorDrift.plus, drifts, TensorDrift())
        body = reduce(TensorDrift.plus, (drift for drift in drifts if drift.size > 1), TensorDrift())
        squares = body.difference_squares, body.update_squares, body.claimed_update_squares, body.start_squares
        difference, update, claimed_update, start = map(math.sqrt, squares)
        least = min(update, claimed_update)
        elements = ((ratio(drift.element_max, learning_rate), drift.name) for drift in drifts)
        stretch = abs(ratio(body.difference_along_update, body.update_squares))
        counted = max(drifts, key=lambda drift: drift.mismatches, default=TensorDrift())
        return (
            _worst("non-finite", ((float(drift.non_finite), drift.name) for drift in drifts), 0.0),
            Finding(ratio(limits.update_floor * start, least), 1.0, "update-floor"),
            Finding(ratio(difference, update), limits.overall, "residual"),
            _worst("residual-tensor", map(self._per_tensor, drifts), limits.worst_tensor),
            Finding(total.mismatches / max(1, total.size), limits.mismatch_share, "mismatches", counted.name),
            _worst("element", elements, limits.element),
            Finding(stretch, limits.stretch, "stretch"),
        )

    def _per_tensor(self, drift: TensorDrift) -> tuple[float, str]:
        scale = max(math.sqrt(drift.update_squares), self.limits.update_floor * math.sqrt(drift.start_squares))
        return ratio(math.sqrt(drift.difference_squares), scale), drift.name


def _measure(
    claimed: Mapping[str, Tensor], start: Mapping[str, Tensor], end: Mapping[str, Tensor]
) -> list[TensorDrift]:
    return [measure_drift(name, claimed[name], start[name], tensor) for name, tensor in end.items() if is_float(tensor)]


def _unlike(*states: Mapping[str, Tensor]) -> list[str]:
    """The tensors that some state lacks, or holds with another dtype or shape."""
    names = sorted({name for state in states for name in state})
    kinds = [{name: (tensor.dtype, tensor.shape) for name, tensor in state.items()} for state in states]
    return [name for name in names if len({kind.get(name) for kind in kinds}) > 1]


def _worst(name: str, distances: Iterable[tuple[float, str]], allowed: float) -> Finding:
    ranked = [(math.inf if math.isnan(distance) else distance, where) for distance, where in distances]
    distance, where = max(ranked, key=lambda pair: pair[0], default=(0.0, ""))
    return Finding(distance, allowed, name, where if distance else "")
