"""Which Ed25519 keys and signatures are accepted, before the verification equation is computed (`spec/signature.md`).

The library checks S·B = R + k·A without cofactor, as RFC 8032 §5.1.7 allows. Under a key A of small order, k·A has at
most eight values. Then one signature is valid for every eighth message; under the neutral element, for all messages.
RFC 8032 permits such keys. Here they are refused, with everything else on which libraries differ (Chalkias, Garillot,
Nikolaenko 2020, "Taming the many EdDSAs"). So each key and each signature has one encoding, and a signature binds its
owner to one message.

A key of mixed order (a large order and a small one) is accepted. Its signatures are valid only for the messages that it
signed, and detecting it would cost a scalar multiplication in every check.
"""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import AfterValidator, Field

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


PublicKey = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$"), AfterValidator(check_public)]
"""A key whose signatures a verifier may accept: 64 hexadecimal digits."""
