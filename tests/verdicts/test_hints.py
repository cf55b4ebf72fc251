import struct

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from tallystick.core.errors import MalformedError
from tallystick.verdicts.buckets import MAGIC, TensorHints, encode_hints, parse_hints


@st.composite
def tensor_hints(draw):
    size = draw(st.sampled_from([1, 7, 1000, 2**40]))
    indices = sorted(draw(st.sets(st.integers(0, size - 1), min_size=1, max_size=min(size, 12))))
    sides = draw(st.lists(st.booleans(), min_size=len(indices), max_size=len(indices)))
    return TensorHints(size, np.array(indices, np.int64), np.array(sides, bool))


HINTS = st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), tensor_hints(), max_size=4)


def plain(hints):
    return {name: (each.size, each.indices.tolist(), each.sides.tolist()) for name, each in hints.items()}


def encode_by_hand(hints):
    data = MAGIC
    for name in sorted(hints, key=str.encode):
        entry, body, previous = hints[name], b"", -1
        for index, side in zip(entry.indices.tolist(), entry.sides.tolist(), strict=True):
            number, previous = 2 * (index - previous - 1) + side, index
            while number >= 0x80:
                body += bytes([number & 0x7F | 0x80])
                number >>= 7
            body += bytes([number])
        label = name.encode()
        data += struct.pack("<H", len(label)) + label
        data += struct.pack("<QQQ", entry.size, len(entry.indices), len(body)) + body
    return data


@settings(max_examples=100, deadline=None)
@given(HINTS)
def test_hints_survive_the_round_trip(hints):
    assert plain(parse_hints(encode_hints(hints))) == plain(hints)


@settings(max_examples=100, deadline=None)
@given(HINTS)
def test_the_encoding_is_the_specified_one(hints):
    assert encode_hints(hints) == encode_by_hand(hints)


@settings(max_examples=300, deadline=None)
@given(HINTS, st.data())
def test_damaged_bytes_are_refused_or_canonical(hints, data):
    raw = bytearray(encode_hints(hints))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    damaged = bytes(raw[: data.draw(st.integers(0, len(raw)))])
    assert_refused_or_canonical(damaged)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=80))
def test_arbitrary_bytes_are_refused_or_canonical(tail):
    assert_refused_or_canonical(MAGIC + tail)
    with pytest.raises(MalformedError):
        parse_hints(b"x" + tail)


def assert_refused_or_canonical(data):
    try:
        hints = parse_hints(data)
    except MalformedError:
        return
    assert encode_hints(hints) == data


def entry(body: bytes, count: int, size: int = 10, name: bytes = b"w") -> bytes:
    return struct.pack("<H", len(name)) + name + struct.pack("<QQQ", size, count, len(body)) + body


def test_a_well_formed_entry_is_read():
    hints = parse_hints(MAGIC + entry(b"\x01\x04", 2))
    assert plain(hints) == {"w": (10, [0, 3], [True, False])}


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (entry(b"\x81\x00", 1), "shortest"),
        (entry(b"\x80" * 9 + b"\x01", 1), "shortest"),
        (entry(b"\x81", 1), "numbers"),
        (entry(b"\x01\x01", 1), "numbers"),
        (entry(b"", 0), "hints for"),
        (entry(b"\x00" * 11, 11), "hints for"),
        (entry(b"\x14", 1), "outside"),
        (entry((b"\xff" * 8 + b"\x7f") * 2, 2, size=1 << 62), "outside"),
        (entry(b"\x01", 1, size=1 << 63), "hints for"),
        (entry(b"\x01", 1)[:-1], "middle"),
        (entry(b"\x01", 1) + b"\x00", "middle"),
        (entry(b"\x01", 1) + entry(b"\x01", 1), "ascending"),
        (entry(b"\x01", 1, name=b"\xff"), "UTF-8"),
        (struct.pack("<H", 5000) + bytes(5000), "5000 bytes"),
    ],
)
def test_a_malformed_entry_is_refused_with_its_reason(data, reason):
    with pytest.raises(MalformedError, match=reason):
        parse_hints(MAGIC + data)


def test_hints_beyond_the_limit_are_refused_before_they_are_read():
    data = MAGIC + entry(b"\x01", 1)
    assert parse_hints(data, bytes_max=len(data))
    with pytest.raises(MalformedError, match="limit"):
        parse_hints(data, bytes_max=len(data) - 1)
