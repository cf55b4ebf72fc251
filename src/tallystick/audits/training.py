"""The audit of a training run: check, select, screen, replay, compare; of a whole run, or of one segment.

Anchors are read in order, each once. While a state is in memory its digest is checked, it is screened against the one
before, and a selected segment that ends there is replayed. A full audit reads all of them; another one reads those of
its segments, and the two that say where the chain begins and ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise

from tallystick.audits.checked_run import CheckedRun, check_records, read_stated, walk_anchors
from tallystick.audits.data import check_rows, derive_data
from tallystick.audits.first_state import NOTHING_KNOWN, judge_first_state
from tallystick.audits.policy import (
    NOTHING_SELECTED,
    AuditPlan,
    Policy,
    Segment,
    Selection,
    sample_steps,
    select_segments,
)
from tallystick.audits.report import Examined, TrainingReport, make_report, report_unread
from tallystick.audits.screens import AnchorScreens
from tallystick.audits.segments import SegmentReplays, replays_graph
from tallystick.core.errors import UsageError
from tallystick.formats.records import StepRecord, batch_file
from tallystick.formats.store.run import RunDirectory
from tallystick.verdicts.replayer import VerifierStack
from tallystick.verdicts.verdict import Findings

Progress = Callable[[int, int], None]
"""Called with how many steps were replayed, of how many."""


def silent(done: int, steps: int) -> None:
    """Report no progress."""


# One pipeline, three sources: a whole run, a segment of it that the caller names, and a segment handed over alone
# (`audits.opened_segment`).
#
# Whatever is wrong with a run is in the report: bytes that are not those that the claim names reject it; what is
# missing, cannot be read, exceeds the policy or is not understood here leaves the audit inconclusive.


def audit_training(
    run: RunDirectory, policy: Policy, nonce: bytes, stack: VerifierStack, progress: Progress = silent
) -> TrainingReport:
    """Audit a finished run under `policy` with a nonce drawn after its claim."""

    def plan(evidence: CheckedRun) -> AuditPlan:
        recipe, select = evidence.spec.recipe, _select_all if policy.full else _draw_segments
        selection = select(evidence, policy, nonce)
        if stack.origin is None and recipe is not None and recipe.model.initial is not None:
            mend = f"the recipe begins with {recipe.model.initial}: give the directory of these weights with --initial"
            evidence.findings.leave_open("first weights", mend)
        if (why := why_end_is_loose(evidence, policy)) is not None:
            evidence.findings.leave_open("end of the run", why)
        return AuditPlan(policy, selection, nonce, ends=_ends_of_chain(evidence, stack))

    return audit_source(run, lambda findings: _read_run(run, policy, findings), policy, plan, stack, progress)


def verify_segment(
    run: RunDirectory, policy: Policy, start: int, end: int, stack: VerifierStack, progress: Progress = silent
) -> TrainingReport:
    """Replay the segment between two anchors and compare every bit of its last state.

    Raises `UsageError` where `start` or `end` is no anchor.
    """

    def plan(evidence: CheckedRun) -> AuditPlan:
        marks = sorted(evidence.anchors)
        if evidence.findings.rejected or not evidence.ends_as_claimed:
            return AuditPlan(policy)
        if start not in marks or end not in marks or start >= end:
            near = ", ".join(str(mark) for mark in marks[:12])
            raise UsageError(f"--from {start} --to {end}: two anchors in ascending order are needed ({near} …)")
        note_origin_not_compared(evidence, stack, start)
        if end < marks[-1] and (why := why_end_is_loose(evidence, policy.model_copy(update={"full": True}))):
            evidence.findings.not_checked.append(f"the end of the run: {why}")
        return AuditPlan(policy, _every_segment(marks, start, end), begins=start)

    return audit_source(run, lambda findings: _read_run(run, policy, findings), policy, plan, stack, progress)


def audit_source(
    run: RunDirectory,
    read: Callable[[Findings], CheckedRun | None],
    policy: Policy,
    plan: Callable[[CheckedRun], AuditPlan],
    stack: VerifierStack,
    progress: Progress,
) -> TrainingReport:
    """Read and check the evidence, plan, screen the anchors, replay what was selected, and report.

    Without `full`, only the anchors of the selected segments are screened; these and the ends of the chain are read.
    """
    started, findings = time.perf_counter(), Findings(keeps_going=True)
    evidence = read(findings)
    if evidence is None:
        return report_unread(run, policy, findings)
    planned = plan(evidence)
    policy, selection, replaying = planned.policy, planned.selection, 0.0
    screens, first = AnchorScreens(evidence, Findings()), NOTHING_KNOWN
    replays = SegmentReplays(evidence, policy, stack, progress, selection.segments)
    screened = set(evidence.anchors) if policy.full else selection.marks
    marks = evidence.anchors.keys() & (screened | planned.ends)
    for mark, state in walk_anchors(evidence, policy, marks):
        if not policy.full and mark not in selection.ends:
            screens.leave_out()
        if mark in screened:
            screens.follow(mark, state, first)
        if mark == 0 and state is not None:
            first = judge_first_state(evidence, stack.origin, state)
        began = time.perf_counter()
        replays.follow(mark, state, first)
        replaying += time.perf_counter() - began
    screens.finish()
    findings.extend(screens.findings)
    unavailable = [*derive_data(evidence, policy, planned.nonce, stack)]
    if evidence.spec.rows is not None:
        unavailable += check_rows(evidence, replays.reports, planned.nonce, stack)
    findings.extend(replays.findings)
    is_graph = bool(replays.reports) and replays_graph(evidence, policy, stack)
    examined = Examined(
        marks,
        first,
        tuple(replays.reports),
        tuple(replays.lost),
        evidence.spec.graph if is_graph else None,
        screens.is_complete,
        (*unavailable, *replays.unavailable),
        time.perf_counter() - started - replaying,
        replaying,
    )
    return make_report(evidence, planned, examined)


def _read_run(run: RunDirectory, policy: Policy, findings: Findings) -> CheckedRun | None:
    stated = read_stated(run, policy, findings)
    return None if stated is None else check_records(stated, policy)


# Which steps are replayed, and which anchors are read.


def _draw_segments(evidence: CheckedRun, policy: Policy, nonce: bytes) -> Selection:
    """The segments that cover the sampled steps, between anchors that are there and as far as the window reaches."""
    if not evidence.steps or len(evidence.anchors) < 2:
        return NOTHING_SELECTED
    sampled = sample_steps(nonce, evidence.claim.identity, evidence.steps, policy.samples)
    reached, present = max(evidence.anchors), evidence.run.anchors.present(evidence.anchors)
    return select_segments((step for step in sampled if step <= reached), present, policy.window)


def _select_all(evidence: CheckedRun, policy: Policy, nonce: bytes) -> Selection:
    """The whole chain, anchor to anchor."""
    marks = sorted(evidence.anchors)
    if not evidence.steps or len(marks) < 2:
        return NOTHING_SELECTED
    return replace(_every_segment(marks, marks[0], marks[-1]), sampled=tuple(range(1, evidence.steps + 1)))


def _every_segment(marks: list[int], start: int, end: int) -> Selection:
    """All segments from the anchor `start` to the anchor `end`."""
    inside = pairwise(mark for mark in marks if start <= mark <= end)
    return Selection(tuple(range(start + 1, end + 1)), tuple(Segment(one, two, True) for one, two in inside), ())


def _ends_of_chain(evidence: CheckedRun, stack: VerifierStack) -> frozenset[int]:
    """The anchors that say whether the chain begins as it should, and ends with the weights of the claim."""
    marks = sorted(evidence.anchors)
    first = marks[:1] if evidence.spec.recipe is not None or stack.origin is not None else []
    return frozenset((*first, *(marks[-1:] if evidence.claim.weights is not None else [])))


def note_origin_not_compared(evidence: CheckedRun, stack: VerifierStack, begins: int) -> None:
    """Say of a segment that begins behind anchor 0 that it is not compared with the verifier's origin."""
    if begins and stack.origin is not None and evidence.spec.first_weights is None:
        why = f"the segment begins at the anchor of step {begins}, and only that of step 0 shows it"
        evidence.findings.not_checked.append(f"whether the run begins with the weights of {stack.origin.path}: {why}")


# Whether the last segment of a run can be replayed: it alone ties the final weights to the steps before them.


def why_end_is_loose(evidence: CheckedRun, policy: Policy) -> str | None:
    """Why nobody can replay the last segment, and what mends that; `None` where somebody can.

    A last segment that the nonce did not draw could have been drawn. One that nobody can replay leaves an audit open:
    what was drawn then says nothing of the final weights.
    """
    marks = evidence.run.anchors.present(evidence.anchors)
    if evidence.findings.rejected or not evidence.ends_as_claimed or evidence.claim.no_graph is not None:
        return None  # other findings say so
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
        why = next(_why_not_replayed(evidence, evidence.step(step)), None)
        if why is not None:
            mend = "tell the recorder what the loop does there and record it again, or end the run before these steps"
            return f"{says}: {why}, {loose}. The prover can {mend}"
    return None


def _why_not_replayed(evidence: CheckedRun, record: StepRecord) -> Iterator[str]:
    """Why nobody can replay a step of a loop."""
    step = f"step {record.index}"
    if record.no_graph is not None:
        yield f"{step} has no step graph ({record.no_graph})"
    if (why := evidence.claim.why_withdrawn(record.index)) is not None:
        yield f"the recorder withdrew the graph of {step} ({why})"
    if record.graph is not None and not evidence.run.graph_path_of(record).is_file():
        yield f"the graph of {step} is not there"
    if record.batch.digest is not None and not (evidence.run.path / batch_file(record.batch.digest)).is_file():
        yield f"the batch of {step} is not there"
