"""Which Ed25519 keys and signatures are taken at all, before an equation is asked (`spec/signature.md`).

The library checks S·B = R + k·A without cofactor, as RFC 8032 §5.1.7 allows. Under a key A of small order k·A takes
eight values at most: one signature holds for every eighth message, and under the neutral element for all of them.
RFC 8032 leaves such keys in. Here they are refused with all else that libraries differ in (Chalkias, Garillot,
Nikolaenko 2020, "Taming the many EdDSAs"): what is left is one encoding of each key and each signature, and
a signature that binds its owner to one message.

A key with a part of small order beside a large one (mixed order) is taken: it signs nothing that it did not sign, and
finding it out costs a scalar multiplication at every check.
"""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import AfterValidator, Field

FIELD: Final = 2**255 - 19
ORDER: Final = 2**252 + 27742317777372353535851937790883648493
"""The order L of the base point (RFC 8032 §5.1)."""
EIGHTH: Final = 2707385501144840649318225287225658788936804267575313519463743609750303402022
"""The y of two of the four points of order 8; −y is that of the other two, 0 that of order 4, −1 that of order 2."""
SMALL_ORDER: Final = frozenset({0, 1, FIELD - 1, EIGHTH, FIELD - EIGHTH})
POINT_BYTES: Final = 32
SIGNATURE_BYTES: Final = 64


def fault_of_point(data: bytes) -> str | None:
    """Why these bytes are taken for no key and no R, in words that follow "is"; `None` where nothing is wrong.

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
    """Why these bytes are taken for no signature, in words that follow "is"; `None` where nothing is wrong."""
    if len(data) != SIGNATURE_BYTES:
        return f"{len(data)} bytes long, not {SIGNATURE_BYTES}"
    if int.from_bytes(data[POINT_BYTES:], "little") >= ORDER:
        return "not in canonical form"
    fault = fault_of_point(data[:POINT_BYTES])
    return None if fault is None else f"none: its first half is {fault}"


def check_public(text: str) -> str:
    """`text`, where a verifier may believe the key in it; raises `ValueError` with the reason where not."""
    fault = fault_of_point(bytes.fromhex(text))
    if fault is not None:
        raise ValueError(f"the key {text[:16]}… is {fault}")
    return text


PublicKey = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$"), AfterValidator(check_public)]
"""A key whose signatures a verifier would believe: 64 hexadecimal digits."""
