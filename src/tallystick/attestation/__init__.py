"""Signatures: who made a statement."""

from tallystick.attestation.points import PublicKey, check_public
from tallystick.attestation.signing import SigningKey, check_signature, sign_receipt, verify_receipt_signature

__all__ = ["PublicKey", "SigningKey", "check_public", "check_signature", "sign_receipt", "verify_receipt_signature"]
