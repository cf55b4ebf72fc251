"""Replays the selected segments of a run while its anchors are read, to the end of their chain."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from tallystick.audits.checked_run import CheckedRun
from tallystick.audits.first_state import begun_elsewhere, judge_initial_state
from tallystick.audits.policy import Policy, Segment
from tallystick.audits.replay import SegmentReport, UnreplayedSteps, describe_other_stack, replay_segment
from tallystick.audits.step_graphs import check_recipe_graph, unrelated_graph
from tallystick.audits.tolerant import judge_for
from tallystick.core.errors import MalformedError, ProofError, UnavailableError
from tallystick.core.tensors import State
from tallystick.formats.records import StepRecord, batch_file
from tallystick.verdicts.replayer import Replayer, VerifierStack
from tallystick.verdicts.verdict import DIFFERS, Findings

if TYPE_CHECKING:
    from tallystick.audits.tolerant import TolerantJudge


# Whether the last segment of a run can be replayed: it alone ties the final weights to the steps before them.

MEND = "tell the recorder what the loop does there and record it again, or end the run before these steps"


def check_end(evidence: CheckedRun, policy: Policy) -> None:
    """Leave an audit undecided if nobody can replay the last segment: what was drawn says nothing of the final weights.

    A last segment that the nonce did not draw is none of this: it could have been drawn.
    """
    if (why := _loose_end(evidence, policy)) is not None:
        evidence.findings.leave_open("end of the run", why)


def leave_end_out(evidence: CheckedRun, policy: Policy) -> None:
    """Say the same of an audit of a segment that does not reach the end."""
    if (why := _loose_end(evidence, policy)) is not None:
        evidence.findings.not_checked.append(f"the end of the run: {why}")


def leave_withdrawn_end_out(evidence: CheckedRun, end: int) -> None:
    """Say of a segment that was handed over alone that the claim withdraws the last step; its records are elsewhere."""
    why = evidence.claim.why_withdrawn(evidence.steps)
    if why is not None and end < evidence.steps:
        evidence.findings.not_checked.append(
            f"the end of the run: the recorder withdrew step {evidence.steps} ({why}), so nothing ties the final "
            "weights to the steps"
        )


def _loose_end(evidence: CheckedRun, policy: Policy) -> str | None:
    """Why nobody can replay the last segment, and what mends that; `None` where it can be replayed."""
    marks = evidence.run.anchors.present(evidence.anchors)
    if evidence.findings.rejected or not evidence.ends_as_claimed or evidence.claim.no_graph is not None:
        return None  # said elsewhere
    last = max(evidence.anchors)
    start = max((mark for mark in marks if mark < last), default=None)
    if start is None:
        return None  # there is no segment at all, and the audit says so
    says = f"steps {start + 1}–{last} cannot be replayed up to the last anchor"
    loose = "so nothing ties the final weights to the steps before them"
    if last not in marks:
        return f"{says}, which is not there, {loose}"
    if not policy.full and last - start > policy.window:
        longer = f"they are more than the window of {policy.window}"
        return f"{says}: {longer}, {loose}. --window {last - start} reaches them"
    if evidence.spec.recipe is not None:
        return None
    for step in range(start + 1, last + 1):
        why = next(_reasons(evidence, evidence.step(step)), None)
        if why is not None:
            return f"{says}: {why}, {loose}. The prover can {MEND}"
    return None


def _reasons(evidence: CheckedRun, record: StepRecord) -> Iterator[str]:
    """Why a step of a loop cannot be replayed by anybody."""
    step = f"step {record.index}"
    if record.no_graph is not None:
        yield f"{step} has no step graph ({record.no_graph})"
    if (why := evidence.claim.why_withdrawn(record.index)) is not None:
        yield f"the recorder withdrew the graph of {step} ({why})"
    if record.graph is not None and not evidence.run.graph_path_of(record).is_file():
        yield f"the graph of {step} is not there"
    if record.batch.digest is not None and not (evidence.run.path / batch_file(record.batch.digest)).is_file():
        yield f"the batch of {step} is not there"


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

    def follow(self, mark: int, state: State | None) -> None:
        """Take the state after step `mark`, `None` where it is missing or not the recorded one."""
        if self._evidence.findings.rejected:
            self.reports, self.findings, self.unavailable, self.lost = [], Findings(), [], []
            self._is_over = True
        if state is None or self._is_over:
            self._previous = None
            return
        try:
            if self._replayer is None:
                self._begin(mark, state)
            if self._previous is not None:
                self._replay(*self._previous, state, reaches_anchor=True)
            self._replay(mark, state, state, reaches_anchor=False)
        except (MalformedError, UnavailableError) as error:
            self.unavailable, self._is_over = [str(error)], True
        self._previous = mark, state

    def _begin(self, mark: int, state: State) -> None:
        evidence = self._evidence
        self._replayer = _make_replayer(evidence, self.findings, self._policy, self._stack)
        if evidence.spec.recipe is not None and mark == 0:
            is_exact = self._policy.mode == "exact"
            drawn, elsewhere = self._replayer.initial_state(), begun_elsewhere(evidence, state)
            judge_initial_state(self.findings, state, drawn, is_exact, elsewhere)

    def _replay(self, mark: int, start: State, end: State, reaches_anchor: bool) -> None:
        segment = self._segments.get(mark)
        if segment is None or segment.reaches_anchor != reaches_anchor:
            return
        if not self._has_foreign_graph(segment):
            self._take(segment, start, end)
        done = sum(each.steps for each in self._segments.values() if each.start <= mark)
        self._progress(done, sum(each.steps for each in self._segments.values()))

    def _has_foreign_graph(self, segment: Segment) -> bool:
        """Whether a record of the segment names a graph that is not one of this training; it is noted then."""
        if self._evidence.program is None or not self._evidence.varies:
            return False

        found = unrelated_graph(self._evidence.program, range(segment.start + 1, segment.end + 1))
        if found is not None:
            self.findings.note(DIFFERS, "step graph", f"step {found[0]}", found[1])
        return found is not None

    def _take(self, segment: Segment, start: State, end: State) -> None:
        assert self._replayer is not None  # made at the first anchor
        try:
            judge = self._judge(segment, start)
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

    def _judge(self, segment: Segment, start: State) -> TolerantJudge | None:
        if self._policy.mode != "tolerant":
            return None

        return judge_for(self._evidence, self._policy, self._stack, segment, start)


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
