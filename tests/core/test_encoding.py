from __future__ import annotations

import hashlib
import json
import math
import struct
from pathlib import Path
from typing import Any

import pytest
import rfc8785
from hypothesis import given, settings, strategies as st

from tallystick.core.canonical_json import Json, decode, encode, parse
from tallystick.core.errors import MalformedError

VECTORS = Path(__file__).parents[2] / "vectors"
PARSING = sorted((VECTORS / "json-test-suite" / "test_parsing").glob("*.json"))
CANONICALIZED = sorted((VECTORS / "jcs" / "testdata" / "input").glob("*.json"))
CASES: list[dict[str, str]] = json.loads((VECTORS / "json" / "cases.json").read_text())
OWN: dict[str, list[dict[str, Any]]] = json.loads((VECTORS / "encoding" / "values.json").read_text())
NUMBERS = (VECTORS / "json" / "es6numbers_10k.txt").read_bytes()

REFUSED_ON_PURPOSE = {"y_object_duplicated_key.json", "y_object_duplicated_key_and_value.json"}
FREE_CHOICES_ACCEPTED = {
    "i_number_double_huge_neg_exp.json",
    "i_number_real_underflow.json",
    "i_number_too_big_pos_int.json",
}
"""What RFC 8259 leaves open and we accept: underflow to zero, and digits that RFC 8785 itself writes for 1e20."""

JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


def is_accepted(data: bytes) -> bool:
    try:
        parse(data, "case")
    except MalformedError:
        return False
    return True


def test_the_parsing_suite_is_complete() -> None:
    kinds = [path.name[0] for path in PARSING]
    assert [kinds.count(kind) for kind in "yni"] == [95, 188, 35]


@pytest.mark.parametrize("path", PARSING, ids=lambda path: path.name)
def test_the_json_test_suite_is_answered_as_pinned(path: Path) -> None:
    must_accept = path.name.startswith("y_") and path.name not in REFUSED_ON_PURPOSE
    assert is_accepted(path.read_bytes()) == (must_accept or path.name in FREE_CHOICES_ACCEPTED)


@pytest.mark.parametrize("path", CANONICALIZED, ids=lambda path: path.name)
def test_the_published_documents_are_canonicalized_as_published(path: Path) -> None:
    expected = (path.parents[1] / "output" / path.name).read_bytes()
    in_hex = (path.parents[1] / "outhex" / path.name).with_suffix(".txt").read_text()
    assert encode(parse(path.read_bytes(), path.name)) == expected == bytes.fromhex(in_hex)
    assert encode(decode(expected, path.name)) == expected


def test_ten_thousand_numbers_are_spelled_as_published_and_read_back() -> None:
    lines = NUMBERS.splitlines(keepends=True)
    sums = [hashlib.sha256(b"".join(lines[:count])).hexdigest() for count in (1_000, 10_000)]
    assert [text[:8] + text[-4:] for text in sums] == ["be18b62b8687", "b9f7a8e76892"]
    for line in NUMBERS.decode().splitlines():
        bits, expected = line.split(",")
        value = struct.unpack(">d", bytes.fromhex(bits.rjust(16, "0")))[0]
        assert encode(value).decode() == expected
        assert decode(expected.encode(), "number") == value


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["why"] or "plain")
def test_pitfalls_of_canonical_json_end_as_expected(case: dict[str, str]) -> None:
    data, expected = case["input"].encode("utf-8", "surrogatepass"), case["expect"]
    is_number = expected[0].isdigit()
    assert is_accepted(data) == (expected != "reject" and case["why"] != "> 2^53: refuse, or carry as a string")
    if is_number:
        assert encode(parse(data, "case")) == b'{"a":' + expected.encode() + b"}"


def test_keys_are_sorted_by_utf16_code_unit() -> None:
    names: dict[str, Json] = {"\ufb33": 1, "\U0001f600": 2}
    assert encode(names) == '{"\U0001f600":2,"\ufb33":1}'.encode()
    assert decode('{"\U0001f600":2,"\ufb33":1}'.encode(), "names") == names


@pytest.mark.parametrize("case", OWN["canonical"], ids=lambda case: case["why"])
def test_a_value_has_the_bytes_of_its_vector(case: dict[str, Any]) -> None:
    data = bytes.fromhex(case["canonical"])
    assert encode(case["value"]) == data
    assert decode(data, "value") == case["value"]


@pytest.mark.parametrize("case", OWN["refused"], ids=lambda case: case["why"])
def test_what_is_no_strict_json_is_refused(case: dict[str, Any]) -> None:
    with pytest.raises(MalformedError, match=r"^the thing: "):
        parse(bytes.fromhex(case["input"]), "the thing")


@pytest.mark.parametrize("case", OWN["uncanonical"], ids=lambda case: case["why"])
def test_another_spelling_is_parsed_but_not_decoded(case: dict[str, Any]) -> None:
    data = bytes.fromhex(case["input"])
    value = parse(data, "the thing")
    with pytest.raises(MalformedError, match=r"^the thing: not canonical"):
        decode(data, "the thing")
    assert decode(encode(value), "the thing") == value


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 2**53, -(2**53), "\ud800", {"\udfff": 1}])
def test_a_value_without_canonical_bytes_is_refused(value: Json) -> None:
    with pytest.raises(MalformedError, match=r"^no canonical JSON"):
        encode(value)


def test_nesting_without_end_is_refused_by_the_writer() -> None:
    endless: list[Json] = []
    endless.append(endless)
    with pytest.raises(MalformedError):
        encode(endless)


def test_integers_stay_integers_and_longer_digits_are_floats() -> None:
    assert isinstance(parse(b"9007199254740991", "n"), int)
    assert isinstance(parse(b"100000000000000000000", "n"), float)
    for wrong in (b"9007199254740993", b"10000000000000000000000", b"1152921504606846976"):
        with pytest.raises(MalformedError, match="lies beyond"):
            parse(wrong, "n")


def test_depth_is_limited_and_brackets_in_text_do_not_count() -> None:
    assert parse(b"[" * 64 + b"]" * 64, "deep")
    with pytest.raises(MalformedError, match="nested deeper than 64"):
        parse(b"[" * 65 + b"]" * 65, "deep")
    assert parse(b'["' + b'[\\"' * 100 + b'"]', "text")
    assert parse(b"[[[]]]", "shallow", depth_max=3)
    with pytest.raises(MalformedError, match="nested deeper than 2"):
        parse(b"[[[]]]", "shallow", depth_max=2)


def test_size_is_limited_and_the_limit_can_be_moved() -> None:
    with pytest.raises(MalformedError, match="more than the 4 allowed"):
        parse(b"[1,2]", "long", bytes_max=4)
    assert parse(b"[1,2]", "long", bytes_max=5) == [1, 2]


def test_a_hundred_thousand_brackets_are_refused_before_they_are_followed() -> None:
    with pytest.raises(MalformedError, match="nested deeper"):
        parse(b"[" * 100_000, "bomb")


def test_a_duplicate_behind_many_keys_is_found_in_one_pass() -> None:
    names = ",".join(f'"{index}":0' for index in range(100_000))
    with pytest.raises(MalformedError, match="duplicate key '0'"):
        parse(f'{{{names},"0":1}}'.encode(), "keys")


@given(JSON_VALUES)
@settings(deadline=None, max_examples=200)
def test_every_value_comes_back_and_its_bytes_are_the_only_ones(value: Json) -> None:
    data = encode(value)
    assert decode(data, "value") == value
    assert encode(decode(data, "value")) == data
    assert encode(parse(json.dumps(value).encode(), "value")) == data


@given(st.binary(max_size=64) | JSON_VALUES.map(lambda value: json.dumps(value).encode()), st.data())
@settings(deadline=None, max_examples=300)
def test_nothing_but_a_malformed_error_leaves_the_parser(data: bytes, draw: st.DataObject) -> None:
    if data:
        place, bits = draw.draw(st.integers(0, len(data) - 1)), draw.draw(st.integers(0, 255))
        data = data[:place] + bytes([data[place] ^ bits]) + data[place + 1 :]
    try:
        value = decode(data, "flipped")
    except MalformedError:
        return
    assert encode(value) == data


@given(JSON_VALUES)
def test_the_faster_writer_gives_the_bytes_of_the_library(value: Json) -> None:
    assert encode(value) == rfc8785.dumps(value)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", [chr(code) for code in range(128)], ids=ascii)
def test_ascii_text_is_escaped_as_the_library_does(text: str) -> None:
    assert encode({text: text, "b": 1}) == rfc8785.dumps({text: text, "b": 1})


def test_values_within_themselves_have_no_bytes() -> None:
    within: list[Json] = []
    within.append(within)
    with pytest.raises(MalformedError, match="no canonical JSON"):
        encode(within)


@pytest.mark.parametrize("value", [{1: 2}, {"a": 2**53}, {"a": float("nan")}, ["\ud800"], {"a": {1, 2}}], ids=ascii)
def test_what_the_library_refuses_is_refused(value: Json) -> None:
    with pytest.raises(MalformedError, match="no canonical JSON"):
        encode(value)
