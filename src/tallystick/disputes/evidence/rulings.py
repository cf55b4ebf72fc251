"""How a judge rules on a claimed training: by its anchors, by a replay of one segment, or by a full audit.

A judge that does not replay has no `device`. It rules by what can be read, or names the replay that would decide.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeAlias

from tallystick.audits.screens import screen_anchors
from tallystick.disputes.evidence.claimed_training import ClaimedTraining
from tallystick.disputes.evidence.doubts import doubt_training
from tallystick.disputes.evidence.full_audit import audit_whole
from tallystick.disputes.evidence.opening_sources import out_of_reach
from tallystick.disputes.evidence.replays import Replays, objection
from tallystick.judging.fault import Fault
from tallystick.judging.findings import Findings
from tallystick.transcripts.record import AnchorRecord, StepRecord, read_record

Ruled: TypeAlias = tuple[Fault | None, str]
"""Who is at fault and why; `None` if a committee has to decide, or a member cannot decide."""


def rule_training_record(training: ClaimedTraining, line: bytes, device: str | None) -> Ruled:
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


def _rule_anchor(training: ClaimedTraining, mark: int, device: str | None) -> Ruled:
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


def _other_weights(training: ClaimedTraining) -> str:
    """Names what the first anchor holds instead of the stated weights; empty where that is nothing, or not known."""
    if training.origin is None:
        return ""
    from tallystick.judging.first_weights import compare_first_weights

    differing = compare_first_weights(training.evidence.state(0), training.origin.weights).differing
    count = f"{len(differing)} tensors" if len(differing) > 1 else "1 tensor"
    named = f"{count} ({differing[0]})" if differing else ""
    return f"anchor 0 holds other numbers than {training.origin.digest} in {named}" if named else ""


def rule_by_audit(training: ClaimedTraining, device: str) -> Ruled:
    """Rule on the whole run by a full audit; undecided if the audit is."""
    report = audit_whole(training, device)
    found = doubt_training(training, Replays(training, device), report)
    if found is not None:
        return Fault.PROVER, found.reason
    if report.verdict.unavailable:
        return None, report.verdict.unavailable[0]
    return Fault.CHALLENGER, "an audit of the whole run finds nothing"
