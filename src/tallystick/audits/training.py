"""The audit of a training run: check, sample, screen, replay, compare.

Anchors are read in order, each once. While a state is in memory its digest is checked, it is screened against the one
before, and a sampled segment that ends there is replayed. A full audit reads all of them; another one reads those of
its segments, and the two that say where the chain begins and ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from itertools import pairwise

from tallystick.audits.checked_run import CheckedRun, check_records, read_stated, walk_anchors
from tallystick.audits.end_of_chain import check_end
from tallystick.audits.first_state import judge_first_state
from tallystick.audits.policy import Policy
from tallystick.audits.replay import Lost
from tallystick.audits.report import Report, make_report
from tallystick.audits.sampling import Segment, Selection, sample_steps, select_segments
from tallystick.audits.screens import AnchorScreens
from tallystick.audits.segments import SegmentReplays, replays_graph
from tallystick.judging.findings import Findings
from tallystick.store.run import RunDirectory
from tallystick.workloads.verifier_stack import VerifierStack

Progress = Callable[[int, int], None]
"""Told how many steps were replayed, of how many."""


def audit_training(
    run: RunDirectory,
    policy: Policy,
    nonce: bytes,
    stack: VerifierStack,
    progress: Progress = lambda *_: None,
) -> Report:
    """Audit a finished run under `policy` with a nonce drawn after its claim.

    Whatever is wrong with the run is in the report: bytes that are not those that the claim names reject it; what is
    missing, cannot be read, exceeds the policy or is not understood here leaves the audit inconclusive.
    """
    started = time.perf_counter()
    findings = Findings(keeps_going=True)
    stated = read_stated(run, policy, findings)
    if stated is None:
        from tallystick.audits.unread import report_unread

        return report_unread(run, policy, findings)
    evidence = check_records(run, stated, policy, findings)
    select = every_segment if policy.full else sampled_segments
    selection, ends = select(evidence, policy, nonce), ends_of_chain(evidence, stack)
    _require_origin(evidence, stack)
    check_end(evidence, policy)
    return audit_selected(evidence, policy, nonce, stack, progress, selection, started, ends)


def sampled_segments(evidence: CheckedRun, policy: Policy, nonce: bytes) -> Selection:
    """The segments that cover the sampled steps, between anchors that are there and as far as the window reaches."""
    if not evidence.steps or len(evidence.anchors) < 2:
        return Selection((), (), ())
    sampled = sample_steps(nonce, evidence.claim.identity, evidence.steps, policy.samples)
    reached, present = max(evidence.anchors), evidence.run.anchors.present(evidence.anchors)
    return select_segments((step for step in sampled if step <= reached), present, policy.window)


def every_segment(evidence: CheckedRun, policy: Policy, nonce: bytes) -> Selection:
    """The whole chain, anchor to anchor."""
    marks = sorted(evidence.anchors)
    if not evidence.steps or len(marks) < 2:
        return Selection((), (), ())
    return Selection(tuple(range(1, evidence.steps + 1)), tuple(segments_between(marks, marks[0], marks[-1])), ())


def segments_between(marks: list[int], start: int, end: int) -> Iterable[Segment]:
    """The segments from the anchor `start` to the anchor `end`."""
    inside = [mark for mark in marks if start <= mark <= end]
    return (Segment(a, b, True) for a, b in pairwise(inside))


def audit_selected(
    evidence: CheckedRun,
    policy: Policy,
    nonce: bytes,
    stack: VerifierStack,
    progress: Progress,
    selection: Selection,
    started: float,
    ends: Collection[int] = (),
) -> Report:
    """Screen the anchors of a run whose records were checked, replay what was selected, and report.

    Without `policy.full`, only the anchors of the selected segments are screened, and these and `ends` are read.
    `started` is when the audit began to read, on the clock of `time.perf_counter`.
    """
    unavailable, replaying = list[str](), 0.0
    screens = AnchorScreens(evidence, Findings())
    replays = SegmentReplays(evidence, policy, stack, progress, selection.segments)
    screened = set(evidence.anchors) if policy.full else selection.marks
    for mark, state in walk_anchors(evidence, policy, screened | (set(ends) & evidence.anchors.keys())):
        if not policy.full and mark not in selection.ends:
            screens.leave_out()
        if mark in screened:
            screens.follow(mark, state)
        if mark == 0 and state is not None:
            judge_first_state(evidence, stack.origin, state)
        began = time.perf_counter()
        replays.follow(mark, state)
        replaying += time.perf_counter() - began
    screens.finish()
    evidence.findings.extend(screens.findings)
    if policy.full or stack.corpus is not None:
        from tallystick.audits.source import derive_data

        unavailable.extend(derive_data(evidence, policy, nonce, stack))
    if evidence.spec.rows is not None:
        from tallystick.audits.rows import check_rows

        unavailable.extend(check_rows(evidence, replays.reports, nonce, stack))
    evidence.findings.extend(replays.findings)
    others = list[Lost]()
    if replays.lost or selection.out_of_reach or not selection.sampled:
        from tallystick.audits.unreplayed import unreplayed

        lines, others = unreplayed(selection, policy, evidence, replays.lost)
        unavailable = lines + unavailable
    unavailable += [*replays.unavailable, *evidence.findings.undecided, *evidence.varying.unmet(policy)]
    reading = time.perf_counter() - started - replaying
    graph = evidence.spec.graph if replays.reports and replays_graph(evidence, policy, stack) else None
    return make_report(
        evidence, policy, nonce, selection, replays.reports, unavailable, reading, replaying, graph, others
    )


def _require_origin(evidence: CheckedRun, stack: VerifierStack) -> None:
    recipe = evidence.spec.recipe
    if stack.origin is None and recipe is not None and recipe.model.initial is not None:
        needed = f"the recipe begins with {recipe.model.initial}: give the directory of these weights with --initial"
        evidence.findings.undecided.append(f"first weights: {needed}")


def leave_origin_out(evidence: CheckedRun, stack: VerifierStack) -> None:
    """Say of a segment that begins behind anchor 0 that it is not compared with the verifier's origin."""
    if evidence.begins and stack.origin is not None and evidence.spec.first_weights is None:
        begins = f"the segment begins at the anchor of step {evidence.begins}, and only that of step 0 shows it"
        evidence.left_out.append(f"whether the run begins with the weights of {stack.origin.path}: {begins}")


def ends_of_chain(evidence: CheckedRun, stack: VerifierStack) -> tuple[int, ...]:
    """The anchors that say whether the chain begins as it should, and ends with the weights of the claim."""
    marks = sorted(evidence.anchors)
    first = marks[:1] if evidence.spec.recipe is not None or stack.origin is not None else []
    return (*first, *(marks[-1:] if evidence.claim.weights is not None else []))
