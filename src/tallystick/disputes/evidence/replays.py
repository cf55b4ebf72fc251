"""A replay of one's own, for what no opening can show: that a state is the one to which the records lead.

A challenger replays to find where a run goes wrong; a member of a committee replays one segment at most, to say who is
right about a state in its middle or about an anchor. States are compared as in a tolerant audit. In a window for which
no limits are calibrated, bits are compared on the stack that the run states, and on another one the limits of the
longest calibrated window, stretched (`limits.py`). Where that says nothing either, each tensor is held to what so many
operators may drift (`drift.py`), without the elements that no replay determines. So over such a window an honest prover
has to replay on the stack that it stated, and had better keep anchors closer together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from tallystick.audits.initial import judge_initial_state
from tallystick.audits.policy import Policy
from tallystick.audits.replay import judge_whole_state
from tallystick.audits.sampling import Segment
from tallystick.audits.tolerant import TolerantJudge, part
from tallystick.audits.training_kind import workload_of
from tallystick.audits.undetermined import settle
from tallystick.disputes.evidence.claimed_run import ClaimedTraining, step_distance
from tallystick.disputes.evidence.drift import Leeway, deviation
from tallystick.disputes.evidence.subjects import graph_replayer, replay_to
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
    """Replays of one training on this machine; `steps` counts those that were taken."""

    held: ClaimedTraining
    device: str = "cpu"
    steps: int = 0

    def check_before(self, opened: State, step: int) -> Findings:
        """Compare an opened state before `step` with a replay from the anchor before it."""
        replayer = self._replayer()
        start = replay_to(self.held.evidence, replayer, step - 1)
        self.steps += step - 1 - start
        return self._compared(start, step - 1, {**opened, **replayer.carried}, replayer)

    def check_anchor(self, mark: int) -> Findings:
        """Compare an anchor with a replay from the one before it; the first with a state drawn from the recipe."""
        evidence, notes = self.held.evidence, Findings()
        replayer = self._replayer()
        if mark == 0:
            judge_initial_state(notes, evidence.state(0), replayer.initial_state(), is_exact=False)
            return notes
        start = self.held.anchor_before(mark - 1)
        replayer.restore(evidence.state(start))
        for index in range(start + 1, mark + 1):
            replayer.step(index)
        self.steps += mark - start
        return self._compared(start, mark, evidence.state(mark), replayer)

    def step_distances(self, start: int, end: int) -> Iterator[tuple[int, float]]:
        """How far the update of each step from anchor `start` to `end` lies from its sketches, step by step."""
        evidence, replayer = self.held.evidence, self._replayer()
        replayer.restore(evidence.state(start))
        projection = Projection(projection_seed(evidence.spec), evidence.spec.recorded.projection_width)
        for index in range(start + 1, end + 1):
            before, record = _weights(replayer), evidence.step(index)
            replayer.step(index)
            self.steps += 1
            if record.pre.projection is not None and record.post.projection is not None:
                yield index, step_distance(projection, record, before, _weights(replayer))

    def _replayer(self) -> GraphReplayer:
        if self.held.evidence.program is None:
            raise UnavailableError("the run has no step graph to replay")
        return graph_replayer(self.held.evidence, self.device)

    def _compared(self, start: int, end: int, claimed: State, replayer: GraphReplayer) -> Findings:
        notes, replayed, begun = Findings(), replayer.state(), self.held.evidence.state(start)
        if self._is_made_here(start, end - start):
            judge_whole_state(notes, claimed, replayed, f"step {end}")
            return notes
        try:
            judge = self._judge(start, end, element_count(part(replayed, "weights").values()))
            judge.state(notes, begun, claimed, replayed, Segment(start, end, True))
        except UnavailableError:
            return self._drifted(begun, end - start, claimed, replayed)
        return notes

    def _judge(self, start: int, end: int, parameters: int) -> TolerantJudge:
        evidence, limits = self.held.evidence, self.held.limits(start, end - start)
        if parameters > limits.parameters_max:
            raise UnavailableError(f"the limits were measured on models far smaller than {parameters} weights")
        workload = workload_of(evidence)
        return TolerantJudge(evidence.run, evidence.spec, workload, limits, UPDATE_FLOOR, self.device == "cpu")

    def _drifted(self, begun: State, steps: int, claimed: State, replayed: State) -> Findings:
        """Each tensor within what so many operators may drift; what no replay determines is left out."""
        notes, program = Findings(), self.held.evidence.program
        assert program is not None  # asked where the replayer was made
        leeway = Leeway.of(program.graph.nodes, program.graph.specs())
        leeway = replace(leeway, operators=steps * leeway.operators)
        settled = settle(claimed, replayed, self.held.undetermined(begun, replayed))
        for name in sorted(claimed.keys() | replayed.keys()):
            if name.startswith("rng.") and self.device != "cpu":
                continue
            is_given = name in settled and name in replayed
            far = deviation(settled[name], replayed[name], leeway) if is_given else math.inf
            notes.note(Finding(far, 1.0), "state drift", name)
        return notes

    def _is_made_here(self, start: int, steps: int) -> bool:
        """Whether only bits can be compared, and this is the stack that made the run."""
        try:
            self.held.entry(start, steps)
        except UnavailableError:
            return not _environment(self.device).differences(self.held.evidence.environment)
        return False


def objection(notes: Findings, factor: float = 1.0) -> str:
    """The first decisive finding that is further than `factor` times what is allowed; empty if there is none."""
    return next((_sentence(each) for each in notes.seen if not each.advisory and _leaves(each, factor)), "")


def _leaves(finding: Finding, factor: float) -> bool:
    return not finding.distance <= factor * finding.allowed


def _sentence(finding: Finding) -> str:
    return f"{finding.where}: {finding.name} {finding.distance:.3g}, allowed {finding.allowed:.3g} {finding.detail}"


def _environment(device: str) -> Environment:
    from tallystick.frameworks.torch.environment import describe_environment

    return describe_environment("cuda" if device.startswith("cuda") else "cpu")


def _weights(replayer: GraphReplayer) -> dict[str, Tensor]:
    return {name: tensor.copy() for name, tensor in part(replayer.state(), "weights").items()}


MakeReplays = Callable[[ClaimedTraining], Replays]
