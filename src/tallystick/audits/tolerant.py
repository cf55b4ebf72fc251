"""Judging a replay on another stack: residuals within the limits of its kind of training, and undetermined weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from tallystick.audits.checked_run import CheckedRun
from tallystick.audits.limits import (
    MULTIPLE_MAX,
    Family,
    LimitsEntry,
    StateLimits,
    family_of,
    shipped_calibration,
    too_wide,
)
from tallystick.audits.policy import Policy, Segment
from tallystick.audits.step_graphs import compare_averages
from tallystick.core.errors import UnavailableError
from tallystick.core.tensors import Tensor
from tallystick.formats.data.step_program import StepProgram, projection_seed
from tallystick.formats.recipe import learning_rate
from tallystick.formats.records import BucketSummary, StepRecord, decode_sketch
from tallystick.formats.spec import Spec
from tallystick.formats.store.run import RunDirectory
from tallystick.programs.graph import Graph
from tallystick.verdicts.buckets import Bucket, BucketClaim
from tallystick.verdicts.distances import Projection, Residual, ResidualLimits
from tallystick.verdicts.exact import element_count
from tallystick.verdicts.registry import NamedTolerance
from tallystick.verdicts.replayer import VerifierStack
from tallystick.verdicts.tolerance import Finding, ReplayedState
from tallystick.verdicts.verdict import AGREES, DIFFERS, Findings

if TYPE_CHECKING:
    from tallystick.verdicts.registry import NamedTolerance


# What kind of training a run is, as far as calibrated limits depend on it: from its recipe, or from its step graph.


@dataclass(frozen=True)
class TrainingKind:
    """One training: the family of its model, its optimizer, its precision, and the learning rate of each step."""

    family: Family
    optimizer: Literal["adamw", "sgd"]
    dtype: Literal["fp32", "bf16"]
    rate: Callable[[int], float]


def workload_of(evidence: CheckedRun) -> TrainingKind:
    """The workload of a run that can be replayed; raises `UnavailableError` where no limits can fit it."""
    recipe, program = evidence.spec.recipe, evidence.program
    if recipe is not None:
        kind, dtype = recipe.optimizer.kind, recipe.training.dtype
        return TrainingKind(family_of(recipe), kind, dtype, lambda step: learning_rate(recipe, step))
    assert program is not None  # a run without recipe is replayed from its graph
    return TrainingKind(
        _family(program.graph),
        _optimizer(program),
        _precision(program.graph),
        lambda step: max(program.rates(step)),
    )


def _family(graph: Graph) -> Family:
    operators = {node.operator.split(".")[1] for node in graph.nodes}
    if "embedding" in operators:
        return "language"
    if operators & {"convolution", "conv2d"}:
        return "image"
    raise UnavailableError(
        "limits are calibrated for language models and convolutional classifiers, and this is neither"
    )


def _optimizer(program: StepProgram) -> Literal["adamw", "sgd"]:
    kinds = {rule.kind for rule in program.rules}
    if kinds == {"adamw"}:
        return "adamw"
    if kinds == {"sgd"}:
        return "sgd"
    raise UnavailableError(f"no limits are calibrated for the optimizer {', '.join(sorted(kinds))}")


def _precision(graph: Graph) -> Literal["fp32", "bf16"]:
    dtypes = {spec.dtype for spec in graph.specs().values() if spec.is_float} - {"F64"}
    if dtypes <= {"F32"}:
        return "fp32"
    if dtypes <= {"F32", "BF16"}:
        return "bf16"
    raise UnavailableError(f"no limits are calibrated for {', '.join(sorted(dtypes))}")


# How much of a tiny update float32 rounds away: a weight moves in steps of its own spacing.
#
# Two honest replays whose updates agree to a millionth still round a few weights to different neighbours. Beside an
# update of ordinary size this is negligible; in the first steps of a long warm-up it is most of the update.

State = Mapping[str, Tensor]
SPACINGS = 0.5
"""How many spacings each weight may be off, in the root mean square over a tensor."""


def spacing_shares(start: State, replayed: State) -> tuple[float, float]:
    """Half a spacing of every weight over the update: of all weights together, and of the tensor it is largest in.

    A tensor that did not move at all is left out; so is an update of nothing.
    """
    pairs = [_spacing_and_move(start[name], replayed[name]) for name in replayed if name in start]
    spacing, move = (math.fsum(pair[place] for pair in pairs) for place in (0, 1))
    largest = max((a / b for a, b in pairs if b), default=0.0)
    return SPACINGS * math.sqrt(spacing / move) if move else 0.0, SPACINGS * math.sqrt(largest)


def _spacing_and_move(before: Tensor, after: Tensor) -> tuple[float, float]:
    if not after.dtype.startswith(("F", "BF")) or before.shape != after.shape:
        return 0.0, 0.0
    start, end = before.values(), after.values()
    with np.errstate(all="ignore"):
        spacing = np.square(np.spacing(np.abs(end)), dtype=np.float64).sum()
        move = np.square(end.astype(np.float64) - start).sum()
    usable = math.isfinite(spacing) and math.isfinite(move)
    return (float(spacing), float(move)) if usable else (0.0, 0.0)


# Weights that no replay determines: Adam scales a gradient that is only rounding error up to a full step.
#
# A bias in front of a batch norm, or the key bias of attention, has no effect on the loss. Its gradient is zero but
# for rounding, and Adam turns it into steps of full size in a direction that differs from stack to stack. Such elements
# are known by their second moment in the verifier's own replay; what they may do is left to the reach screen.
#
# A second moment can also be small because nothing was learned for long: the embedding of a token that no batch of the
# segment holds has no gradient at all, on any stack. Its second moment only decays, its weight follows from the anchor,
# and it is judged like any other.

Mask = np.ndarray
SECOND_MOMENT = ".exp_avg_sq"
NOISE = {"fp32": 2.0**-15, "bf16": 2.0**-9}
"""A root of the second moment below this share of the model's is rounding: 2⁹ units of roundoff, or one of bf16."""
SHARE_ALLOWED = {"fp32": 0.05, "bf16": 0.25}
"""Where more elements are undetermined, agreement of the others says too little for a verdict."""
UPDATE_FACTOR = 4.0
POSITION = "position.step"
DECAY_ROUNDING = 4 * 2.0**-24
"""Of one float32 step, relative to the second moment: what a decay without any gradient may round."""


def find_undetermined(replayed: State, dtype: str, start: State | None = None, decay: float = 0.0) -> dict[str, Mask]:
    """Where the gradients of a replay were rounding only, by parameter; empty for optimizers other than Adam.

    With the state at the `start` of the segment and the `decay` β₂, elements that had no gradient are left out.
    """
    moments = {name: tensor.values() for name, tensor in replayed.items() if name.endswith(SECOND_MOMENT)}
    total = sum(float(np.sum(values, dtype=np.float64)) for values in moments.values())
    count = sum(values.size for values in moments.values())
    noise = NOISE[dtype] ** 2 * total / max(1, count)
    masks = {name: (values > 0) & (values < noise) for name, values in moments.items()}
    if start is not None:
        steps = int(replayed[POSITION].values()) - int(start[POSITION].values())
        masks = {n: mask & ~_only_decayed(start[n].values(), moments[n], steps, decay) for n, mask in masks.items()}
    return {_parameter(name): mask for name, mask in masks.items() if mask.any()}


def _only_decayed(start: np.ndarray, end: np.ndarray, steps: int, decay: float) -> Mask:
    """Where v ≤ β₂ⁿ·v₀ but for rounding: what gradients there were did not even show in the second moment."""
    bound: np.ndarray = decay**steps * start.astype(np.float64) * (1 + DECAY_ROUNDING * steps)
    return np.asarray(end <= bound)


def settle(claimed: State, replayed: State, masks: Mapping[str, Mask]) -> dict[str, Tensor]:
    """The claimed state with every undetermined element taken from the replay."""
    settled = dict(claimed)
    for parameter, mask in masks.items():
        for name in _tensors_of(parameter, replayed):
            if name in claimed and claimed[name].shape == replayed[name].shape == mask.shape:
                values = np.where(mask, replayed[name].array(), claimed[name].array())
                settled[name] = Tensor.of(values, claimed[name].dtype)
    return settled


def judge_share(replayed: State, masks: Mapping[str, Mask], dtype: str) -> Finding:
    """The share of elements that no replay determines."""
    count = sum(math.prod(t.shape) for name, t in replayed.items() if name.endswith(SECOND_MOMENT))
    masked = sum(int(np.count_nonzero(mask)) for mask in masks.values())
    return Finding(masked / max(1, count), SHARE_ALLOWED[dtype], "undetermined", min(masks, default=""))


def share_of_update(start: State, replayed: State, masks: Mapping[str, Mask]) -> float:
    """How much of the replayed update's norm the undetermined elements make up, with room for another direction."""
    if not masks:
        return 0.0
    names = [name for name in replayed if name.startswith("weights.")]
    moves = {name: replayed[name].values().astype(np.float64) - start[name].values() for name in names}
    whole = sum(float(np.square(move).sum()) for move in moves.values())
    part = sum(float(np.square(moves[f"weights.{name}"][mask]).sum()) for name, mask in masks.items())
    return UPDATE_FACTOR * math.sqrt(part / whole) if whole else 0.0


def _parameter(moment: str) -> str:
    return moment.removeprefix("optimizer.").removesuffix(SECOND_MOMENT)


def _tensors_of(parameter: str, state: State) -> list[str]:
    names = (f"weights.{parameter}", f"optimizer.{parameter}.exp_avg", f"optimizer.{parameter}{SECOND_MOMENT}")
    return [name for name in names if name in state]


# Judging a replay on another stack: update-relative residuals within calibrated limits.
#
# Honest drift changes hashes of rounded weights (docs/bucket_agreement.md). So buckets are compared and shown, and
# decide nothing here.

MEMORY = ("optimizer.", "buffers.")
GROUPS = ("weights", "memory")
CALIBRATED = frozenset(
    {"residual", "residual-tensor", "mismatches", "element", "stretch", "projection", "loss", "averages"}
)
"""Checks with calibrated limits; all others compare exactly or by the policy."""


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
        named = NamedTolerance.load(policy.tolerance)
    return TolerantJudge(evidence.run, evidence.spec, workload, entry, floor, same_device, parameters, named)


def _compare_with_shipped(evidence: CheckedRun, entry: LimitsEntry, segment: Segment) -> None:
    """Leave a segment undecided whose limits of the policy lie too far above those that are shipped."""
    line = f"limits: the policy's own, of which none may be more than {MULTIPLE_MAX:g} times the shipped one"
    if line not in evidence.findings.checked:
        evidence.findings.checked.append(line)
    if wide := too_wide(entry):
        more = f" and {len(wide) - 1} more" if wide[1:] else ""
        evidence.findings.leave_open(
            f"steps {segment.start + 1}–{segment.end}",
            f"the policy's limits are too wide ({wide[0]}{more}): honest "
            "stacks drift so far apart where a training is chaotic, and agreement says too little there; replay on the "
            "stack of the run",
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
            notes.leave_open(
                check,
                f"the limits were measured on models of {self.entry.parameters:,} weights and hold up to "
                f"{self.entry.parameters_max:,.0f}, and this one has {self.parameters:,}: replay on the stack of the "
                "run, or measure limits of that size: `tally calibrate-training LIMITS --run RUN`, then "
                "`--calibration LIMITS`",
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
        start, end = (part(state, "weights") for state in states[::2])
        limit = self._limits("weights", start, end, self._peak_rate(segment)).overall
        self.note(notes, compare_averages(states, limit, segment.steps), "averages", f"step {segment.end}")

    @staticmethod
    def _by_name(
        notes: Findings, tolerance: NamedTolerance, claimed: State, replayed: ReplayedState, subject: str
    ) -> bool:
        try:
            notes.note(tolerance.compare(claimed, replayed), f"state {tolerance.name}", subject)
        except UnavailableError as error:  # what else was found of the segment counts all the same
            notes.leave_open(subject, str(error))
            return False
        return True

    def _limits(self, group: str, start: State, replayed: State, rate: float) -> ResidualLimits:
        """The calibrated limits, widened by what the spacing of float32 hides where an update is tiny."""
        if group == "memory":
            return _residual_limits(self.entry.memory, 0.0)
        limits = _residual_limits(self.entry.weights, self.update_floor if rate else 0.0)
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
            bucket: BucketSummary | None = getattr(claimed.post, mode)
            if bucket is not None:
                notes.note(self._bucket(mode, bucket, moved), f"{mode} summary", subject, advisory=True)

    def _sketch(self, text: str, moved: ReplayedState, room: float) -> Finding:
        claimed = decode_sketch(text)
        projection = Projection(projection_seed(self.spec), self.spec.recorded.projection_width)
        return replace(projection.compare(claimed, moved), allowed=self.entry.projection + room)

    def _bucket(self, mode: str, claimed: BucketSummary, moved: ReplayedState) -> Finding:
        settings = self.spec.recorded
        bucket = Bucket("grid" if mode == "grid" else "fp16_rne", settings.grid_eps, settings.hint_margin)
        hints = self.run.read_blob(claimed.hints) if claimed.hints is not None else b""
        return bucket.compare(BucketClaim(claimed.digest, hints).to_bytes(), moved)

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


def _residual_limits(limits: StateLimits, update_floor: float) -> ResidualLimits:
    """The limits as the tolerance takes them; an absent `element` or `stretch` is no limit."""
    return ResidualLimits(
        limits.overall,
        limits.worst_tensor,
        limits.mismatch_share,
        math.inf if limits.element is None else limits.element,
        update_floor,
        math.inf if limits.stretch is None else limits.stretch,
    )


def part(state: State, group: str) -> dict[str, Tensor]:
    """The weights of a state, or its optimizer memory and buffers."""
    prefixes = ("weights.",) if group == "weights" else MEMORY
    return {name: tensor for name, tensor in state.items() if name.startswith(prefixes)}
