"""Audits replay what was recorded and judge the difference under the verifier's own policy."""

from tallystick.audits.calibration import Calibration, Entry, Limits, shipped_calibration
from tallystick.audits.inference import InferenceReport, audit_inference
from tallystick.audits.opening import Judgement, judge_opening
from tallystick.audits.operators import OperatorJudge
from tallystick.audits.policy import Policy, read_policy
from tallystick.audits.properties import PROPERTIES, Property, judge_properties
from tallystick.audits.published import Published
from tallystick.audits.report import Report
from tallystick.audits.sampling import draw_nonce, parse_nonce
from tallystick.audits.training import Workplace, audit_training, verify_segment
from tallystick.audits.verdict import EXIT_CODES, Verdict

__all__ = [
    "EXIT_CODES",
    "PROPERTIES",
    "Calibration",
    "Entry",
    "InferenceReport",
    "Judgement",
    "Limits",
    "OperatorJudge",
    "Policy",
    "Property",
    "Published",
    "Report",
    "Verdict",
    "Workplace",
    "audit_inference",
    "audit_training",
    "draw_nonce",
    "judge_opening",
    "judge_properties",
    "parse_nonce",
    "read_policy",
    "shipped_calibration",
    "verify_segment",
]
