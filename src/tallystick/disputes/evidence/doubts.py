"""Where a claim goes wrong: the first record that a challenger's own computation does not confirm.

A claim is doubted where it is further off than `MARGIN` times what a judge allows: the judge's stack is another one,
and a challenger that is right must not lose its bond over that.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from tallystick.audits.checked_run import CheckedRun
from tallystick.audits.policy import Policy
from tallystick.audits.replay import TRAJECTORY
from tallystick.audits.report import Report
from tallystick.audits.training import audit_training
from tallystick.disputes.evidence.claimed_run import PROJECTION, STEP_FACTOR, ClaimedTraining
from tallystick.disputes.evidence.locate import ChallengerWork, deviations
from tallystick.disputes.evidence.replays import Replays
from tallystick.disputes.evidence.subjects import place_of_step
from tallystick.disputes.evidence.view import OpeningView
from tallystick.disputes.game.protocols import Doubt
from tallystick.graphs.engine import Engine
from tallystick.judging.fault import Fault
from tallystick.judging.leaf.judge import rule_leaf
from tallystick.judging.leaf.request import LeafRequest
from tallystick.store.log import read_lines
from tallystick.tolerances.tolerance import Finding
from tallystick.transcripts.record import AnchorRecord, read_record
from tallystick.workloads.verifier_stack import VerifierStack

MARGIN: Final = 2.0
"""How many times a judge's limits something has to be off before a bond is bet on it."""
CONFIRMED_MAX: Final = 16
STEPWISE: Final = TRAJECTORY | {f"{name} summary" for name in ("exact", "fp16_rne", "grid", "projection")}
"""The findings that are about one step, and not about an anchor."""
UNRULED: Final = frozenset({"tokenizer of the source"})
"""What no judge of a record can rule on, so that no bond is bet on it."""
_STEP: Final = re.compile(r"\bsteps? (\d+)")


def doubt_training(held: ClaimedTraining, replays: Replays, report: Report) -> Doubt | None:
    """The step or anchor at which a training first goes wrong, by the report of a full audit and then step by step."""
    decisive = (each for each in report.verdict.findings if not each.advisory and each.name not in UNRULED)
    bad = [each for each in decisive if not _is_within(each)]
    if not bad:
        return None
    step = _step_of(bad[0])
    if step is None:
        return Doubt(0, held.evidence.claim.transcript.size, _sentence(bad[0]))
    return _located(held, replays, bad[0], step)


def doubt_operators(view: OpeningView, engine: Engine, work: ChallengerWork, question: LeafRequest) -> Doubt | None:
    """The operator that a referee would convict, of those that are furthest from what their own operands give.

    It is asked about all that leave the tolerance, however many, and about `CONFIRMED_MAX` of those within it.
    """
    far = list(deviations(view, engine, work))
    suspects = sorted((place for place in range(len(far)) if far[place] > 0), key=lambda place: (-far[place], place))
    outside = sum(each > 1.0 for each in far)
    for place in suspects[: outside + CONFIRMED_MAX]:
        ruling = rule_leaf(view.bundle(place), question)
        if ruling.fault is Fault.PROVER or (ruling.fault is None and far[place] > MARGIN):
            return Doubt(place, place + 1, ruling.reason)
    return None


def audit_whole(evidence: CheckedRun, stack: VerifierStack) -> Report:
    """A full audit: within calibrated limits; where none are calibrated, bit by bit on the same stack."""
    report = audit_training(evidence.run, Policy(mode="tolerant", full=True), bytes(32), stack)
    if not report.verdict.unavailable or stack.environment.differences(evidence.environment):
        return report
    return audit_training(evidence.run, Policy(mode="exact", full=True), bytes(32), stack)


def _located(held: ClaimedTraining, replays: Replays, bad: Finding, step: int) -> Doubt:
    """The first step of the segment whose own update is wrong; else what the finding is about."""
    evidence = held.evidence
    start = held.anchor_before(step - 1) if step else 0
    end = min((mark for mark in evidence.anchors if mark >= step), default=step)
    has_steps = bool(step) and evidence.program is not None
    wrong = next(_wrong_steps(held, replays, start, end), None) if has_steps else None
    if wrong is not None:
        return _doubt_step(evidence, *wrong)
    if bad.name in STEPWISE:
        return _doubt_step(evidence, step, _sentence(bad))
    place = _place_of_anchor(evidence, end)
    return Doubt(place, place + 1, _sentence(bad))


def _wrong_steps(held: ClaimedTraining, replays: Replays, start: int, end: int) -> Iterator[tuple[int, str]]:
    allowed = MARGIN * STEP_FACTOR * held.limit(start, 1, PROJECTION)
    for step, distance in replays.step_distances(start, end):
        if distance > allowed:
            yield step, f"the update of step {step} is {distance:.3g} of itself off, of {allowed:.3g}"


def _doubt_step(evidence: CheckedRun, step: int, reason: str) -> Doubt:
    place = place_of_step(evidence.run, evidence.claim.transcript.size, step)
    return Doubt(place, place + 1, reason)


def _place_of_anchor(evidence: CheckedRun, mark: int) -> int:
    lines = enumerate(read_lines(evidence.run.transcript_path))
    records = ((place, read_record(line, f"record {place}")) for place, line in lines)
    return next(place for place, each in records if isinstance(each, AnchorRecord) and each.index == mark)


def _is_within(finding: Finding) -> bool:
    return finding.distance <= MARGIN * finding.allowed


def _step_of(finding: Finding) -> int | None:
    found = _STEP.search(finding.where)
    return None if found is None else int(found.group(1))


def _sentence(finding: Finding) -> str:
    return f"{finding.where}: {finding.name}: {finding.detail or f'{finding.distance:.3g} of {finding.allowed:.3g}'}"
