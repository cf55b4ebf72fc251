"""Ed25519 signatures (RFC 8032): made, verified, and put under receipts."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from tallystick.core.ed25519 import fault_of_point, fault_of_signature
from tallystick.core.errors import MalformedError, ProofError
from tallystick.core.files import write_secret
from tallystick.formats.receipt import Receipt, SignedReceipt

# Verifies Ed25519 signatures (RFC 8032) with the library `cryptography`.


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


# Secret Ed25519 keys (RFC 8032) and the signing of receipts, with the library `cryptography`.

SECRET_BYTES: Final = 32


@dataclass(frozen=True)
class SigningKey:
    """A secret key of 32 bytes; it is only ever written to a file that its owner alone can read."""

    secret: bytes

    def __post_init__(self) -> None:
        if len(self.secret) != SECRET_BYTES:
            raise MalformedError(f"a signing key has {SECRET_BYTES} bytes, not {len(self.secret)}")

    def __repr__(self) -> str:
        return f"SigningKey({self.public})"

    @classmethod
    def generate(cls) -> SigningKey:
        """A new key from the random generator of the operating system."""
        return cls(os.urandom(SECRET_BYTES))

    @classmethod
    def read(cls, file: Path | str) -> SigningKey:
        """Read a key from a file of 64 hexadecimal digits; raises `MalformedError` for any other content."""
        path = Path(file)
        text = path.read_text(errors="replace")
        try:
            return cls(bytes.fromhex(text.strip()))
        except (ValueError, MalformedError):
            raise MalformedError(f"{path.name}: no signing key of 64 hexadecimal digits") from None

    def write(self, file: Path | str) -> None:
        """Write the key to a new file of mode 600.

        Raises:
            UsageError: the file exists.
            UnavailableError: the disk cannot be written.
        """
        write_secret(Path(file), self.secret.hex().encode() + b"\n", "a key")

    @cached_property
    def public(self) -> str:
        """The public key, 64 hexadecimal digits."""
        return self._private.public_key().public_bytes_raw().hex()

    def sign(self, message: bytes) -> str:
        """The signature of `message`, 128 hexadecimal digits."""
        return self._private.sign(message).hex()

    @cached_property
    def _private(self) -> Ed25519PrivateKey:
        return Ed25519PrivateKey.from_private_bytes(self.secret)


def sign_receipt(receipt: Receipt, key: SigningKey) -> SignedReceipt:
    """The receipt with the signature of its provider."""
    return SignedReceipt(receipt=receipt, key=key.public, signature=key.sign(receipt.signed_bytes()))


def verify_receipt_signature(signed: SignedReceipt) -> None:
    """Raise `ProofError` unless the signature is valid under the key in `signed`."""
    check_signature(signed.key, signed.signature, signed.receipt.signed_bytes())
