"""Verifies Ed25519 signatures (RFC 8032) with the library `cryptography`."""

from __future__ import annotations

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from tallystick.attestation.points import fault_of_point, fault_of_signature
from tallystick.errors import ProofError


def check_signature(public: str, signature: str, message: bytes) -> None:
    """Raise `ProofError` unless `signature` is valid for `message` under the key `public`, both hexadecimal.

    All signatures are checked here; see `spec/signature.md`.
    """
    try:
        key, made = bytes.fromhex(public), bytes.fromhex(signature)
        _refuse("key of the signature", fault_of_point(key))
        _refuse("signature", fault_of_signature(made))
        Ed25519PublicKey.from_public_bytes(key).verify(made, message)
    except (InvalidSignature, ValueError):
        raise ProofError("the signature is not one of this key over these bytes") from None


def _refuse(what: str, fault: str | None) -> None:
    if fault is not None:
        raise ProofError(f"the {what} is {fault}")
