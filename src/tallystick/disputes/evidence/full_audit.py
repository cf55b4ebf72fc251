"""A full audit on this machine; a challenger contests and a committee member votes by its report."""

from __future__ import annotations

from dataclasses import replace

from tallystick.audits.policy import Policy
from tallystick.audits.report import Report
from tallystick.audits.training import audit_training
from tallystick.disputes.evidence.claimed_training import ClaimedTraining


def audit_whole(training: ClaimedTraining, device: str) -> Report:
    """Audit all of a run within calibrated limits; if none are calibrated, bit by bit on the same stack."""
    from tallystick.frameworks.torch.training.verifier_stack import torch_verifier_stack

    evidence = training.evidence
    stack = replace(torch_verifier_stack(evidence.environment, device), origin=training.origin)
    report = audit_training(evidence.run, Policy(mode="tolerant", full=True), bytes(32), stack)
    if not report.verdict.unavailable or stack.environment.differences(evidence.environment):
        return report
    return audit_training(evidence.run, Policy(mode="exact", full=True), bytes(32), stack)
