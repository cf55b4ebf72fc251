"""Where a claim goes wrong: the first record that a challenger's own computation does not confirm.

A challenger doubts a claim only if it is further off than `MARGIN` times what a judge allows. The judge computes on
another stack, and a challenger that is right must not lose its bond through a rounding difference.
"""

from __future__ import annotations

import re
from typing import Final

from tallystick.audits.checked_run import CheckedRun
from tallystick.audits.replay import TRAJECTORY
from tallystick.audits.report import Report
from tallystick.disputes.evidence.claimed_training import ClaimedTraining
from tallystick.disputes.evidence.locate import ChallengerWork, deviations
from tallystick.disputes.evidence.opened_step import PROJECTION, STEP_FACTOR
from tallystick.disputes.evidence.replays import Replays
from tallystick.disputes.evidence.step_update import explained_by_rate
from tallystick.disputes.evidence.view import OpeningView
from tallystick.disputes.game.protocols import Doubt
from tallystick.errors import ProofError
from tallystick.graphs.engine import Engine
from tallystick.judging.fault import Fault
from tallystick.judging.leaf.judge import rule_leaf
from tallystick.judging.leaf.request import LeafRequest
from tallystick.store.log import read_lines
from tallystick.tolerances.tolerance import Finding
from tallystick.transcripts.record import AnchorRecord, read_record

MARGIN: Final = 2.0
"""The factor by which a deviation has to exceed a judge's limits before a challenger stakes a bond on it."""
CONFIRMED_MAX: Final = 16
"""The largest number of operators within the tolerance about which the referee's rules are asked."""
STEPWISE: Final = TRAJECTORY | {f"{name} summary" for name in ("exact", "fp16_rne", "grid", "projection")}
"""The findings that are about one step and not about an anchor."""
UNRULED: Final = frozenset({"tokenizer of the source"})
"""Findings that no judge of a record can decide, so a challenger stakes no bond on them."""
_STEP: Final = re.compile(r"\bsteps? (\d+)")


def doubt_training(training: ClaimedTraining, replays: Replays, report: Report) -> Doubt | None:
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


def doubt_operators(view: OpeningView, engine: Engine, work: ChallengerWork, question: LeafRequest) -> Doubt | None:
    """The first operator that a referee would convict; the operators with the largest deviations are tried first.

    The deviation of an operator is taken from what its own claimed operands give. Every operator outside the tolerance
    is tried, and `CONFIRMED_MAX` of those within it.
    """
    far = list(deviations(view, engine, work))
    suspects = sorted((place for place in range(len(far)) if far[place] > 0), key=lambda place: (-far[place], place))
    outside = sum(each > 1.0 for each in far)
    for place in suspects[: outside + CONFIRMED_MAX]:
        ruling = rule_leaf(view.bundle(place), question)
        if ruling.fault is Fault.PROVER or (ruling.fault is None and far[place] > MARGIN):
            return Doubt(place, place + 1, ruling.reason)
    return None


def _located(training: ClaimedTraining, replays: Replays, step: int, bad: Finding, reason: str) -> Doubt:
    """The first step of the segment whose own update is wrong; otherwise the step or anchor of the finding."""
    evidence = training.evidence
    start = training.anchor_before(step - 1) if step else 0
    end = min((mark for mark in evidence.anchors if mark >= step), default=step)
    if step and evidence.program is not None:
        allowed = MARGIN * STEP_FACTOR * training.limit(start, 1, PROJECTION)
        for index, update in replays.step_updates(start, end):
            if update.distance > allowed:
                off = f"the update of step {index} is {update.distance:.3g} of itself off, of {allowed:.3g}"
                why = explained_by_rate(evidence, index, update, allowed)
                return _doubt_at(_place_of_step(evidence, index), f"{off}{why}")
    is_of_step = bad.name in STEPWISE
    return _doubt_at(_place_of_step(evidence, step) if is_of_step else _place_of_anchor(evidence, end), reason)


def _doubt_at(place: int, reason: str) -> Doubt:
    return Doubt(place, place + 1, reason)


def _place_of_step(evidence: CheckedRun, step: int) -> int:
    return evidence.run.place_of_step(step, evidence.claim.transcript.size)


def _place_of_anchor(evidence: CheckedRun, mark: int) -> int:
    for place, line in enumerate(read_lines(evidence.run.transcript_path)):
        record = read_record(line, f"record {place}")
        if isinstance(record, AnchorRecord) and record.index == mark:
            return place
    raise ProofError(f"the transcript holds no anchor after step {mark}")
