"""Replays and audits on this machine: the first doubt about a claim, and how a judge rules by them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeAlias

from tallystick.audits.checked_run import CheckedRun
from tallystick.audits.first_state import begun_elsewhere, judge_initial_state
from tallystick.audits.opening import graph_replayer, out_of_reach
from tallystick.audits.policy import Policy, Segment
from tallystick.audits.replay import TRAJECTORY, judge_whole_state
from tallystick.audits.report import TrainingReport
from tallystick.audits.screens import screen_anchors
from tallystick.audits.tolerant import TolerantJudge, part, settle, workload_of
from tallystick.audits.training import audit_training
from tallystick.core.errors import ProofError, UnavailableError
from tallystick.core.tensors import State, Tensor
from tallystick.disputes.evidence.locate import Leeway, deviation
from tallystick.disputes.evidence.training import (
    PROJECTION,
    STEP_FACTOR,
    StepUpdate,
    TrainingStatement,
    explained_by_rate,
    step_update,
)
from tallystick.disputes.evidence.view import OpeningView
from tallystick.disputes.game.protocols import Doubt
from tallystick.formats.data.step_program import projection_seed
from tallystick.formats.records import AnchorRecord, StepRecord, read_record
from tallystick.formats.spec import Environment
from tallystick.formats.store.log import read_lines
from tallystick.programs.step_names import STATE_PREFIXES
from tallystick.verdicts.distances import Projection
from tallystick.verdicts.exact import element_count
from tallystick.verdicts.first_weights import compare_first_weights
from tallystick.verdicts.tolerance import Finding
from tallystick.verdicts.verdict import Fault, Findings

if TYPE_CHECKING:
    from tallystick.engines.torch.training.verifier_stack import GraphReplayer


# Replays on this machine. They decide what no opening can show: whether the records lead to a certain state.
#
# A challenger replays to find where a run goes wrong. A member of a committee replays one segment at most, to decide
# who is right about a state inside it or about an anchor. States are compared as in a tolerant audit. If no limits are
# calibrated for the window:
#
# * on the stack that the run states, bits are compared;
# * on another stack, the limits of the longest calibrated window are stretched (`limits.py`);
# * if the window is too long for that, each tensor may differ as far as so many operators may drift (`drift.py`),
#   without the elements that no replay determines. Over such a window, an honest prover has to replay on the stack that
#   it stated; closer anchors avoid that.

UPDATE_FLOOR: Final = Policy().update_floor


@dataclass
class Replays:
    """Replays of one training on this machine; `steps` counts the steps that were replayed."""

    training: TrainingStatement
    device: str = "cpu"
    steps: int = 0

    def check_before(self, opened: State, step: int) -> Findings:
        """Compare an opened state before `step` with a replay from the anchor before it."""
        window = self._window(self.training.anchor_before(step - 1), step - 1)
        return self._compared(window, {**opened, **window.replayer.carried})

    def check_anchor(self, mark: int) -> Findings:
        """Compare an anchor with a replay from the one before it, and the first with the recipe's initial state."""
        evidence, notes = self.training.evidence, Findings()
        if mark == 0:
            claimed, drawn = evidence.state(0), self._replayer().initial_state()
            judge_initial_state(notes, claimed, drawn, False, begun_elsewhere(evidence, claimed))
            return notes
        return self._compared(self._window(self.training.anchor_before(mark - 1), mark), evidence.state(mark))

    def rule_start(self, view: OpeningView, factor: float) -> Ruled:
        """Rule on the opened state before a step, by a replay from the anchor before it.

        The limits are multiplied by `factor`.
        """
        names = [each.name for each in view.graph.inputs if each.name.startswith(STATE_PREFIXES)]
        step = int(view.value("position.step").values()) + 1
        wrong = objection(self.check_before(view.values(names), step), factor)
        return (
            (Fault.PROVER, wrong) if wrong else (Fault.CHALLENGER, f"the state before step {step} is that of a replay")
        )

    def step_updates(self, start: int, end: int) -> Iterator[tuple[int, StepUpdate]]:
        """For each step from anchor `start` to `end`: its index, and its update beside that of its sketches."""
        evidence, replayer = self.training.evidence, self._replayer()
        replayer.restore(evidence.state(start))
        projection = Projection(projection_seed(evidence.spec), evidence.spec.recorded.projection_width)
        for index in range(start + 1, end + 1):
            before, record = _weights(replayer), evidence.step(index)
            replayer.step(index)
            self.steps += 1
            if record.pre.projection is not None and record.post.projection is not None:
                yield index, step_update(projection, record, before, _weights(replayer))

    def _replayer(self) -> GraphReplayer:
        if self.training.evidence.program is None:
            raise UnavailableError("the run has no step graph to replay")
        return graph_replayer(self.training.evidence, self.device)

    def _window(self, start: int, end: int) -> _Window:
        replayer, begun = self._replayer(), self.training.evidence.state(start)
        replayer.restore(begun)
        for index in range(start + 1, end + 1):
            replayer.step(index)
        self.steps += end - start
        return _Window(start, end, begun, replayer)

    def _compared(self, window: _Window, claimed: State) -> Findings:
        notes, replayed = Findings(), window.replayer.state()
        # on the stack that made the run, bits are compared where no limits are calibrated
        is_calibrated = self.training.is_calibrated(window.start, window.steps)
        if not is_calibrated and not environment_here(self.device).differences(self.training.evidence.environment):
            judge_whole_state(notes, claimed, replayed, f"step {window.end}")
            return notes
        try:
            judge = self._judge(window, element_count(part(replayed, "weights").values()))
            judge.state(notes, window.begun, claimed, replayed, Segment(window.start, window.end, True))
        except UnavailableError:
            return self._drifted(window, claimed, replayed)
        return notes

    def _judge(self, window: _Window, parameters: int) -> TolerantJudge:
        evidence, limits = self.training.evidence, self.training.limits(window.start, window.steps)
        if parameters > limits.parameters_max:
            raise UnavailableError(f"the limits were measured on models far smaller than {parameters} weights")
        workload = workload_of(evidence)
        return TolerantJudge(evidence.run, evidence.spec, workload, limits, UPDATE_FLOOR, self.device == "cpu")

    def _drifted(self, window: _Window, claimed: State, replayed: State) -> Findings:
        """Compare each tensor within the drift of so many operators; what no replay determines is left out."""
        notes, program = Findings(), self.training.evidence.program
        assert program is not None  # checked when the replayer was made
        leeway = Leeway.of(program.graph.nodes, program.graph.specs())
        leeway = replace(leeway, operators=window.steps * leeway.operators)
        settled = settle(claimed, replayed, self.training.undetermined(window.begun, replayed))
        for name in sorted(claimed.keys() | replayed.keys()):
            if name.startswith("rng.") and self.device != "cpu":
                continue
            is_given = name in settled and name in replayed
            far = deviation(settled[name], replayed[name], leeway) if is_given else math.inf
            notes.note(Finding(far, 1.0), "state drift", name)
        return notes


@dataclass(frozen=True)
class _Window:
    """A replay from the anchor `start`, whose state is `begun`, to the state after step `end`."""

    start: int
    end: int
    begun: State
    replayer: GraphReplayer

    @property
    def steps(self) -> int:
        return self.end - self.start


def objection(notes: Findings, factor: float = 1.0) -> str:
    """The first decisive finding beyond `factor` times its allowed distance, as a sentence; empty if there is none."""
    for each in notes.seen:
        if not each.advisory and not each.distance <= factor * each.allowed:
            return f"{each.where}: {each.name} {each.distance:.3g}, allowed {each.allowed:.3g} {each.detail}"
    return ""


def environment_here(device: str) -> Environment:
    """The environment of this machine, with that of CUDA if `device` is a CUDA device."""
    from tallystick.engines.torch.environment import describe_environment

    return describe_environment("cuda" if device.startswith("cuda") else "cpu")


def _weights(replayer: GraphReplayer) -> dict[str, Tensor]:
    return {name: tensor.copy() for name, tensor in part(replayer.state(), "weights").items()}


# Where a claim goes wrong: the first record that a challenger's own computation does not confirm.
#
# A challenger doubts a claim only if it is further off than `MARGIN` times what a judge allows. The judge computes on
# another stack, and a challenger that is right must not lose its bond through a rounding difference.

MARGIN: Final = 2.0
"""The factor by which a deviation has to exceed a judge's limits before a challenger stakes a bond on it."""
STEPWISE: Final = TRAJECTORY | {f"{name} summary" for name in ("exact", "fp16_rne", "grid", "projection")}
"""The findings that are about one step and not about an anchor."""
UNRULED: Final = frozenset({"tokenizer of the source"})
"""Findings that no judge of a record can decide, so a challenger stakes no bond on them."""
_STEP: Final = re.compile(r"\bsteps? (\d+)")


def doubt_training(training: TrainingStatement, replays: Replays, report: TrainingReport) -> Doubt | None:
    """The step or anchor at which a training first goes wrong.

    The report of a full audit gives the segment; a replay of the segment step by step gives the place in it.
    """
    decisive = (each for each in report.verdict.findings if not each.advisory and each.name not in UNRULED)
    bad = next((each for each in decisive if not each.distance <= MARGIN * each.allowed), None)
    if bad is None:
        return None
    reason = f"{bad.where}: {bad.name}: {bad.detail or f'{bad.distance:.3g} of {bad.allowed:.3g}'}"
    step = _STEP.search(bad.where)
    if step is None:
        return Doubt(0, training.evidence.claim.transcript.size, reason)
    return _located(training, replays, int(step.group(1)), bad, reason)


def _located(training: TrainingStatement, replays: Replays, step: int, bad: Finding, reason: str) -> Doubt:
    """The first step of the segment whose own update is wrong; otherwise the step or anchor of the finding."""
    evidence, size = training.evidence, training.evidence.claim.transcript.size
    start = training.anchor_before(step - 1) if step else 0
    end = min((mark for mark in evidence.anchors if mark >= step), default=step)
    if step and evidence.program is not None:
        allowed = MARGIN * STEP_FACTOR * training.limit(start, 1, PROJECTION)
        for index, update in replays.step_updates(start, end):
            if update.distance > allowed:
                off = f"the update of step {index} is {update.distance:.3g} of itself off, of {allowed:.3g}"
                why = explained_by_rate(evidence, index, update, allowed)
                place = evidence.run.place_of_step(index, size)
                return Doubt(place, place + 1, f"{off}{why}")
    is_of_step = bad.name in STEPWISE
    place = evidence.run.place_of_step(step, size) if is_of_step else _place_of_anchor(evidence, end)
    return Doubt(place, place + 1, reason)


def _place_of_anchor(evidence: CheckedRun, mark: int) -> int:
    for place, line in enumerate(read_lines(evidence.run.transcript_path)):
        record = read_record(line, f"record {place}")
        if isinstance(record, AnchorRecord) and record.index == mark:
            return place
    raise ProofError(f"the transcript holds no anchor after step {mark}")


# A full audit on this machine; a challenger contests and a committee member votes by its report.


def audit_whole(training: TrainingStatement, device: str) -> TrainingReport:
    """Audit all of a run within calibrated limits; if none are calibrated, bit by bit on the same stack."""
    from tallystick.engines.torch.training.verifier_stack import torch_verifier_stack

    evidence = training.evidence
    stack = replace(torch_verifier_stack(evidence.environment, device), origin=training.origin)
    report = audit_training(evidence.run, Policy(mode="tolerant", full=True), bytes(32), stack)
    if not report.verdict.unavailable or stack.environment.differences(evidence.environment):
        return report
    return audit_training(evidence.run, Policy(mode="exact", full=True), bytes(32), stack)


# How a judge rules on a claimed training: by its anchors, by a replay of one segment, or by a full audit.
#
# A judge that does not replay has no `device`. It rules by what can be read, or names the replay that would decide.

Ruled: TypeAlias = tuple[Fault | None, str]
"""Who is at fault and why; `None` if a committee has to decide, or a member cannot decide."""


def rule_training_record(training: TrainingStatement, line: bytes, device: str | None) -> Ruled:
    """Rule on a record that was revealed, and that the prover did not open as operators."""
    record = read_record(line, "record")
    if not isinstance(record, StepRecord | AnchorRecord):
        return Fault.CHALLENGER, f"the {record.kind} record is what claim and spec say"
    if training.evidence.program is None:
        if device is None:
            return None, "the run has no step graph; only a replay of its recipe can tell"
        return rule_by_audit(training, device)
    if isinstance(record, AnchorRecord):
        return _rule_anchor(training, record.index, device)
    if why := out_of_reach(training.evidence, record.index):
        return None, f"no replay leads to step {record.index}: {why}"
    return Fault.PROVER, "a step has operators, and the prover did not open them"


def _rule_anchor(training: TrainingStatement, mark: int, device: str | None) -> Ruled:
    """Rule on an anchor by its summaries and by what a step can change, and on a `device` by a replay.

    The first anchor is also compared with the weights that the spec states. A judge who has none does not clear it.
    """
    if mark == 0 and (wrong := _other_weights(training)):
        return Fault.PROVER, wrong
    screened = replace(training.evidence, findings=Findings())
    screen_anchors(screened)
    seen = [finding for finding in screened.findings.seen if finding.where.startswith(f"step {mark}")]
    if wrong := objection(Findings(seen)):
        return Fault.PROVER, wrong
    if device is None:
        return None, f"whether anchor {mark} follows from the one before it takes a replay"
    wrong = objection(Replays(training, device).check_anchor(mark))
    stated = training.evidence.spec.first_weights
    if not wrong and mark == 0 and stated is not None and training.origin is None:
        return None, f"whether the run begins with {stated} takes these weights: name their directory with --initial"
    return (Fault.PROVER, wrong) if wrong else (Fault.CHALLENGER, f"anchor {mark} is that of a replay")


def _other_weights(training: TrainingStatement) -> str:
    """Names what the first anchor holds instead of the stated weights; empty where that is nothing, or not known."""
    if training.origin is None:
        return ""
    differing = compare_first_weights(training.evidence.state(0), training.origin.weights).differing
    count = f"{len(differing)} tensors" if len(differing) > 1 else "1 tensor"
    named = f"{count} ({differing[0]})" if differing else ""
    return f"anchor 0 holds other numbers than {training.origin.digest} in {named}" if named else ""


def rule_by_audit(training: TrainingStatement, device: str) -> Ruled:
    """Rule on the whole run by a full audit; undecided if the audit is."""
    report = audit_whole(training, device)
    doubt = doubt_training(training, Replays(training, device), report)
    if doubt is not None:
        return Fault.PROVER, doubt.reason
    if report.verdict.unavailable:
        return None, report.verdict.unavailable[0]
    return Fault.CHALLENGER, "an audit of the whole run finds nothing"
