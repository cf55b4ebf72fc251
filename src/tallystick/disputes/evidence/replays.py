"""Replays on this machine. They decide what no opening can show: whether the records lead to a certain state.

A challenger replays to find where a run goes wrong. A member of a committee replays one segment at most, to decide who
is right about a state inside it or about an anchor. States are compared as in a tolerant audit. If no limits are
calibrated for the window:

* on the stack that the run states, bits are compared;
* on another stack, the limits of the longest calibrated window are stretched (`limits.py`);
* if the window is too long for that, each tensor may differ as far as so many operators may drift (`drift.py`), without
  the elements that no replay determines. Over such a window, an honest prover has to replay on the stack that it
  stated; closer anchors avoid that.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from tallystick.audits.initial import begun_elsewhere, judge_initial_state
from tallystick.audits.policy import Policy
from tallystick.audits.replay import judge_whole_state
from tallystick.audits.sampling import Segment
from tallystick.audits.tolerant import TolerantJudge, part
from tallystick.audits.training_kind import workload_of
from tallystick.audits.undetermined import settle
from tallystick.disputes.evidence.claimed_training import ClaimedTraining
from tallystick.disputes.evidence.drift import Leeway, deviation
from tallystick.disputes.evidence.opening_sources import graph_replayer
from tallystick.disputes.evidence.step_update import StepUpdate, step_update
from tallystick.errors import UnavailableError
from tallystick.judging.findings import Findings
from tallystick.tensors.tensor import State, Tensor
from tallystick.tolerances.projection import Projection
from tallystick.tolerances.streams import element_count
from tallystick.tolerances.tolerance import Finding
from tallystick.transcripts.environment import Environment
from tallystick.workloads.plan import projection_seed

if TYPE_CHECKING:
    from tallystick.frameworks.torch.training.graph_replayer import GraphReplayer

UPDATE_FLOOR: Final = Policy().update_floor


@dataclass
class Replays:
    """Replays of one training on this machine; `steps` counts the steps that were replayed."""

    training: ClaimedTraining
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
        if self._is_exact(window):
            judge_whole_state(notes, claimed, replayed, f"step {window.end}")
            return notes
        try:
            judge = self._judge(window, element_count(part(replayed, "weights").values()))
            judge.state(notes, window.begun, claimed, replayed, Segment(window.start, window.end, True))
        except UnavailableError:
            return self._drifted(window, claimed, replayed)
        return notes

    def _is_exact(self, window: _Window) -> bool:
        """Whether no limits are calibrated for the window, and this is the stack that made the run."""
        try:
            self.training.limits.calibrated(window.start, window.steps)
        except UnavailableError:
            return not environment_here(self.device).differences(self.training.evidence.environment)
        return False

    def _judge(self, window: _Window, parameters: int) -> TolerantJudge:
        evidence, limits = self.training.evidence, self.training.limits.near(window.start, window.steps)
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
    from tallystick.frameworks.torch.environment import describe_environment

    return describe_environment("cuda" if device.startswith("cuda") else "cpu")


def _weights(replayer: GraphReplayer) -> dict[str, Tensor]:
    return {name: tensor.copy() for name, tensor in part(replayer.state(), "weights").items()}
