"""The audit of a training run: check, sample, screen, replay, compare.

Anchors are read in order, each once. While a state is in memory its digest is checked, it is screened against the one
before, and a sampled segment that ends there is replayed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from itertools import pairwise

from tallystick.audits.checked_run import CheckedRun, check_records, read_stated, walk_anchors
from tallystick.audits.policy import Policy
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
    return audit_selected(evidence, policy, nonce, stack, progress, select(evidence, policy, nonce), started)


def sampled_segments(evidence: CheckedRun, policy: Policy, nonce: bytes) -> Selection:
    """The segments that cover the sampled steps, as far as the window reaches."""
    if not evidence.steps or len(evidence.anchors) < 2:
        return Selection((), (), ())
    sampled = sample_steps(nonce, evidence.claim.identity, evidence.steps, policy.samples)
    reached = max(evidence.anchors)
    return select_segments((step for step in sampled if step <= reached), evidence.anchors, policy.window)


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
) -> Report:
    """Screen the anchors of a run whose records were checked, replay what was selected, and report.

    `started` is when the audit began to read, on the clock of `time.perf_counter`.
    """
    unavailable, replaying = list(_out_of_reach(selection, policy, evidence.anchors)), 0.0
    screens = AnchorScreens(evidence, Findings())
    replays = SegmentReplays(evidence, policy, stack, progress, selection.segments)
    for mark, state in walk_anchors(evidence, policy):
        screens.follow(mark, state)
        began = time.perf_counter()
        replays.follow(mark, state)
        replaying += time.perf_counter() - began
    screens.finish()
    evidence.findings.extend(screens.findings)
    if policy.full:
        from tallystick.audits.source import derive_data

        unavailable.extend(derive_data(evidence, stack))
    evidence.findings.extend(replays.findings)
    unavailable += [replays.unavailable] if replays.unavailable else []
    unavailable += evidence.findings.undecided
    reading = time.perf_counter() - started - replaying
    graph = evidence.spec.graph if replays.reports and replays_graph(evidence, policy, stack) else None
    return make_report(evidence, policy, nonce, selection, replays.reports, unavailable, reading, replaying, graph)


def _out_of_reach(selection: Selection, policy: Policy, anchors: Collection[int]) -> Iterable[str]:
    if not selection.sampled:
        yield "no step could be sampled"
    if selection.out_of_reach:
        steps = ", ".join(str(step) for step in selection.out_of_reach[:8])
        needed = max(step - max(mark for mark in anchors if mark < step) for step in selection.out_of_reach)
        yield (
            f"{len(selection.out_of_reach)} of {len(selection.sampled)} sampled steps lie more than "
            f"{policy.window} steps behind their anchor (step {steps}): --window {needed} reaches them"
        )
