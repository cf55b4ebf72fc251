"""Signatures: who made a statement."""

from tallystick.attestation.signing import SigningKey, check_signature, sign_receipt, verify_receipt_signature

__all__ = ["SigningKey", "check_signature", "sign_receipt", "verify_receipt_signature"]
