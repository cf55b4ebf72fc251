"""Whether opened operators are those of a step of the claimed training.

An honest prover's replay may have other bits than its records. So if the opened state is not the exact state that the
record names, the sketch decides within calibrated limits. A record without a sketch promises bits, and bits are
compared. Loss and outputs are compared within limits too. What the spec fixes is exact: graph, batch, schedule and
position.

The state before a step in the middle of a segment is bound only by a sketch, which a prover can forge. Whether the
records lead to this state can be decided only by a replay from the anchor before it (`replays.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import Final

from tallystick.audits.replay import as_float
from tallystick.audits.tolerant import part
from tallystick.audits.undetermined import share_of_update
from tallystick.commitments.digests import Digest
from tallystick.disputes.evidence.claimed_training import ClaimedTraining
from tallystick.disputes.evidence.step_update import explained_by_rate, step_update
from tallystick.disputes.evidence.view import OpeningView, require_claim
from tallystick.errors import ProofError, UnavailableError
from tallystick.judging.findings import Findings, require
from tallystick.judging.opening.binding import check_position, states_around
from tallystick.judging.published import Published
from tallystick.tensors.digest import tensor_digest
from tallystick.tensors.tensor import State, Tensor
from tallystick.tolerances.loss import LossBand
from tallystick.tolerances.projection import Projection
from tallystick.tolerances.tolerance import ReplayedState
from tallystick.transcripts.record import StepRecord
from tallystick.transcripts.summary import decode_sketch
from tallystick.workloads.names import BATCH, STATE_PREFIXES
from tallystick.workloads.plan import projection_seed
from tallystick.workloads.same_training import difference

PROJECTION: Final = attrgetter("projection")
STEP_FACTOR: Final = 2.0
"""The factor on the limit of a single step: the step starts from a state that has drifted already."""


def check_step(training: ClaimedTraining, view: OpeningView) -> tuple[str, ...]:
    """Raise `ProofError` unless the opened operators are those of a claimed step; returns what only a replay decides.

    Raises `UnavailableError` if no limits are known for the comparison of states.
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

    training: ClaimedTraining
    view: OpeningView
    record: StepRecord

    def check(self) -> tuple[str, ...]:
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
        found = {name: named for name, named in self.view.opening.sources.items() if name.startswith(BATCH)}
        require(found.items() <= wanted.items(), f"the operators read another batch than step {step}")

    def _check_rates(self) -> None:
        notes, evidence = Findings(), self.training.evidence

        def read(names: Mapping[str, Digest]) -> dict[str, Tensor]:
            return {name: self.view.named(name, found) for name, found in names.items() if name != "loss"}

        Published(evidence.claim, evidence.spec).check_step(notes, self.view.opening, self.record, read)
        bad = [finding for finding in notes.seen if not finding.agrees]
        require(not bad, f"{bad[0].where}: {bad[0].detail}" if bad else "")

    def _check_loss(self) -> None:
        """Compare the record's loss with that of the opened step, within a band if one is calibrated."""
        index, stated = self.record.index, self.record.loss
        loss = float(self.view.results(["loss"])["loss"].values())
        try:
            slack = self.training.limits.near(self.start, index - self.start).loss_band
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

    def _check_states(self) -> tuple[str, ...]:
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
        return () if is_bound else (f"whether the state before step {index} is that of a replay",)

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
