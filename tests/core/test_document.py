"""The one door: bytes, object and digest determine each other."""

from __future__ import annotations

from typing import Literal

import pytest
from hypothesis import given, strategies as st

from tallystick.core.digests import digest
from tallystick.core.documents import Count, DigestText, Document, Number, Positive
from tallystick.core.errors import MalformedError


class Note(Document):
    kind: Literal["note"] = "note"
    count: Count
    size: Positive = 1
    number: Number | None = None
    name: DigestText | None = None
    words: tuple[str, ...] = ()


DIGEST = digest("blob", b"")


@given(
    st.integers(0, 2**53 - 1),
    st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from(["nan", "inf", "-inf"]) | st.none(),
    st.lists(st.text(st.characters(codec="utf-8")), max_size=3),
)
def test_a_document_reads_back_from_its_own_bytes(count: int, number: float | str | None, words: list[str]) -> None:
    note = Note(count=count, number=number, words=tuple(words))  # type: ignore[arg-type]
    assert Note.from_bytes(note.to_bytes(), "note") == note


def test_an_option_that_is_not_there_is_absent() -> None:
    assert Note(count=1).to_bytes() == b'{"count":1,"kind":"note","size":1,"words":[]}'


def test_the_digest_covers_every_field() -> None:
    assert Note(count=1).digest_as("blob") == digest("blob", Note(count=1).to_bytes())
    assert Note(count=1).digest_as("blob") != Note(count=1, number=0.5).digest_as("blob")


@pytest.mark.parametrize(
    "data",
    [
        b'{"count":1,"kind":"note","size":1,"words":[],"number":null}',
        b'{"count":1,"kind":"note","number":null,"size":1,"words":[]}',
        b'{"count":1}',
        b'{"count":1.0,"kind":"note","size":1,"words":[]}',
        b'{"count": 1,"kind":"note","size":1,"words":[]}',
        b'{"count":1,"count":1,"kind":"note","size":1,"words":[]}',
        b'{"count":1,"kind":"note","size":1,"words":[]}\n',
        b'{"count":1,"extra":0,"kind":"note","size":1,"words":[]}',
        b'{"count":true,"kind":"note","size":1,"words":[]}',
        b'{"count":"1","kind":"note","size":1,"words":[]}',
        b'{"count":-1,"kind":"note","size":1,"words":[]}',
        b'{"count":9007199254740992,"kind":"note","size":1,"words":[]}',
        b'{"count":1,"kind":"memo","size":1,"words":[]}',
        b'{"count":1,"kind":"note","size":0,"words":[]}',
        b'{"count":1,"kind":"note","name":"sha256:AB","size":1,"words":[]}',
        b'{"count":1,"kind":"note","number":"huge","size":1,"words":[]}',
        b'{"count":1,"kind":"note","size":1,"words":{}}',
        b"[]",
        b"",
        b"\xff",
        b"[" * 100_000,
    ],
)
def test_other_spellings_and_other_values_are_refused_by_name(data: bytes) -> None:
    with pytest.raises(MalformedError, match="letter"):
        Note.from_bytes(data, "letter")


def test_the_first_field_that_is_wrong_is_named() -> None:
    with pytest.raises(MalformedError, match=r"letter: size: "):
        Note.from_json({"count": 1, "size": 0}, "letter")
    with pytest.raises(MalformedError, match=r"letter: number: "):
        Note.from_json({"count": 1, "number": float("nan")}, "letter")


def test_a_document_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Note(count=1).count = 2  # type: ignore[misc]


def test_a_digest_is_lower_case_and_whole() -> None:
    assert Note(count=1, name=DIGEST).name == DIGEST
    for text in (DIGEST.upper(), DIGEST[:-1], DIGEST + "0", "sha512:" + "0" * 64, ""):
        with pytest.raises(MalformedError, match="name"):
            Note.from_json({"count": 1, "name": text}, "letter")
