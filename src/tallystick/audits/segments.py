"""Replays the selected segments of a run while its anchors are read, to the end of their chain."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tallystick.audits.checked_run import CheckedRun
from tallystick.audits.first_state import FirstState, begun_elsewhere, judge_initial_state
from tallystick.audits.policy import Policy, Segment
from tallystick.audits.replay import SegmentReport, UnreplayedSteps, describe_other_stack, replay_segment
from tallystick.audits.step_graphs import check_recipe_graph, unrelated_graph
from tallystick.audits.tolerant import judge_for
from tallystick.core.errors import MalformedError, ProofError, UnavailableError
from tallystick.core.tensors import State
from tallystick.verdicts.replayer import Replayer, VerifierStack
from tallystick.verdicts.verdict import DIFFERS, Findings

# Replays the selected segments of a run while its anchors are read, so that none is read twice.


class SegmentReplays:
    """Takes the anchors in order and replays each selected segment when the anchor behind it arrives.

    A segment that reaches none is replayed at its first anchor.

    Nothing is replayed of a run that failed a check, and nothing is reported where an anchor turns out not to be the
    recorded one. A step that cannot be replayed ends its segment, and the next segment begins anew from its anchor.
    `unavailable` says why no step or not all of them were replayed, `lost` names those steps.
    """

    def __init__(
        self,
        evidence: CheckedRun,
        policy: Policy,
        stack: VerifierStack,
        progress: Callable[[int, int], None],
        segments: Iterable[Segment],
    ) -> None:
        self.reports: list[SegmentReport] = []
        self.findings = Findings()
        self.unavailable: list[str] = []
        self.lost: list[UnreplayedSteps] = []
        self._evidence, self._policy, self._stack, self._progress = evidence, policy, stack, progress
        self._segments = {segment.start: segment for segment in segments}
        self._replayer: Replayer | None = None
        self._previous: tuple[int, State] | None = None
        self._is_over = evidence.findings.rejected or not evidence.ends_as_claimed

    def follow(self, mark: int, state: State | None, first: FirstState) -> None:
        """Take the state after step `mark`, `None` where it is missing or not the recorded one."""
        if self._evidence.findings.rejected:
            self.reports, self.findings, self.unavailable, self.lost = [], Findings(), [], []
            self._is_over = True
        if state is None or self._is_over:
            self._previous = None
            return
        try:
            if self._replayer is None:
                self._begin(mark, state, first)
            if self._previous is not None:
                self._replay(*self._previous, state, reaches_anchor=True)
            self._replay(mark, state, state, reaches_anchor=False)
        except (MalformedError, UnavailableError) as error:
            self.unavailable, self._is_over = [str(error)], True
        self._previous = mark, state

    def _begin(self, mark: int, state: State, first: FirstState) -> None:
        evidence = self._evidence
        self._replayer = _make_replayer(evidence, self.findings, self._policy, self._stack)
        if evidence.spec.recipe is not None and mark == 0:
            is_exact = self._policy.mode == "exact"
            drawn, elsewhere = self._replayer.initial_state(), begun_elsewhere(evidence, state, first)
            judge_initial_state(self.findings, state, drawn, is_exact, elsewhere)

    def _replay(self, mark: int, start: State, end: State, reaches_anchor: bool) -> None:
        segment = self._segments.get(mark)
        if segment is None or segment.reaches_anchor != reaches_anchor:
            return
        if not self._has_foreign_graph(segment):
            self._take(segment, start, end)
        done = sum(part.steps for part in self._segments.values() if part.start <= mark)
        self._progress(done, sum(part.steps for part in self._segments.values()))

    def _has_foreign_graph(self, segment: Segment) -> bool:
        """Whether a record of the segment names a graph that is not one of this training; it is noted then."""
        if self._evidence.program is None or not self._evidence.varies:
            return False
        unrelated = unrelated_graph(self._evidence.program, range(segment.start + 1, segment.end + 1))
        if unrelated is not None:
            step, why = unrelated
            self.findings.note(DIFFERS, "step graph", f"step {step}", why)
        return unrelated is not None

    def _take(self, segment: Segment, start: State, end: State) -> None:
        assert self._replayer is not None  # made at the first anchor
        try:
            is_exact = self._policy.mode == "exact"
            judge = None if is_exact else judge_for(self._evidence, self._policy, self._stack, segment, start)
            report = replay_segment(self._evidence, self.findings, segment, start, end, self._replayer, judge)
        except UnavailableError as error:
            self.lost.append(UnreplayedSteps(segment.start + 1, segment.end, str(error)))
        except MalformedError as error:  # a state that no step of this run starts from
            self.findings.note(DIFFERS, "anchor", f"step {segment.start}", str(error))
        except ProofError as error:  # a batch that is not the recorded one
            self.findings.note(DIFFERS, "batch", f"steps {segment.start + 1}–{segment.end}", str(error))
        else:
            self.reports.append(report)
            if report.ended_by:
                self.lost.append(UnreplayedSteps(report.segment.end + 1, segment.end, report.ended_by))


def _make_replayer(evidence: CheckedRun, findings: Findings, policy: Policy, stack: VerifierStack) -> Replayer:
    """The replayer that policy and run allow; raises `UnavailableError` saying why there is none."""
    spec, recipe = evidence.spec, evidence.spec.recipe
    device = evidence.environment.device if recipe is None else recipe.training.device
    if spec.recipe is None and evidence.claim.no_graph is not None:
        did = "captured no step graph" if spec.graph is None else "withdrew the step graph"
        raise UnavailableError(f"no step was replayed: the recorder {did}, {evidence.claim.no_graph}")
    if spec.recipe is None and evidence.program is None:
        raise UnavailableError("no step was replayed: the run was recorded around a loop that no recipe describes")
    if device not in policy.devices:
        raise UnavailableError(f"the policy accepts no run on {device}")
    if policy.mode == "exact" and stack.environment.differing(evidence.environment):
        tolerant = "`tally audit --tolerant` judges by calibrated limits"
        raise UnavailableError(describe_other_stack(stack.environment, evidence.environment, tolerant))
    if replays_graph(evidence, policy, stack):
        assert evidence.program is not None  # held by `replays_graph`
        assert stack.graph_replayer is not None
        if spec.recipe is not None:
            check_recipe_graph(evidence, findings, stack)
        return stack.graph_replayer(spec, evidence.program)
    if evidence.dataset is None and evidence.findings.undecided:
        raise UnavailableError("no step was replayed: the data could not be read")
    if evidence.dataset is None or evidence.plan is None:
        raise UnavailableError("no step was replayed: this verifier replays recipes, and the run has a graph only")
    return stack.replayer(spec, evidence.dataset, evidence.plan)


def replays_graph(evidence: CheckedRun, policy: Policy, stack: VerifierStack) -> bool:
    """Whether steps are replayed from the run's step graph rather than with a trainer built from its recipe."""
    is_wanted = policy.replay == "graph" or evidence.spec.recipe is None
    return is_wanted and evidence.program is not None and stack.graph_replayer is not None
