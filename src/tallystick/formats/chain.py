"""The order of a transcript: which record may follow which.

The rules need neither data nor a model. A verifier applies them to every record of a run.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tallystick.core.errors import ProofError
from tallystick.formats.records import AnchorRecord, FailedRecord, HeaderRecord, Record, StateSummary, StepRecord
from tallystick.formats.spec import Spec


@dataclass(frozen=True)
class Chain:
    """The state of a transcript after the records read so far.

    `state` is the last step, `anchored` the step of the last anchor; both are -1 before the first.
    """

    spec: Spec
    opened: bool = False
    state: int = -1
    anchored: int = -1
    awaits_anchor: bool = False
    summary: StateSummary | None = None

    def follow(self, record: Record) -> Chain:
        """The chain after one more record; raises `ProofError` naming the step that does not fit."""
        if isinstance(record, HeaderRecord):
            return self._header(record)
        if not self.opened:
            raise ProofError(f"the transcript starts with a {record.kind} record instead of its header")
        if isinstance(record, AnchorRecord):
            return self._anchor(record)
        if isinstance(record, FailedRecord):
            return self._failed(record)
        return self._step(record)

    def finish(self) -> None:
        """Raise `ProofError` unless the transcript may end here."""
        recipe = self.spec.recipe
        if self.state < 0 or self.awaits_anchor or (recipe is None and self.anchored != self.state):
            raise ProofError("the transcript ends without the anchor of its last state")
        if recipe is not None and self.state != recipe.training.steps:
            raise ProofError(f"the transcript ends at step {self.state} of {recipe.training.steps}")

    def _header(self, record: HeaderRecord) -> Chain:
        if self.opened:
            raise ProofError("a second header stands in the middle of the transcript")
        if record.spec != self.spec.identity:
            raise ProofError("the header names another spec than spec.json")
        if record.data != self.spec.data_root:
            raise ProofError("the header names another data root than the spec")
        knobs, recorded = record.knobs, self.spec.recorded
        for name in ("bucket_mode", "grid_eps", "loss_decimals", "anchor_stride"):
            if getattr(knobs, name) != getattr(recorded, name):
                raise ProofError(f"the header's {name} is not the spec's")
        return replace(self, opened=True, awaits_anchor=True, state=0)

    def _anchor(self, record: AnchorRecord) -> Chain:
        if record.index != self.state:
            raise ProofError(f"anchor {record.index} stands after step {self.state}")
        may_end_here = self.spec.recipe is None and self.anchored < self.state  # a custom loop may end at any step
        if not (self.awaits_anchor or may_end_here):
            raise ProofError(f"anchor {record.index} is not one the spec asks for")
        summary = record.summary if self.summary is None else self.summary
        return replace(self, anchored=self.state, awaits_anchor=False, summary=summary)

    def _failed(self, record: FailedRecord) -> Chain:
        self._must_be_next(record.index)
        return self

    def _step(self, record: StepRecord) -> Chain:
        self._must_be_next(record.index)
        if record.data != self.spec.data_root:
            raise ProofError(f"step {record.index} names another data root than the spec")
        if record.pre != self.summary:
            raise ProofError(f"step {record.index} does not start from the state in which step {self.state} ended")
        anchored = record.index % self.spec.recorded.anchor_stride == 0 or record.index == self._last()
        return replace(self, state=record.index, summary=record.post, awaits_anchor=anchored)

    def _must_be_next(self, index: int) -> None:
        if self.awaits_anchor:
            raise ProofError(f"the anchor of step {self.state} is missing")
        if index != self.state + 1:
            raise ProofError(f"step {index} stands after step {self.state}")
        last = self._last()
        if last is not None and index > last:
            raise ProofError(f"step {index} stands behind the last step of the spec")

    def _last(self) -> int | None:
        return self.spec.recipe.training.steps if self.spec.recipe is not None else None
