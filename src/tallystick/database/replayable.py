"""How the steps of a run can be replayed, as a database or a service says it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from pydantic import TypeAdapter, ValidationError

from tallystick.core.canonical_json import DEPTH_MAX, is_deep
from tallystick.core.errors import MalformedError, UnavailableError

STATE_AFTER: Final = "the state after it"
ANCHOR_MEND: Final = "a store of its anchors: `tally db restore RUN --blobs URL`"
BATCH_MEND: Final = "the recorder's machine, or a store: `tally db restore RUN --blobs URL`"
RECIPE_MEND: Final = "`tally audit` replays the recipe itself"
GRAPH_MEND: Final = "the recorder: `preflight` says why a step has no graph"


class ReplayKind(StrEnum):
    """How steps can be replayed; the first member that applies.

    `exact`: the state before, the graphs (or the recipe), the batches and the state after are there. `trajectory`: all
    but the state after; losses and summaries are compared. `black-box`: batches and recorded losses, without a state or
    a graph from which the step can be computed. `missing`: not even the batch.
    """

    EXACT = "exact"
    TRAJECTORY = "trajectory"
    BLACK_BOX = "black-box"
    MISSING = "missing"


@dataclass(frozen=True)
class StepRange:
    """The steps from `first` to `last`: how they can be replayed, what is missing, and where it could come from."""

    first: int
    last: int
    replay: ReplayKind
    missing: str = ""
    mend: str = ""


@dataclass(frozen=True)
class Discovery:
    """What is there of a run: the steps after which states are there, and ranges that cover every step."""

    run: str
    anchors: tuple[int, ...]
    ranges: tuple[StepRange, ...]

    def of(self, step: int) -> StepRange:
        """The range that holds a step; raises `UnavailableError` where the run has no such step."""
        for part in self.ranges:
            if part.first <= step <= part.last:
                return part
        raise UnavailableError(f"{self.run}: has no step {step}")

    def to_json(self) -> bytes:
        """As JSON."""
        return _FOUND.dump_json(self)

    @classmethod
    def from_json(cls, data: bytes, what: str) -> Discovery:
        """What JSON says; raises `MalformedError` naming `what` where its steps are out of order, or it says none."""
        try:
            discovery = _FOUND.validate_json(b"!" if is_deep(data, DEPTH_MAX) else data)
        except ValidationError:
            raise MalformedError(f"{what}: does not say how a run can be replayed") from None
        ends = [step for part in discovery.ranges for step in (part.first, part.last)]
        if ends != sorted(ends) or list(discovery.anchors) != sorted(discovery.anchors):
            raise MalformedError(f"{what}: the steps are not in order")
        return discovery


_FOUND: Final = TypeAdapter(Discovery)
