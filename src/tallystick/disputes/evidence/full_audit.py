"""A full audit on this machine: what a challenger stakes a bond on, and what a member of a committee votes on."""

from __future__ import annotations

from tallystick.audits.checked_run import CheckedRun
from tallystick.audits.policy import Policy
from tallystick.audits.report import Report
from tallystick.audits.training import audit_training


def audit_whole(evidence: CheckedRun, device: str) -> Report:
    """A full audit: within calibrated limits; where none are calibrated, bit by bit on the same stack."""
    from tallystick.frameworks.torch.training.verifier_stack import torch_verifier_stack

    stack = torch_verifier_stack(evidence.environment, device)
    report = audit_training(evidence.run, Policy(mode="tolerant", full=True), bytes(32), stack)
    if not report.verdict.unavailable or stack.environment.differences(evidence.environment):
        return report
    return audit_training(evidence.run, Policy(mode="exact", full=True), bytes(32), stack)
