"""How far a claimed state lies from its replay, and the limits that follow from the drift of honest stacks."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, Self

from tallystick.audits.limits import MARGIN, LimitsEntry, StateLimits
from tallystick.audits.tolerant import find_undetermined, judge_share, part, settle, share_of_update, spacing_shares
from tallystick.core.canonical_json import Json
from tallystick.core.safetensors import read_state, write_state
from tallystick.core.tensors import State
from tallystick.formats.records import decode_sketch
from tallystick.verdicts.distances import Projection, Residual, ResidualLimits
from tallystick.verdicts.tolerance import ReplayedState

NO_LIMITS: Final = Residual(ResidualLimits(math.inf, math.inf, math.inf, math.inf, update_floor=1e-6))
NO_MEMORY_LIMITS: Final = Residual(ResidualLimits(math.inf, math.inf, math.inf, math.inf, update_floor=0.0))
METRICS: Final = {
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
    def from_json(cls, value: dict[str, Any]) -> Drift:
        """The inverse of `to_json`."""
        return cls(**value | {name: Distances(**value[name]) for name in ("weights", "memory")})

    @property
    def distances(self) -> dict[str, float]:
        """Every judged distance by its path, such as `weights.overall`."""
        by_path = {
            f"{group}.{name}": getattr(getattr(self, group), name)
            for group in ("weights", "memory")
            for name in METRICS.values()
        }
        del by_path["memory.element"]  # its unit is the learning rate, which has no meaning for a moment
        return by_path | {"projection": self.projection, "loss": self.loss}

    def excess(self, limits: Mapping[str, float]) -> tuple[float, str]:
        """The largest distance ÷ limit, and the path of that distance."""
        measured = self.distances
        return max((measured[name] / limit, name) for name, limit in limits.items() if name in measured)


@dataclass(frozen=True)
class Outcome:
    """The end of a segment: its state, the loss of its last step, and the sketch for the record."""

    state: State
    loss: float
    sketch: str

    def keep(self, folder: Path, start: int, end: int) -> None:
        """Save the end of the segment from `start` to `end` for later comparisons."""
        folder.mkdir(parents=True, exist_ok=True)
        write_state(folder / f"{start}-{end}.safetensors", self.state)
        (folder / f"{start}-{end}.json").write_text(json.dumps({"loss": self.loss, "sketch": self.sketch}))

    @classmethod
    def kept(cls, folder: Path, start: int, end: int) -> Self:
        """What `keep` saved."""
        rest = json.loads((folder / f"{start}-{end}.json").read_text())
        return cls(read_state(folder / f"{start}-{end}.safetensors"), rest["loss"], rest["sketch"])


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
    sketched = projection.compare(decode_sketch(claimed.sketch), ReplayedState(before, after)).distance
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


# Limits: a multiple of the largest honest distance, per optimizer, precision and window.

LONGER_MARGIN: Final = 2 * MARGIN
"""The margin for longer segments: it is larger because hundreds of them were sampled, but thousands of single steps."""
LEAST: Final = {
    "overall": 1e-6,
    "worst_tensor": 1e-5,
    "mismatch_share": 1e-4,
    "element": 1e-4,
    "stretch": 1e-6,
    "projection": 1e-5,
    "loss": 1e-7,
}
"""The smallest limits: another machine may differ in a last bit even if no stack here does."""


def largest_of(distances: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The largest of every distance, by path."""
    maxima: dict[str, float] = {}
    for by_path in distances:
        for name, distance in by_path.items():
            maxima[name] = max(maxima.get(name, 0.0), distance)
    return maxima


def honest_over(kept: Iterable[Drift], also: LimitsEntry | None) -> dict[str, float]:
    """The largest distance of every path here, and on the machines of `also` where everything counts."""
    elsewhere = (also.honest_max, also.held_out_max) if also else ()
    return largest_of([*(drift.distances for drift in kept), *elsewhere])


def limits_over(honest: Mapping[str, float], window: int) -> dict[str, float]:
    """Limits for segments of up to `window` steps: the margin times honest drift, but at least `LEAST`."""
    margin = MARGIN if window == 1 else LONGER_MARGIN
    return {name: max(margin * value, LEAST[name.split(".")[-1]]) for name, value in honest.items()}


def limits_of(entry: LimitsEntry) -> dict[str, float]:
    """The limits of an entry by the paths of `Drift.distances`."""
    named: dict[str, float] = {"projection": entry.projection, "loss": entry.loss_band}
    for group in ("weights", "memory"):
        for name, value in getattr(entry, group).model_dump(exclude_none=True).items():
            named[f"{group}.{name}"] = value
    return named


def entry_of(
    kept: Sequence[Drift], held_out: Sequence[Drift], window: int, also: LimitsEntry | None = None, **rest: Any
) -> LimitsEntry:
    """The limits over the drift of segments that were kept, and the largest distances of those that were held out.

    They hold on the machines of `also` too. `rest` names the kind of training, and what else the entry states.
    """
    honest, segments = honest_over(kept, also), len(kept)
    if also is not None:
        segments += also.honest_segments + also.held_out_segments
    limits = limits_over(honest, window)

    def group(name: str) -> StateLimits:
        return StateLimits(**{p.split(".")[1]: round_up(v) for p, v in limits.items() if p.startswith(f"{name}.")})

    return LimitsEntry(
        window=window,
        weights=group("weights"),
        memory=group("memory"),
        projection=round_up(limits["projection"]),
        loss_band=round_up(limits["loss"]),
        honest_segments=segments,
        held_out_segments=len(held_out),
        honest_max=rounded(honest),
        held_out_max=rounded(largest_of(drift.distances for drift in held_out)),
        **rest,
    )


def rounded(named: Mapping[str, float]) -> dict[str, float]:
    """Distances rounded up to three digits."""
    return {name: round_up(value) for name, value in named.items()}


def round_up(value: float) -> float:
    """`value` rounded up to three digits."""
    short = float(f"{value:.2e}")
    return short if short >= value else float(f"{value * 1.005:.2e}")
