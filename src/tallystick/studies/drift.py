"""How far a claimed state lies from its replay, by the very functions that a tolerant audit judges with."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from tallystick.audits.tolerant import part
from tallystick.commitments import Json
from tallystick.tensors import Tensor
from tallystick.tolerances import Projection, ReplayedState, Residual, ResidualLimits
from tallystick.transcripts import decode_sketch

State = Mapping[str, Tensor]
NO_LIMITS = Residual(ResidualLimits(math.inf, math.inf, math.inf, math.inf, update_floor=1e-6))
NO_MEMORY_LIMITS = Residual(ResidualLimits(math.inf, math.inf, math.inf, math.inf, update_floor=0.0))
METRICS = {
    "residual": "overall",
    "residual-tensor": "worst_tensor",
    "mismatches": "mismatch_share",
    "element": "element",
    "stretch": "stretch",
}


@dataclass(frozen=True)
class Distances:
    """The distances of weights, or of optimizer memory and buffers, in the units of `Limits`."""

    overall: float
    worst_tensor: float
    mismatch_share: float
    element: float
    stretch: float
    worst: str


@dataclass(frozen=True)
class Drift:
    """All distances of one segment; `loss` is in units of max(1, |loss|)."""

    weights: Distances
    memory: Distances
    projection: float
    loss: float
    floor: float

    def to_json(self) -> Json:
        """The distances as JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, dict[str, float]]) -> Drift:
        """The distances that `to_json` wrote."""
        groups = {name: Distances(**value[name]) for name in ("weights", "memory")}  # type: ignore[arg-type]
        rest = {name: value[name] for name in ("projection", "loss", "floor")}
        return cls(**groups, **rest)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Outcome:
    """Where a segment arrived: its state, the loss of its last step, and the sketch that would be recorded."""

    state: State
    loss: float
    sketch: str


def measure(start: State, claimed: Outcome, replayed: Outcome, rate: float, projection: Projection) -> Drift:
    """The drift of `claimed` from `replayed`; both left `start`, with learning rates of at most `rate`."""
    weights, floor = _distances(NO_LIMITS, start, claimed.state, replayed.state, rate, "weights")
    memory, _ = _distances(NO_MEMORY_LIMITS, start, claimed.state, replayed.state, rate, "memory")
    moved = ReplayedState(part(start, "weights"), part(replayed.state, "weights"))
    gap = abs(claimed.loss - replayed.loss) / max(1.0, abs(replayed.loss))
    return Drift(weights, memory, projection.compare(decode_sketch(claimed.sketch), moved).distance, gap, floor)


def _distances(
    residual: Residual, start: State, claimed: State, replayed: State, rate: float, group: str
) -> tuple[Distances, float]:
    moved = ReplayedState(part(start, group), part(replayed, group))
    findings = {finding.name: finding for finding in residual.compare(part(claimed, group), moved, rate)}
    found = {field: findings[name].distance for name, field in METRICS.items()}
    return Distances(**found, worst=findings["residual-tensor"].where), findings["update-floor"].distance
