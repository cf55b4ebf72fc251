from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from tallystick.core.errors import MalformedError
from tallystick.formats.data.records import TEXT_RECORD_BYTES, normalize_newlines, read_corpus, split_records


@pytest.mark.parametrize("ending", [b"\n", b"\r\n", b"\r"])
def test_every_kind_of_line_end_becomes_a_line_feed(ending: bytes) -> None:
    assert normalize_newlines("text", ending.join([b"a", b"", b"b"])) == b"a\n\nb"
    assert normalize_newlines("jsonl", ending.join([b"{}", b"{}"])) == b"{}\n{}\n"
    assert normalize_newlines("jsonl", ending.join([b"{}", b"{}", b""])) == b"{}\n{}\n"


@given(st.binary(max_size=64))
@settings(deadline=None)
def test_normalising_twice_changes_nothing_more(data: bytes) -> None:
    for kind in ("text", "jsonl"):
        once = normalize_newlines(kind, data)
        assert normalize_newlines(kind, once) == once
        assert b"\r" not in once


def test_text_is_cut_into_records_of_64_kibibytes() -> None:
    data = "é".encode() * TEXT_RECORD_BYTES
    records = split_records("text", data)
    assert [len(record) for record in records] == [TEXT_RECORD_BYTES] * 2
    assert b"".join(records) == data


def test_jsonl_has_one_record_a_line_with_its_bytes_as_they_are() -> None:
    assert split_records("jsonl", b'{"b": 1, "a": 2}\n{}\n') == [b'{"b": 1, "a": 2}', b"{}"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "empty"),
        (b"{}\n\n{}\n", "line 2: empty"),
        (b"{}\n[]\n", "line 2: not a JSON object"),
        (b'{"a":1,"a":2}\n', "line 1"),
        (b'{"a":NaN}\n', "line 1"),
        (b'{"a":"\xff"}\n', "line 1"),
        (b"\xef\xbb\xbf{}\n", "line 1"),
        (b"{}", "line feed"),
        (b'{"a":' + b"[" * 100_000 + b"\n", "line 1"),
    ],
)
def test_jsonl_that_is_not_one_strict_object_a_line_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(MalformedError, match=message):
        split_records("jsonl", data)


@pytest.mark.parametrize("data", [b"", b"a\xffb", b"\xef\xbb\xbfa", b"\xed\xa0\x80"])
def test_text_that_is_not_utf8_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedError, match="source"):
        split_records("text", data)


def test_the_corpus_of_jsonl_is_each_text_and_a_line_feed() -> None:
    assert read_corpus("jsonl", b'{"text":"a"}\n{"id":1,"text":"b\\n"}\n') == "a\nb\n\n"
    assert read_corpus("text", b"a\nb") == "a\nb"


@pytest.mark.parametrize("line", [b"{}", b'{"text":1}', b'{"Text":"a"}'])
def test_a_record_without_text_has_no_corpus(line: bytes) -> None:
    with pytest.raises(MalformedError, match="line 1: no string in the field 'text'"):
        read_corpus("jsonl", line + b"\n")
