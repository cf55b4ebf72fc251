"""How far a claimed state lies from its replay, measured with the functions of a tolerant audit."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

from tallystick.audits.spacing import spacing_shares
from tallystick.audits.tolerant import part
from tallystick.audits.undetermined import find_undetermined, judge_share, settle, share_of_update
from tallystick.commitments.encoding import Json
from tallystick.tensors.tensor import Tensor
from tallystick.tolerances.projection import Projection
from tallystick.tolerances.residual import Residual, ResidualLimits
from tallystick.tolerances.tolerance import ReplayedState
from tallystick.transcripts.summary import decode_sketch

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
    undetermined: float

    def to_json(self) -> Json:
        """The distances as JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, dict[str, float]]) -> Drift:
        """The inverse of `to_json`."""
        groups = {name: Distances(**value[name]) for name in ("weights", "memory")}  # type: ignore[arg-type]
        rest = {name: value[name] for name in ("projection", "loss", "floor", "undetermined")}
        return cls(**groups, **rest)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Outcome:
    """The end of a segment: its state, the loss of its last step, and the sketch for the record."""

    state: State
    loss: float
    sketch: str


def measure(
    start: State, claimed: Outcome, replayed: Outcome, rate: float, projection: Projection, dtype: str
) -> Drift:
    """The drift of `claimed` from `replayed`; both began at `start`, with learning rates of at most `rate`.

    An audit widens its limits in each case, for undetermined weights and for spacing. This allowance is subtracted.
    """
    masks = find_undetermined(replayed.state, dtype)
    settled = settle(claimed.state, replayed.state, masks)
    weights, floor = _distances(NO_LIMITS, start, settled, replayed.state, rate, "weights")
    memory, _ = _distances(NO_MEMORY_LIMITS, start, settled, replayed.state, rate, "memory")
    before, after = part(start, "weights"), part(replayed.state, "weights")
    moved = ReplayedState(before, after)
    sketched = projection.compare(decode_sketch(claimed.sketch), moved).distance
    room = share_of_update(start, replayed.state, masks)
    gap = abs(claimed.loss - replayed.loss) / max(1.0, abs(replayed.loss))
    overall, worst = spacing_shares(before, after)
    reduced = replace(
        weights, overall=max(0.0, weights.overall - overall), worst_tensor=max(0.0, weights.worst_tensor - worst)
    )
    share = judge_share(replayed.state, masks, dtype).distance
    return Drift(reduced, memory, max(0.0, sketched - room), gap, floor, share)


def _distances(
    residual: Residual, start: State, claimed: State, replayed: State, rate: float, group: str
) -> tuple[Distances, float]:
    moved = ReplayedState(part(start, group), part(replayed, group))
    findings = {finding.name: finding for finding in residual.compare(part(claimed, group), moved, rate)}
    distances = {field: findings[name].distance for name, field in METRICS.items()}
    return Distances(**distances, worst=findings["residual-tensor"].where), findings["update-floor"].distance
