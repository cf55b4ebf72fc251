"""Audits replay what was recorded and judge the difference under the verifier's own policy."""

from tallystick.audits.calibration import Calibration, Entry, Limits, shipped_calibration
from tallystick.audits.policy import Policy, read_policy
from tallystick.audits.report import Report
from tallystick.audits.sampling import draw_nonce, parse_nonce
from tallystick.audits.training import Workplace, audit_training, verify_segment
from tallystick.audits.verdict import EXIT_CODES, Verdict

__all__ = [
    "EXIT_CODES",
    "Calibration",
    "Entry",
    "Limits",
    "Policy",
    "Report",
    "Verdict",
    "Workplace",
    "audit_training",
    "draw_nonce",
    "parse_nonce",
    "read_policy",
    "shipped_calibration",
    "verify_segment",
]
