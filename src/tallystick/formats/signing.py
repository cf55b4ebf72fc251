"""Ed25519 signatures (RFC 8032): made, verified, and put under receipts."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from pydantic import AfterValidator

from tallystick.core.documents import HashText
from tallystick.core.errors import MalformedError, ProofError
from tallystick.core.files import write_secret
from tallystick.formats.receipt import Receipt, SignedReceipt

# Which Ed25519 keys and signatures are accepted, before the verification equation is computed (`spec/signature.md`).
#
# The library checks S·B = R + k·A without cofactor, as RFC 8032 §5.1.7 allows. Under a key A of small order, k·A has at
# most eight values. Then one signature is valid for every eighth message; under the neutral element, for all messages.
# RFC 8032 permits such keys. Here they are refused, with everything else on which libraries differ (Chalkias, Garillot,
# Nikolaenko 2020, "Taming the many EdDSAs"). So each key and each signature has one encoding, and a signature binds its
# owner to one message.
#
# A key of mixed order (a large order and a small one) is accepted. Its signatures are valid only for the messages that
# it signed, and detecting it would cost a scalar multiplication in every check.

FIELD: Final = 2**255 - 19
ORDER: Final = 2**252 + 27742317777372353535851937790883648493
"""The order L of the base point (RFC 8032 §5.1)."""
EIGHTH: Final = 2707385501144840649318225287225658788936804267575313519463743609750303402022
"""The y of two of the four points of order 8; the other two have −y. Order 4 has y = 0, order 2 has y = −1."""
SMALL_ORDER: Final = frozenset({0, 1, FIELD - 1, EIGHTH, FIELD - EIGHTH})
POINT_BYTES: Final = 32
SIGNATURE_BYTES: Final = 64


def fault_of_point(data: bytes) -> str | None:
    """Why these bytes are refused as a key or as R, as words that follow "is"; `None` if they are accepted.

    >>> fault_of_point(bytes([1]) + bytes(31))
    'a point of small order, by which anybody could sign'
    """
    if len(data) != POINT_BYTES:
        return f"{len(data)} bytes long, not {POINT_BYTES}"
    y = int.from_bytes(data, "little") & (1 << 255) - 1  # the highest bit is the sign of x
    if y >= FIELD:
        return "not in canonical form"
    return "a point of small order, by which anybody could sign" if y in SMALL_ORDER else None


def fault_of_signature(data: bytes) -> str | None:
    """Why these bytes are refused as a signature, as words that follow "is"; `None` if they are accepted."""
    if len(data) != SIGNATURE_BYTES:
        return f"{len(data)} bytes long, not {SIGNATURE_BYTES}"
    if int.from_bytes(data[POINT_BYTES:], "little") >= ORDER:
        return "not in canonical form"
    fault = fault_of_point(data[:POINT_BYTES])
    return None if fault is None else f"none: its first half is {fault}"


def check_public(text: str) -> str:
    """Return `text` if a verifier may accept it as a key; raise `ValueError` with the reason otherwise."""
    fault = fault_of_point(bytes.fromhex(text))
    if fault is not None:
        raise ValueError(f"the key {text[:16]}… is {fault}")
    return text


PublicKey = Annotated[HashText, AfterValidator(check_public)]
"""A key whose signatures a verifier may accept: 64 hexadecimal digits."""


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
