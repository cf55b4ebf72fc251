"""A training run under a claim: its evidence, and the limits within which honest stacks repeat it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tallystick.audits.calibration import Calibration, LimitsEntry
from tallystick.audits.checked_run import CheckedRun
from tallystick.audits.training_kind import workload_of
from tallystick.audits.undetermined import Mask, find_undetermined
from tallystick.disputes.evidence.limits import WindowLimits, loosest
from tallystick.errors import UnavailableError
from tallystick.tensors.tensor import State
from tallystick.workloads.origin import Origin


@dataclass(frozen=True)
class ClaimedTraining:
    """A training run; `calibration` holds how far honest stacks were measured to differ.

    `origin` are the weights that the spec states as the first ones, where whoever judges has them.
    """

    evidence: CheckedRun
    calibration: Calibration
    origin: Origin | None = None

    @property
    def limits(self) -> WindowLimits:
        """The limits for this kind of training; raises `UnavailableError` if its kind is not known."""
        workload = workload_of(self.evidence)
        return WindowLimits(self.calibration, (workload.family, workload.optimizer, workload.dtype))

    def limit(self, start: int, steps: int, read: Callable[[LimitsEntry], float]) -> float:
        """The limit that `read` selects, for `steps` steps from state `start`.

        If this kind of training has no limit, the loosest of all kinds; if none has one, infinity.
        """
        try:
            return read(self.limits.near(start, steps))
        except UnavailableError:
            return loosest(self.calibration, start, steps, read)

    def undetermined(self, start: State, end: State) -> dict[str, Mask]:
        """Masks of the elements of a replayed state that no replay determines, by the names of the tensors."""
        spec = self.evidence.spec
        decays = (rule.second_moment_decay or 0.0 for rule in spec.optimizer or ())
        decay = spec.recipe.optimizer.betas[1] if spec.recipe else min(decays, default=0.0)
        try:
            dtype = self.limits.kind[2]
        except UnavailableError:
            dtype = "bf16"  # the coarser precision, where nothing is calibrated for this training
        return find_undetermined(end, dtype, start, decay)

    def anchor_before(self, step: int) -> int:
        """The last anchor at or before the state after `step`."""
        return max(mark for mark in self.evidence.anchors if mark <= step)
