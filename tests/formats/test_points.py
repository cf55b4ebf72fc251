"""Keys and signatures that nobody should believe, against what others published and against the curve itself."""

from __future__ import annotations

import hashlib
import json
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from pydantic import TypeAdapter, ValidationError

from tallystick.core.errors import ProofError
from tallystick.formats.signing import (
    EIGHTH,
    FIELD,
    ORDER,
    SMALL_ORDER,
    PublicKey,
    SigningKey,
    check_signature,
    fault_of_point,
    fault_of_signature,
)

VECTORS = Path(__file__).parents[2] / "vectors"
SPECCHECK: list[dict[str, str]] = json.loads((VECTORS / "speccheck" / "cases.json").read_text())
MIXED_ORDER = 3
"""The only case that holds: key and R are of mixed order, and all is canonical."""
CURVE_D = -121665 * pow(121666, -1, FIELD) % FIELD
Point = tuple[int, int]
NEUTRAL: Point = (0, 1)


def holds(key: str, signature: str, message: bytes) -> bool:
    try:
        check_signature(key, signature, message)
    except ProofError:
        return False
    return True


def library_takes(key: bytes, signature: bytes, message: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def added(a: Point, b: Point) -> Point:
    """The sum of two points of the curve -x^2 + y^2 = 1 + d x^2 y^2 (RFC 8032 §5.1.4, affine)."""
    product = CURVE_D * a[0] * b[0] * a[1] * b[1]
    x = (a[0] * b[1] + a[1] * b[0]) * pow(1 + product, -1, FIELD)
    y = (a[1] * b[1] + a[0] * b[0]) * pow(1 - product, -1, FIELD)
    return x % FIELD, y % FIELD


def times(factor: int, point: Point) -> Point:
    found = NEUTRAL
    for bit in bin(factor)[2:]:
        found = added(found, found)
        found = added(found, point) if bit == "1" else found
    return found


def with_y(y: int) -> Point | None:
    """A point with this y (RFC 8032 §5.1.3)."""
    square = (y * y - 1) * pow(CURVE_D * y * y + 1, -1, FIELD) % FIELD
    root = pow(square, (FIELD + 3) // 8, FIELD)
    for x in (root, root * pow(2, (FIELD - 1) // 4, FIELD) % FIELD):
        if x * x % FIELD == square:
            return x, y
    return None


def points_of_small_order() -> list[Point]:
    """The multiples of a point of order 8, which is L times any point that has one in it."""
    for y in count(2):
        point = with_y(y)
        eighth = NEUTRAL if point is None else times(ORDER, point)
        if times(4, eighth) != NEUTRAL:
            return [times(factor, eighth) for factor in range(8)]
    raise AssertionError


def encodings(y: int) -> list[bytes]:
    """Every 32 bytes that some reader decodes to a point with this y: both signs, and y + p where that fits."""
    each = [value for value in (y, y + FIELD) if value < 1 << 255]
    return [(value | sign << 255).to_bytes(32, "little") for value in each for sign in (0, 1)]


def test_the_points_of_small_order_are_all_there_are_and_no_others() -> None:
    points = points_of_small_order()
    assert len(set(points)) == 8
    assert all(times(8, point) == NEUTRAL for point in points)
    assert {y for _, y in points} == SMALL_ORDER
    assert EIGHTH in SMALL_ORDER


def test_the_order_is_that_of_the_base_point() -> None:
    base = with_y(4 * pow(5, -1, FIELD) % FIELD)
    assert base is not None
    assert times(ORDER, base) == NEUTRAL != base


@pytest.mark.parametrize("y", sorted(SMALL_ORDER))
def test_no_encoding_of_a_point_of_small_order_is_a_key(y: int) -> None:
    for encoded in encodings(y):
        assert fault_of_point(encoded) is not None
        with pytest.raises(ValidationError, match=f"the key {encoded.hex()[:16]}… is "):
            TypeAdapter(PublicKey).validate_python(encoded.hex())


def test_a_signature_that_the_library_takes_for_every_message_is_refused() -> None:
    key, signature = "01" + "00" * 31, "01" + "00" * 63
    for message in (b"", b"yes", b"no"):
        assert library_takes(bytes.fromhex(key), bytes.fromhex(signature), message)
        with pytest.raises(ProofError, match="key of the signature is a point of small order"):
            check_signature(key, signature, message)


def test_a_signature_under_any_key_of_small_order_is_refused_though_the_library_takes_it() -> None:
    taken = 0
    for key in (encoded for y in SMALL_ORDER for encoded in encodings(y)):
        for first in (encoded for y in SMALL_ORDER for encoded in encodings(y)):
            signature = first + bytes(32)
            for message in (b"%d" % number for number in range(8)):
                taken += library_takes(key, signature, message)
                assert not holds(key.hex(), signature.hex(), message)
    assert taken > 100


@pytest.mark.parametrize("number", range(12))
def test_of_the_published_edge_cases_only_that_of_mixed_order_holds(number: int) -> None:
    case = SPECCHECK[number]
    assert holds(case["pub_key"], case["signature"], bytes.fromhex(case["message"])) == (number == MIXED_ORDER)


def test_a_key_of_mixed_order_signs_one_message() -> None:
    case = SPECCHECK[MIXED_ORDER]
    assert not holds(case["pub_key"], case["signature"], b"another message")


def wycheproof() -> list[Any]:
    document = json.loads((VECTORS / "wycheproof" / "ed25519_test.json").read_text())
    return [(group["publicKey"]["pk"], test) for group in document["testGroups"] for test in group["tests"]]


def test_every_signature_of_wycheproof_is_judged_as_it_is_published() -> None:
    cases = wycheproof()
    assert len(cases) == 151
    for key, test in cases:
        found = holds(key, test["sig"], bytes.fromhex(test["msg"]))
        assert found == (test["result"] == "valid"), test["tcId"]


def test_the_other_encodings_of_an_honest_signature_are_refused() -> None:
    key = SigningKey(bytes(range(32)))
    signature = bytes.fromhex(key.sign(b"message"))
    assert holds(key.public, signature.hex(), b"message")
    larger = int.from_bytes(signature[32:], "little") + ORDER
    for turned in (
        signature[:32] + larger.to_bytes(32, "little"),
        signature + b"\0",
        signature[:-1],
        (FIELD + 3).to_bytes(32, "little") + signature[32:],
        hashlib.sha512(signature).digest(),
    ):
        assert not holds(key.public, turned.hex(), b"message")
    assert fault_of_signature(signature) is None
    assert fault_of_signature(signature[:32] + larger.to_bytes(32, "little")) == "not in canonical form"


def test_honest_keys_have_no_fault() -> None:
    for number in range(64):
        assert fault_of_point(bytes.fromhex(SigningKey(bytes([number]) * 32).public)) is None
    assert fault_of_point(bytes(31)) == "31 bytes long, not 32"
