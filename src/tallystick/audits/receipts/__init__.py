"""Judges receipts of language models' answers: what they state, one pass over their tokens, and higher rungs."""

from tallystick.audits.receipts.ladder import Tools, climb
from tallystick.audits.receipts.policy import FingerprintDemand, ReceiptPolicy, read_receipt_policy
from tallystick.audits.receipts.report import ReceiptReport
from tallystick.audits.receipts.request import ExpectedRequest, read_request
from tallystick.audits.receipts.response import Response, read_response, read_responses
from tallystick.audits.receipts.stream import StreamReport, verify_stream
from tallystick.audits.receipts.verify import Challenge, Subject, verify_receipt

__all__ = [
    "Challenge",
    "ExpectedRequest",
    "FingerprintDemand",
    "ReceiptPolicy",
    "ReceiptReport",
    "Response",
    "StreamReport",
    "Subject",
    "Tools",
    "climb",
    "read_receipt_policy",
    "read_request",
    "read_response",
    "read_responses",
    "verify_receipt",
    "verify_stream",
]
