"""The statement of a claim as everybody holds it, and whether opened operators belong to it.

An honest prover's replay may have other bits than its records. So where a record names the exact state and the opened
one is another, the sketch decides within calibrated limits; a record without a sketch promises bits and is held to
them. Loss and outputs are compared within limits too. What the spec fixes is exact: graph, batch, schedule, position.

The state before a step in the middle of a segment is bound by a sketch only, which a prover can forge: whether it is
the one that the records lead to is a question that takes a replay from the anchor before it (`replays.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import Final, Protocol

import numpy as np

from tallystick.audits.calibration import Calibration, LimitsEntry, shipped_calibration
from tallystick.audits.checked_run import CheckedRun
from tallystick.audits.inference import Calls
from tallystick.audits.replay import as_float
from tallystick.audits.tolerant import part
from tallystick.audits.training_kind import workload_of
from tallystick.audits.undetermined import Mask, find_undetermined, share_of_update
from tallystick.commitments.digests import Digest, digest_bytes
from tallystick.disputes.evidence.drift import Leeway, deviation
from tallystick.disputes.evidence.limits import Kind, kinds_in, limits_of
from tallystick.disputes.evidence.subjects import whole_calls, whole_evidence
from tallystick.disputes.evidence.view import OpeningView, supplied
from tallystick.disputes.game.state import PostedClaim, Tree
from tallystick.documents.files import read_document
from tallystick.errors import ProofError, UnavailableError
from tallystick.judging.findings import Findings, require
from tallystick.judging.opening.binding import check_binding, check_position, states_around
from tallystick.judging.opening.files import OPENING
from tallystick.judging.published import Published
from tallystick.store.inference import InferenceDirectory, claims_inference
from tallystick.store.run import RunDirectory
from tallystick.tensors.digest import tensor_digest
from tallystick.tensors.tensor import State, Tensor
from tallystick.tolerances.loss import LossBand
from tallystick.tolerances.projection import Projection
from tallystick.tolerances.tolerance import ReplayedState
from tallystick.transcripts.claim import Log
from tallystick.transcripts.opening import Opening, state_digest_of
from tallystick.transcripts.record import CallRecord, StepRecord
from tallystick.transcripts.summary import decode_sketch
from tallystick.workloads.names import BATCH, STATE_PREFIXES
from tallystick.workloads.optimizer import UpdateRule
from tallystick.workloads.plan import projection_seed

WEIGHTS: Final = ("weights.", "buffers.")
PROJECTION: Final = attrgetter("projection")
STEP_FACTOR: Final = 2.0
"""A step's own update may differ by this many times the limit of a single step: it starts from a drifted state."""


class ClaimedRun(Protocol):
    """A statement that hangs together."""

    def check(self, view: OpeningView) -> tuple[str, ...]:
        """Raise `ProofError` unless the opened operators belong to this claim; returns what takes a replay to tell."""
        ...

    @property
    def published(self) -> Published | None:
        """The claim for whoever judges a leaf."""
        ...


def hold(statement: Path, claim: PostedClaim) -> ClaimedRun:
    """Read the statement of a claim; raises `ProofError` where it is not whole, or not what was claimed."""
    with supplied():
        if claim.levels == 1:
            return ClaimedOperators.of(statement, claim)
        if claims_inference(statement):
            return ClaimedCalls.of(statement, claim)
        return ClaimedTraining.of(statement, claim)


@dataclass(frozen=True)
class ClaimCache:
    """Statements that were read before, each for a claim about one tree: another claim may name the same files."""

    _read: dict[tuple[Path, Tree], ClaimedRun] = field(default_factory=dict)

    def of(self, statement: Path, claim: PostedClaim) -> ClaimedRun:
        """As `hold`."""
        key = (statement, claim.tree)
        if key not in self._read:
            self._read[key] = hold(statement, claim)
        return self._read[key]


@dataclass(frozen=True)
class ClaimedTraining:
    """A training: `calibration` holds how far honest stacks lie apart."""

    evidence: CheckedRun
    calibration: Calibration

    @classmethod
    def of(cls, statement: Path, claim: PostedClaim, calibration: Calibration | None = None) -> ClaimedTraining:
        """Raises `ProofError` where something does not hang together."""
        evidence = whole_evidence(RunDirectory(statement))
        _require_claimed(evidence.claim.transcript, claim)
        return cls(evidence, calibration or shipped_calibration())

    @property
    def published(self) -> Published:
        """Claim and spec."""
        return Published(self.evidence.claim, self.evidence.spec)

    def check(self, view: OpeningView) -> tuple[str, ...]:
        """As `ClaimedRun.check`."""
        opening, evidence = view.opening, self.evidence
        record = _step_of(opening)
        _require_same(opening, evidence.claim.identity, evidence.claim.transcript, evidence.spec.graph)
        check_position(opening, record.index)
        self._check_batch(opening, record.index)
        self._check_rates(view, record)
        self._check_loss(view, record)
        self._check_rest(opening, record.index)
        return self._check_states(view, record)

    def entry(self, start: int, steps: int) -> LimitsEntry:
        """The limits for a segment; raises `UnavailableError` where none are calibrated."""
        kind = self._kind
        found = self.calibration.entry_at(kind, start, steps)
        if found is None:
            raise UnavailableError(f"no limits are calibrated for {' '.join(kind)} over {steps} steps")
        return found

    def limits(self, start: int, steps: int) -> LimitsEntry:
        """As `entry`; a somewhat longer window than any calibrated one has the limits of the longest, stretched."""
        found = limits_of(self.calibration, self._kind, start, steps)
        if found is None:
            raise UnavailableError(f"no limits are calibrated near {' '.join(self._kind)} over {steps} steps")
        return found

    def limit(self, start: int, steps: int, read: Callable[[LimitsEntry], float]) -> float:
        """One of the limits; the loosest of all kinds of training where this kind has none, infinite where none has."""
        try:
            return read(self.limits(start, steps))
        except UnavailableError:
            found = [limits_of(self.calibration, kind, start, steps) for kind in kinds_in(self.calibration)]
            return max((read(each) for each in found if each is not None), default=math.inf)

    def undetermined(self, start: State, end: State) -> dict[str, Mask]:
        """The elements of a replayed state that no replay determines."""
        spec = self.evidence.spec
        rules = tuple(UpdateRule.of_group(group) for group in spec.optimizer or ())
        decay = spec.recipe.optimizer.betas[1] if spec.recipe else min((rule.betas[1] for rule in rules), default=0.0)
        return find_undetermined(end, self._dtype, start, decay)

    @property
    def _kind(self) -> Kind:
        workload = workload_of(self.evidence)
        return workload.family, workload.optimizer, workload.dtype

    @property
    def _dtype(self) -> str:
        """The precision that is calibrated; the coarser one where nothing is calibrated for this training."""
        try:
            return self._kind[2]
        except UnavailableError:
            return "bf16"

    def anchor_before(self, step: int) -> int:
        """The last anchor at or before the state after `step`."""
        return max(mark for mark in self.evidence.anchors if mark <= step)

    def _check_batch(self, opening: Opening, step: int) -> None:
        program = self.evidence.program
        assert program is not None  # the opened graph is the spec's
        wanted = {name: tensor_digest(tensor) for name, tensor in program.batch(step).items()}
        found = {name: named for name, named in opening.sources.items() if name.startswith(BATCH)}
        require(found.items() <= wanted.items(), f"the operators read another batch than step {step}")

    def _check_rates(self, view: OpeningView, record: StepRecord) -> None:
        notes = Findings()

        def read(names: Mapping[str, Digest]) -> dict[str, Tensor]:
            return {name: view.named(name, found) for name, found in names.items() if name != "loss"}

        self.published.check_step(notes, view.opening, record, read)
        bad = [finding for finding in notes.seen if not finding.agrees]
        require(not bad, f"{bad[0].where}: {bad[0].detail}" if bad else "")

    def _check_loss(self, view: OpeningView, record: StepRecord) -> None:
        """The record's loss is that of the opened step, within a band where one is calibrated."""
        loss = float(view.results(["loss"])["loss"].values())
        band = LossBand(self.evidence.spec.recorded.loss_decimals, self._slack(record), permits_non_finite=True)
        finding = band.compare(record.loss, loss)
        require(finding.agrees, f"step {record.index} states the loss {as_float(record.loss)}, and gave {loss:.6f}")

    def _slack(self, record: StepRecord) -> float:
        start = self.anchor_before(record.index - 1)
        try:
            return self.limits(start, record.index - start).loss_band
        except UnavailableError:
            return 0.0

    def _check_rest(self, opening: Opening, step: int) -> None:
        """What no step reads or writes is that of the anchor."""
        anchor = self.evidence.state(self.anchor_before(step - 1))
        carried = {name: tensor_digest(each) for name, each in anchor.items() if not name.startswith(STATE_PREFIXES)}
        same = opening.rest_before == opening.rest_after == carried
        require(same, f"the rest of the state around step {step} is not that of the anchor before it")

    def _check_states(self, view: OpeningView, record: StepRecord) -> tuple[str, ...]:
        before, after = states_around(view.opening)
        start = self.anchor_before(record.index - 1)
        anchor, opened = self.evidence.state(start), self._states(view)
        is_bound = record.pre.exact == before
        if start == record.index - 1:
            require(
                before == self.evidence.anchors[start].digest, f"step {record.index} does not start from its anchor"
            )
            is_bound = True
        elif not is_bound:
            self._check_before(record, anchor, opened[0], start)
        if record.post.exact != after:
            self._check_after(record, anchor, opened, start)
        return () if is_bound else (f"whether the state before step {record.index} is that of a replay",)

    def _check_before(self, record: StepRecord, anchor: State, opened: State, start: int) -> None:
        sketch = record.pre.projection
        where = f"the state before step {record.index}"
        require(sketch is not None, f"{where} is not the recorded one, of which there is no sketch")
        assert sketch is not None  # required above
        moved = ReplayedState(part(anchor, "weights"), part(opened, "weights"))
        finding = self._projection.compare(decode_sketch(sketch), moved)
        allowed = self.limit(start, record.index - 1 - start, PROJECTION) + self._room(anchor, opened)
        require(finding.distance <= allowed, f"{where} lies {finding.distance:.3g} from its sketch, of {allowed:.3g}")

    def _check_after(self, record: StepRecord, anchor: State, opened: tuple[State, State], start: int) -> None:
        """The update of this one step, as its two sketches have it, is the opened one."""
        where = f"the state after step {record.index}"
        require(record.post.projection is not None, f"{where} is not the recorded one, of which there is no sketch")
        distance = step_distance(self._projection, record, *(part(each, "weights") for each in opened))
        room = self._room(anchor, opened[1])
        allowed = STEP_FACTOR * self.limit(start, 1, PROJECTION) + room
        require(distance <= allowed, f"{where}: the step lies {distance:.3g} from its sketches, of {allowed:.3g}")

    def _room(self, start: State, end: State) -> float:
        return share_of_update(start, end, self.undetermined(start, end))

    def _states(self, view: OpeningView) -> tuple[State, State]:
        """The opened states before and after the step, without what is carried along."""
        names = [each.name for each in view.graph.inputs if each.name.startswith(STATE_PREFIXES)]
        return view.values(names), view.results(names)

    @cached_property
    def _projection(self) -> Projection:
        spec = self.evidence.spec
        return Projection(projection_seed(spec), spec.recorded.projection_width)


@dataclass(frozen=True)
class ClaimedCalls:
    """Calls of a model."""

    calls: Calls

    @classmethod
    def of(cls, statement: Path, claim: PostedClaim) -> ClaimedCalls:
        """Raises `ProofError` where something does not hang together, weights and calls included."""
        calls = whole_calls(InferenceDirectory(statement))
        _require_claimed(calls.claim.transcript, claim)
        calls.weights()
        for record in calls.records:
            calls.inputs(record)
            calls.outputs(record)
        return cls(calls)

    @property
    def published(self) -> Published:
        """The claim."""
        return Published(self.calls.claim)

    def check(self, view: OpeningView) -> tuple[str, ...]:
        """As `ClaimedRun.check`; nothing is left open."""
        opening, claim = view.opening, self.calls.claim
        record = opening.opened_record()
        if not isinstance(record, CallRecord):
            raise ProofError("the opened record is no call")
        _require_same(opening, claim.identity, claim.transcript, claim.graph)
        weights = {name: found for name, found in opening.sources.items() if name.startswith(WEIGHTS)}
        require(state_digest_of(weights | opening.rest_before) == claim.weights, "the operators read other weights")
        given = {name.removeprefix(BATCH): found for name, found in opening.sources.items() if name.startswith(BATCH)}
        require(state_digest_of(given) == record.inputs, f"the operators read other inputs than call {record.index}")
        if state_digest_of(opening.results) != record.outputs:
            self._check_outputs(view, record)
        return ()

    def _check_outputs(self, view: OpeningView, record: CallRecord) -> None:
        recorded = self.calls.outputs(record)
        require(recorded.keys() == view.opening.results.keys(), "the operators give other outputs than were recorded")
        leeway = Leeway.of(view.graph.nodes, view.cuts.specs)
        given = {output.name: output.value for output in view.graph.outputs}
        for name, opened in view.results(recorded).items():
            far = deviation(recorded[name], opened, leeway, given[name])
            require(far <= 1.0, f"{name} of call {record.index} lies {far:.3g} tolerances from the recorded one")


@dataclass(frozen=True)
class ClaimedOperators:
    """Operators that were all committed to beforehand."""

    opening: Opening

    @classmethod
    def of(cls, statement: Path, claim: PostedClaim) -> ClaimedOperators:
        """Raises `ProofError` where the operators are not those of the claim."""
        opening = Opening.from_bytes(read_document(statement / OPENING), OPENING)
        _require_claimed(opening.operators, claim)
        return cls(opening)

    @property
    def published(self) -> None:
        """There is nothing above the operators."""
        return None

    def check(self, view: OpeningView) -> tuple[str, ...]:
        """As `ClaimedRun.check`; nothing is left open."""
        require(view.opening == self.opening, "another opening than the claimed one")
        check_binding(view.opening)
        return ()


def step_distance(projection: Projection, record: StepRecord, before: State, after: State) -> float:
    """How far the update between the sketches of a record lies from that of two states, in units of the latter."""
    claimed = [projection.decode(decode_sketch(each.projection or "")) for each in (record.pre, record.post)]
    found = [projection.sketch(each) for each in (before, after)]
    with np.errstate(all="ignore"):
        gap = float(np.linalg.norm((claimed[1] - claimed[0]) - (found[1] - found[0])))
        scale = max(
            float(np.linalg.norm(found[1] - found[0])), projection.update_floor * float(np.linalg.norm(found[1]))
        )
    return gap / scale if scale else (np.inf if gap else 0.0)


def _step_of(opening: Opening) -> StepRecord:
    record = opening.opened_record()
    if not isinstance(record, StepRecord):
        raise ProofError("the opened record is no step of a training")
    return record


def _require_claimed(log: Log, claim: PostedClaim) -> None:
    found = (digest_bytes(log.root).hex(), log.size)
    require(found == (claim.root, claim.size), "the statement is about another tree than the claim")


def _require_same(opening: Opening, claim: Digest, transcript: Log, graph: Digest | None) -> None:
    require(opening.claim == claim, f"the opening belongs to the claim {opening.claim}")
    require(opening.transcript == transcript, "the opening brings another transcript than the claim")
    require(opening.graph == graph, f"the operators are those of {opening.graph}, another graph than the claim's")
