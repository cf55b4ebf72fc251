"""Judging a replay on another stack: update-relative residuals within calibrated limits.

Honest drift changes hashes of rounded weights (docs/bucket_agreement.md). So buckets are compared and shown, and decide
nothing here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tallystick.audits.calibration import LimitsEntry, shipped_calibration
from tallystick.audits.checked_run import CheckedRun
from tallystick.audits.policy import Policy
from tallystick.audits.sampling import Segment
from tallystick.audits.spacing import spacing_shares
from tallystick.audits.training_kind import TrainingKind, workload_of
from tallystick.audits.undetermined import Mask, find_undetermined, judge_share, settle, share_of_update
from tallystick.errors import UnavailableError
from tallystick.judging.findings import AGREES, DIFFERS, Findings
from tallystick.store.run import RunDirectory
from tallystick.tensors.tensor import Tensor
from tallystick.tolerances.bucket import Bucket, BucketClaim
from tallystick.tolerances.projection import Projection
from tallystick.tolerances.residual import Residual, ResidualLimits
from tallystick.tolerances.streams import element_count
from tallystick.tolerances.tolerance import Finding, ReplayedState
from tallystick.transcripts.record import StepRecord
from tallystick.transcripts.spec import Spec
from tallystick.transcripts.summary import BucketSummary, decode_sketch
from tallystick.workloads.plan import projection_seed
from tallystick.workloads.verifier_stack import VerifierStack

if TYPE_CHECKING:
    from tallystick.tolerances.registry import NamedTolerance

State = Mapping[str, Tensor]
MEMORY = ("optimizer.", "buffers.")
GROUPS = ("weights", "memory")
CALIBRATED = frozenset(
    {"residual", "residual-tensor", "mismatches", "element", "stretch", "projection", "loss", "averages"}
)
"""Distances whose limits are measured; the others are equalities and the policy's own."""


def judge_for(
    evidence: CheckedRun, policy: Policy, stack: VerifierStack, segment: Segment, start: State
) -> TolerantJudge:
    """The judge of a segment with the calibrated limits of its kind; raises `UnavailableError` where there are none."""
    workload = workload_of(evidence)
    table = policy.calibration or shipped_calibration()
    entry = table.entry_at((workload.family, workload.optimizer, workload.dtype), segment.start, segment.steps)
    if entry is None:
        what = f"{workload.optimizer} in {workload.dtype} over {segment.steps} steps from step {segment.start}"
        raise UnavailableError(
            f"no limits are calibrated for {what}; `tally calibrate-training LIMITS --run RUN` measures them for "
            "`--calibration LIMITS`"
        )
    if policy.calibration is not None:
        _compare_with_shipped(evidence, entry, segment)
    same_device = stack.environment.device == evidence.environment.device == "cpu"
    parameters = element_count(tensor for name, tensor in start.items() if name.startswith("weights."))
    floor, named = policy.update_floor, None
    if policy.tolerance is not None:
        from tallystick.tolerances.registry import NamedTolerance

        named = NamedTolerance.load(policy.tolerance)
    return TolerantJudge(evidence.run, evidence.spec, workload, entry, floor, same_device, parameters, named)


def _compare_with_shipped(evidence: CheckedRun, entry: LimitsEntry, segment: Segment) -> None:
    """Leave a segment undecided whose limits of the policy lie too far above those that are shipped."""
    from tallystick.audits.own_limits import MULTIPLE_MAX, too_wide  # few policies bring limits

    told = f"limits: the policy's own, of which none may be more than {MULTIPLE_MAX:g} times the shipped one"
    if told not in evidence.shown:
        evidence.shown.append(told)
    if wide := too_wide(entry):
        more = f" and {len(wide) - 1} more" if wide[1:] else ""
        evidence.findings.undecided.append(
            f"steps {segment.start + 1}–{segment.end}: the policy's limits are too wide ({wide[0]}{more}): honest "
            "stacks drift so far apart where a training is chaotic, and agreement says too little there; replay on the "
            "stack of the run"
        )


@dataclass(frozen=True)
class TolerantJudge:
    """Judges one segment by the limits of one calibration entry; `parameters` is the number of weights.

    A `tolerance` that the policy names compares opened states in place of the calibrated residual.
    """

    run: RunDirectory
    spec: Spec
    workload: TrainingKind
    entry: LimitsEntry
    update_floor: float
    compares_generators: bool
    parameters: int = 0
    tolerance: NamedTolerance | None = None

    def state(self, notes: Findings, start: State, claimed: State, replayed: State, segment: Segment) -> bool:
        """Compare an opened anchor with its replay: weights, then optimizer and buffers, then generators.

        False where a tolerance that the policy names could not compare them, which leaves the verdict open. Raises
        `UnavailableError` where so many weights are undetermined that agreement would say too little.
        """
        subject = f"step {segment.end}"
        masks = self._undetermined(start, replayed)
        self._check_determined(notes, replayed, masks, subject)
        settled = settle(claimed, replayed, masks)
        compared = [self._group(notes, group, (start, settled, replayed), segment) for group in GROUPS]
        if self.spec.average is not None and claimed.keys() == replayed.keys():
            self._averages(notes, (start, settled, replayed), segment)
        self._names(notes, claimed, replayed, subject)
        return all(compared)

    def note(self, notes: Findings, finding: Finding, check: str, subject: str) -> None:
        """Note a comparison; limits measured on far smaller models reject nothing."""
        is_too_large = self.parameters > self.entry.parameters_max and finding.name in CALIBRATED
        notes.note(finding, check, subject, advisory=is_too_large and not finding.agrees)
        if is_too_large and not finding.agrees:
            notes.undecided.append(
                f"{check}: the limits were measured on models of {self.entry.parameters:,} weights and hold up to "
                f"{self.entry.parameters_max:,.0f}, and this one has {self.parameters:,}: replay on the stack of the "
                "run, or measure limits of that size: `tally calibrate-training LIMITS --run RUN`, then "
                "`--calibration LIMITS`"
            )

    def _group(self, notes: Findings, group: str, states: tuple[State, State, State], segment: Segment) -> bool:
        start, claimed, replayed = (part(state, group) for state in states)
        rate, subject = self._peak_rate(segment), f"step {segment.end}"
        if self.tolerance is not None:
            return self._by_name(notes, self.tolerance, claimed, ReplayedState(start, replayed), f"{subject}, {group}")
        residual, moved = Residual(self._limits(group, start, replayed, rate)), ReplayedState(start, replayed)
        for finding in residual.compare(claimed, moved, rate):
            self.note(notes, finding, f"{group} {finding.name}", subject)
        if group == "weights":
            notes.note(residual.advise(claimed, moved), "weights bias", subject, advisory=True)
        return True

    def _averages(self, notes: Findings, states: tuple[State, State, State], segment: Segment) -> None:
        from tallystick.audits.averages import compare_averages  # few loops average their weights

        start, end = (part(each, "weights") for each in states[::2])
        limit = self._limits("weights", start, end, self._peak_rate(segment)).overall
        self.note(notes, compare_averages(states, limit, segment.steps), "averages", f"step {segment.end}")

    @staticmethod
    def _by_name(
        notes: Findings, tolerance: NamedTolerance, claimed: State, replayed: ReplayedState, subject: str
    ) -> bool:
        try:
            notes.note(tolerance.compare(claimed, replayed), f"state {tolerance.name}", subject)
        except UnavailableError as error:  # what else was found of the segment counts all the same
            notes.undecided.append(f"{subject}: {error}")
            return False
        return True

    def _limits(self, group: str, start: State, replayed: State, rate: float) -> ResidualLimits:
        """The calibrated limits, widened by what the spacing of float32 hides where an update is tiny."""
        if group == "memory":
            return self.entry.memory.residual_limits(0.0)
        limits = self.entry.weights.residual_limits(self.update_floor if rate else 0.0)
        overall, worst = spacing_shares(start, replayed)
        return replace(limits, overall=limits.overall + overall, worst_tensor=limits.worst_tensor + worst)

    def _check_determined(self, notes: Findings, replayed: State, masks: Mapping[str, Mask], subject: str) -> None:
        finding = judge_share(replayed, masks, self.workload.dtype)
        if masks:
            notes.note(finding, "undetermined weights", subject, advisory=True)
        if not finding.agrees:
            raise UnavailableError(
                f"{subject}: {100 * finding.distance:.0f} % of the weights have a gradient of rounding only, "
                "which no replay determines; replay on the stack of the run"
            )

    def _undetermined(self, start: State, replayed: State) -> dict[str, Mask]:
        return find_undetermined(replayed, self.workload.dtype, start, self._decay())

    def _decay(self) -> float:
        """The smallest β₂ of the run, because no record says which parameter of a loop belongs to which group."""
        if self.spec.recipe is not None:
            return self.spec.recipe.optimizer.betas[1]
        return min((rule.second_moment_decay or 0.0 for rule in self.spec.optimizer or ()), default=0.0)

    def summaries(self, notes: Findings, claimed: StepRecord, start: State, replayed: State, subject: str) -> None:
        """Compare the summaries of one step: the sketch decides within its limit, the buckets are shown."""
        moved = ReplayedState(part(start, "weights"), part(replayed, "weights"))
        if claimed.post.projection is not None:
            room = share_of_update(start, replayed, self._undetermined(start, replayed))
            self.note(notes, self._sketch(claimed.post.projection, moved, room), "projection summary", subject)
        for mode in self.spec.recorded.bucket_modes:
            found: BucketSummary | None = getattr(claimed.post, mode)
            if found is not None:
                notes.note(self._bucket(mode, found, moved), f"{mode} summary", subject, advisory=True)

    def _sketch(self, text: str, moved: ReplayedState, room: float) -> Finding:
        claimed = decode_sketch(text)
        projection = Projection(projection_seed(self.spec), self.spec.recorded.projection_width)
        return replace(projection.compare(claimed, moved), allowed=self.entry.projection + room)

    def _bucket(self, mode: str, found: BucketSummary, moved: ReplayedState) -> Finding:
        settings = self.spec.recorded
        bucket = Bucket("grid" if mode == "grid" else "fp16_rne", settings.grid_eps, settings.hint_margin)
        hints = self.run.read_blob(found.hints) if found.hints is not None else b""
        return bucket.compare(BucketClaim(found.digest, hints).to_bytes(), moved)

    def _names(self, notes: Findings, claimed: State, replayed: State, subject: str) -> None:
        names = claimed.keys() ^ replayed.keys()
        for name in sorted(name for name in names if not name.startswith("rng.torch_cuda")):
            notes.note(DIFFERS, "state names", f"{subject}, {name}", "only on one side")
        exact = [name for name in sorted(claimed.keys() & replayed.keys()) if name.startswith(("rng.", "position."))]
        for name in exact:
            if name.startswith("rng.") and not self.compares_generators:
                continue
            same = bytes(claimed[name].data) == bytes(replayed[name].data)
            notes.note(AGREES if same else DIFFERS, "state exact", f"{subject}, {name}")

    def _peak_rate(self, segment: Segment) -> float:
        return max(self.workload.rate(step) for step in range(segment.start + 1, segment.end + 1))


def part(state: State, group: str) -> dict[str, Tensor]:
    """The weights of a state, or its optimizer memory and buffers."""
    prefixes = ("weights.",) if group == "weights" else MEMORY
    return {name: tensor for name, tensor in state.items() if name.startswith(prefixes)}
