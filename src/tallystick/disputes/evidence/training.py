"""A claim about a training: the limits of honest stacks, and whether opened operators are those of one of its steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from typing import ClassVar, Final, TypeAlias

import numpy as np

from tallystick.audits.checked_run import CheckedRun
from tallystick.audits.limits import Calibration, LimitsEntry, StateLimits, shipped_calibration
from tallystick.audits.opening import check_anchors, gather_records
from tallystick.audits.replay import as_float
from tallystick.audits.same_training import difference
from tallystick.audits.tolerant import Mask, find_undetermined, part, share_of_update, workload_of
from tallystick.core.digests import Digest
from tallystick.core.errors import ProofError, UnavailableError
from tallystick.core.tensor_digests import tensor_digest
from tallystick.core.tensors import State, Tensor
from tallystick.disputes.evidence.view import OpeningView, as_prover_fault, require_claim
from tallystick.formats.claims import Log
from tallystick.formats.data.step_program import projection_seed
from tallystick.formats.records import StepRecord, decode_sketch
from tallystick.formats.spec import Origin
from tallystick.formats.store.run import RunDirectory
from tallystick.programs.step_names import BATCH, STATE_PREFIXES
from tallystick.verdicts.distances import Projection, Sketch
from tallystick.verdicts.exact import LossBand
from tallystick.verdicts.opening.binding import check_position, states_around
from tallystick.verdicts.opening.published import Published
from tallystick.verdicts.tolerance import ReplayedState, euclidean, inner, square_sum
from tallystick.verdicts.verdict import Findings, require

# Limits for windows up to twice as long as the longest calibrated one: the limits of the longest, multiplied.
#
# Drift is calibrated over 1, 8 and 32 steps. Beyond that, it is assumed to grow with the cube of the number of steps:
# from 8 to 32 steps, 162 of the 176 limits of the shipped table grow by no more. For still longer windows, such limits
# would allow everything.

Kind: TypeAlias = tuple[str, str, str]
"""Family, optimizer and precision."""
STRETCHED_MAX: Final = 2.0
"""The longest window with limits, as a multiple of the longest calibrated window."""
GROWTH: Final = 3.0
"""The exponent with which limits grow with the number of steps."""


def loosest(calibration: Calibration, start: int, steps: int, read: Callable[[LimitsEntry], float]) -> float:
    """The loosest value of one limit among all kinds of training; infinite if none is calibrated."""
    kinds = sorted({_kind_of(entry) for entry in calibration.entries})
    limits = (limits_of(calibration, kind, start, steps) for kind in kinds)
    return max((read(entry) for entry in limits if entry is not None), default=math.inf)


def limits_of(calibration: Calibration, kind: Kind, start: int, steps: int) -> LimitsEntry | None:
    """The limits for `steps` steps from state `start`, stretched if necessary; `None` if the window is too long."""
    entry = calibration.entry_at(kind, start, steps)
    if entry is not None:
        return entry
    fitting = [each for each in calibration.entries if _kind_of(each) == kind and each.from_step <= start]
    longest = max(fitting, key=lambda each: (each.window, each.from_step), default=None)
    if longest is None or steps > STRETCHED_MAX * longest.window:
        return None
    return stretched(longest, steps)


def stretched(entry: LimitsEntry, steps: int) -> LimitsEntry:
    """An entry for a longer window: its limits times (steps ÷ window)³."""
    factor = (steps / entry.window) ** GROWTH
    changed = {
        "window": steps,
        "weights": _times(entry.weights, factor),
        "memory": _times(entry.memory, factor),
        "projection": entry.projection * factor,
        "loss_band": entry.loss_band * factor,
    }
    return entry.model_copy(update=changed)


def _times(limits: StateLimits, factor: float) -> StateLimits:
    values = {name: value for name, value in limits.model_dump().items() if isinstance(value, float)}
    return limits.model_copy(update={name: value * factor for name, value in values.items()})


def _kind_of(entry: LimitsEntry) -> Kind:
    return entry.family, entry.optimizer, entry.dtype


# A claim about a training run: its evidence, and the limits within which honest stacks repeat it.


@dataclass
class TrainingStatement:
    """A training run under a claim; its anchors are rechecked once, and `is_whole` is set then.

    `calibration` holds how far honest stacks were measured to differ. `origins` are weights that runs may begin with,
    as the reader has them.
    """

    run: RunDirectory
    origins: tuple[Origin, ...] = ()
    calibration: Calibration = field(default_factory=shipped_calibration)
    is_whole: bool = field(default=False, init=False)
    levels: ClassVar[int] = 2
    known: ClassVar[Mapping[Digest, Tensor]] = {}

    @property
    def tree(self) -> Log:
        """The tree of the records."""
        return self.run.claim().transcript

    @cached_property
    def evidence(self) -> CheckedRun:
        """The run, with every digest rechecked except those of its anchors; raises `ProofError`."""
        return gather_records(self.run)

    @property
    def origin(self) -> Origin | None:
        """The weights that the spec states as the first ones; `None` if the reader does not have them."""
        stated = self.evidence.spec.first_weights
        return next((each for each in self.origins if each.digest == stated), None)

    def require_whole(self) -> None:
        """Recheck every file, once; raises `ProofError` with the first check that fails."""
        if not self.is_whole:
            with as_prover_fault():
                check_anchors(self.evidence)
            self.is_whole = True

    @property
    def kind(self) -> Kind:
        """The kind of training; raises `UnavailableError` if it is not known."""
        workload = workload_of(self.evidence)
        return workload.family, workload.optimizer, workload.dtype

    def is_calibrated(self, start: int, steps: int) -> bool:
        """Whether limits are calibrated for exactly this window."""
        try:
            return self.calibration.entry_at(self.kind, start, steps) is not None
        except UnavailableError:
            return False

    def limits(self, start: int, steps: int) -> LimitsEntry:
        """The limits for `steps` steps from state `start`, stretched if necessary; raises `UnavailableError`."""
        limits = limits_of(self.calibration, self.kind, start, steps)
        if limits is None:
            raise UnavailableError(f"no limits are calibrated near {' '.join(self.kind)} over {steps} steps")
        return limits

    def limit(self, start: int, steps: int, read: Callable[[LimitsEntry], float]) -> float:
        """The limit that `read` selects, for `steps` steps from state `start`.

        If this kind of training has no limit, the loosest of all kinds; if none has one, infinity.
        """
        try:
            return read(self.limits(start, steps))
        except UnavailableError:
            return loosest(self.calibration, start, steps, read)

    def undetermined(self, start: State, end: State) -> dict[str, Mask]:
        """Masks of the elements of a replayed state that no replay determines, by the names of the tensors."""
        spec = self.evidence.spec
        decays = (rule.second_moment_decay or 0.0 for rule in spec.optimizer or ())
        decay = spec.recipe.optimizer.betas[1] if spec.recipe else min(decays, default=0.0)
        try:
            dtype = self.kind[2]
        except UnavailableError:
            dtype = "bf16"  # the coarser precision, where nothing is calibrated for this training
        return find_undetermined(end, dtype, start, decay)

    def anchor_before(self, step: int) -> int:
        """The last anchor at or before the state after `step`."""
        return max(mark for mark in self.evidence.anchors if mark <= step)


# The update of one step, as its record's sketches state it and as two states give it; what another rate would explain.
#
# Every optimizer here moves the weights by the learning rate times a direction that does not depend on it. So a step at
# another rate is the right step times one number, in its sketch as well. Other causes can scale a step too, such as
# clipping under plain descent; the sentence says what would give the difference, not what did.

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
    replayed = [projection.sketch(each) for each in (before, after)]
    with np.errstate(all="ignore"):
        update = replayed[1] - replayed[0]
        scale = max(euclidean(update), projection.update_floor * euclidean(replayed[1]))
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


# Whether opened operators are those of a step of the claimed training.
#
# An honest prover's replay may have other bits than its records. So if the opened state is not the exact state that the
# record names, the sketch decides within calibrated limits. A record without a sketch promises bits, and bits are
# compared. Loss and outputs are compared within limits too. What the spec fixes is exact: graph, batch, schedule and
# position.
#
# The state before a step in the middle of a segment is bound only by a sketch, which a prover can forge. Whether the
# records lead to this state can be decided only by a replay from the anchor before it (`replays.py`).

PROJECTION: Final = attrgetter("projection")
STEP_FACTOR: Final = 2.0
"""The factor on the limit of a single step: the step starts from a state that has drifted already."""


def check_step(training: TrainingStatement, view: OpeningView) -> str:
    """Raise `ProofError` unless the opened operators are those of a claimed step.

    Returns the question that only a replay decides; empty if none stays open. Raises `UnavailableError` if no limits
    are known for the comparison of states.
    """
    opening, evidence = view.opening, training.evidence
    record = opening.opened_record()
    if not isinstance(record, StepRecord):
        raise ProofError("the opened record is no step of a training")
    require_claim(opening, evidence.claim, record.graph or evidence.spec.graph)
    if record.graph is not None and evidence.program is not None:
        first = evidence.program.graph
        unlike = difference(first, view.graph, is_updated_alike=record.optimizer is None)
        require(not unlike, f"the graph of step {record.index} is no step of the training: {unlike}")
    check_position(opening, record.index)
    return _OpenedStep(training, view, record).check()


@dataclass(frozen=True)
class _OpenedStep:
    """The operators of one step; `start` is the anchor before it."""

    training: TrainingStatement
    view: OpeningView
    record: StepRecord

    def check(self) -> str:
        self._check_batch()
        self._check_rates()
        self._check_loss()
        self._check_rest()
        return self._check_states()

    @property
    def start(self) -> int:
        return self.training.anchor_before(self.record.index - 1)

    @cached_property
    def anchor(self) -> State:
        return self.training.evidence.state(self.start)

    @cached_property
    def opened(self) -> tuple[State, State]:
        """The opened states before and after the step, without the parts that no step reads or writes."""
        names = [each.name for each in self.view.graph.inputs if each.name.startswith(STATE_PREFIXES)]
        return self.view.values(names), self.view.results(names)

    def _check_batch(self) -> None:
        program, step = self.training.evidence.program, self.record.index
        assert program is not None  # the opened graph is the spec's
        wanted = {name: tensor_digest(tensor) for name, tensor in program.batch(step).items()}
        given = {name: named for name, named in self.view.opening.sources.items() if name.startswith(BATCH)}
        require(given.items() <= wanted.items(), f"the operators read another batch than step {step}")

    def _check_rates(self) -> None:
        notes, evidence = Findings(), self.training.evidence

        def read(names: Mapping[str, Digest]) -> dict[str, Tensor]:
            return {name: self.view.named(name, named) for name, named in names.items() if name != "loss"}

        Published(evidence.claim, evidence.spec).check_step(notes, self.view.opening, self.record, read)
        bad = [finding for finding in notes.seen if not finding.agrees]
        require(not bad, f"{bad[0].where}: {bad[0].detail}" if bad else "")

    def _check_loss(self) -> None:
        """Compare the record's loss with that of the opened step, within a band if one is calibrated."""
        index, stated = self.record.index, self.record.loss
        loss = float(self.view.results(["loss"])["loss"].values())
        try:
            slack = self.training.limits(self.start, index - self.start).loss_band
        except UnavailableError:
            slack = 0.0
        band = LossBand(self.training.evidence.spec.recorded.loss_decimals, slack, permits_non_finite=True)
        require(
            band.compare(stated, loss).agrees, f"step {index} states the loss {as_float(stated)}, and gave {loss:.6f}"
        )

    def _check_rest(self) -> None:
        """Compare the parts of the state that no step reads or writes with those of the anchor."""
        opening = self.view.opening
        rest = {name: tensor_digest(each) for name, each in self.anchor.items() if not name.startswith(STATE_PREFIXES)}
        same = opening.rest_before == opening.rest_after == rest
        require(same, f"the rest of the state around step {self.record.index} is not that of the anchor before it")

    def _check_states(self) -> str:
        before, after = states_around(self.view.opening)
        index, evidence = self.record.index, self.training.evidence
        is_bound = self.record.pre.exact == before
        if self.start == index - 1:
            require(before == evidence.anchors[self.start].digest, f"step {index} does not start from its anchor")
            is_bound = True
        elif not is_bound:
            self._check_before()
        if self.record.post.exact != after:
            self._check_after()
        return "" if is_bound else f"whether the state before step {index} is that of a replay"

    def _check_before(self) -> None:
        """Compare the opened state before the step with the sketch in the record."""
        sketch, steps = self.record.pre.projection, self.record.index - 1 - self.start
        where = f"the state before step {self.record.index}"
        if sketch is None:
            raise ProofError(f"{where} is not the recorded one, of which there is no sketch")
        moved = ReplayedState(part(self.anchor, "weights"), part(self.opened[0], "weights"))
        distance = self._projection.compare(decode_sketch(sketch), moved).distance
        allowed = self.training.limit(self.start, steps, PROJECTION) + self._undetermined_share(self.opened[0])
        require(distance <= allowed, f"{where} lies {distance:.3g} from its sketch, of {allowed:.3g}")

    def _check_after(self) -> None:
        """Compare the opened update of this step with the difference of the record's two sketches."""
        where = f"the state after step {self.record.index}"
        require(
            self.record.post.projection is not None, f"{where} is not the recorded one, of which there is no sketch"
        )
        update = step_update(self._projection, self.record, *(part(each, "weights") for each in self.opened))
        room = self._undetermined_share(self.opened[1])
        allowed = STEP_FACTOR * self.training.limit(self.start, 1, PROJECTION) + room
        why = explained_by_rate(self.training.evidence, self.record.index, update, allowed)
        far = f"the recorded update lies {update.distance:.3g} from the opened one, of {allowed:.3g}"
        require(update.distance <= allowed, f"{where}: {far}{why}")

    def _undetermined_share(self, end: State) -> float:
        return share_of_update(self.anchor, end, self.training.undetermined(self.anchor, end))

    @cached_property
    def _projection(self) -> Projection:
        spec = self.training.evidence.spec
        return Projection(projection_seed(spec), spec.recorded.projection_width)
