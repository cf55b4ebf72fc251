"""The update of one step, as its record's sketches state it and as two states give it; what another rate would explain.

Every optimizer here moves the weights by the learning rate times a direction that does not depend on it. So a step at
another rate is the right step times one number, in its sketch as well. Other causes can scale a step too, such as
clipping under plain descent; the sentence says what would give the difference, not what did.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from tallystick.audits.checked_run import CheckedRun
from tallystick.tensors.tensor import Tensor
from tallystick.tolerances.projection import Projection, Sketch
from tallystick.tolerances.sums import euclidean, inner, square_sum
from tallystick.transcripts.record import StepRecord
from tallystick.transcripts.summary import decode_sketch

STEP_SIZE: Final = "schedule.step_size"
UNEXPLAINED_MAX: Final = 0.25
"""The share of a difference that one factor may leave unexplained."""


@dataclass(frozen=True)
class StepUpdate:
    """The sketched update that a record states, and the one between two states; distances are relative to `scale`."""

    claimed: Sketch
    found: Sketch
    scale: float

    @property
    def distance(self) -> float:
        """How far the claimed update lies from the found one."""
        return self._from(1.0)

    @property
    def factor(self) -> float:
        """The multiple of the found update that lies closest to the claimed one; NaN where nothing was found."""
        size = square_sum(self.found)
        return inner(self.claimed, self.found) / size if size else math.nan

    def _from(self, factor: float) -> float:
        with np.errstate(all="ignore"):
            gap = euclidean(self.claimed - factor * self.found)
        return gap / self.scale if self.scale else (np.inf if gap else 0.0)

    def is_scaled(self, allowed: float) -> bool:
        """Whether the claimed update is more than `allowed` off, and a multiple of the found one."""
        factor = self.factor
        return factor > 0 and allowed < self.distance and self._from(factor) <= UNEXPLAINED_MAX * self.distance


def step_update(
    projection: Projection, record: StepRecord, before: Mapping[str, Tensor], after: Mapping[str, Tensor]
) -> StepUpdate:
    """The update of a record's two sketches beside that of the weights `before` and `after` the step."""
    claimed = [projection.decode(decode_sketch(each.projection or "")) for each in (record.pre, record.post)]
    found = [projection.sketch(each) for each in (before, after)]
    with np.errstate(all="ignore"):
        update = found[1] - found[0]
        scale = max(euclidean(update), projection.update_floor * euclidean(found[1]))
        return StepUpdate(claimed[1] - claimed[0], update, scale)


def explained_by_rate(evidence: CheckedRun, step: int, update: StepUpdate, allowed: float) -> str:
    """The end of a sentence: which learning rate would give the claimed update, and who reads it; empty if none."""
    program = evidence.program
    if program is None or not update.is_scaled(allowed):
        return ""
    rates, factor = program.rates(step), update.factor
    would, stated = (", ".join(f"{scale * rate:.4g}" for rate in rates) for scale in (factor, 1.0))
    source = "the recipe gives" if evidence.spec.recipe else "the record says"
    where = "".join(f"; {each} reads it" for each in _reader(evidence, step))
    return f": it is {factor:.4g} times the replayed one, as learning rate {would} would give; {source} {stated}{where}"


def _reader(evidence: CheckedRun, step: int) -> list[str]:
    """The first operator of the step graph that reads the step size, which follows from the learning rate."""
    assert evidence.program is not None  # checked by the caller
    nodes = evidence.program.at(step).graph.nodes
    reads = (place for place, node in enumerate(nodes) if any(ref.startswith(STEP_SIZE) for ref in node.refs))
    return [f"operator {place} of {len(nodes)}, {nodes[place].operator}," for place in reads][:1]
