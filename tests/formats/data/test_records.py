from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from tallystick.core.canonical_json import parse
from tallystick.core.errors import MalformedError, ProofError, UsageError
from tallystick.formats.data.openings import RecordOpening, check_record, prove_record
from tallystick.formats.data.records import RecordTree, encode_example
from tallystick.formats.dataset import RecordCommit

VECTORS = Path(__file__).parents[3] / "vectors" / "dataset"
RECORDS = [b'{"text":"one"}', b'{"text":"two"}', b'{"text":"three"}']


@given(st.lists(st.binary(max_size=8), min_size=1, max_size=20), st.data())
@settings(deadline=None, max_examples=40)
def test_every_record_is_shown_at_its_position(records: list[bytes], data: st.DataObject) -> None:
    tree = RecordTree.of("jsonl", records)
    index = data.draw(st.integers(0, len(records) - 1))
    opening = prove_record(tree, index, records[index])
    commit = RecordCommit.from_json(tree.commit.to_json(), "records")
    check_record(RecordOpening.from_json(opening.to_json(), "opening"), commit)


def test_a_record_is_shown_at_no_other_position_and_under_no_other_count() -> None:
    tree = RecordTree.of("jsonl", RECORDS)
    opening = prove_record(tree, 1, RECORDS[1])
    check_record(opening, tree.commit)
    for forged in (
        opening.model_copy(update={"index": 0}),
        opening.model_copy(update={"index": 3}),
        opening.model_copy(update={"record": b"other"}),
        opening.model_copy(update={"proof": opening.proof[:-1]}),
        opening.model_copy(update={"proof": (*opening.proof, "00" * 32)}),
    ):
        with pytest.raises(ProofError):
            check_record(forged, tree.commit)
    with pytest.raises(ProofError):
        check_record(prove_record(tree, 2, RECORDS[2]), tree.commit.model_copy(update={"count": 4}))


def test_a_repeated_last_record_changes_the_digest() -> None:
    once, twice = (RecordTree.of("jsonl", records).commit for records in (RECORDS, [*RECORDS, RECORDS[-1]]))
    assert once.root != twice.root
    assert once.identity != twice.identity


def test_kind_and_count_are_part_of_the_digest() -> None:
    commit = RecordTree.of("jsonl", RECORDS).commit
    changed = [commit.model_copy(update=change).identity for change in ({"kind": "text"}, {"count": 4})]
    assert len({commit.identity, *changed}) == 3


def test_only_the_record_itself_can_be_opened() -> None:
    tree = RecordTree.of("text", RECORDS)
    for index in (-1, 3):
        with pytest.raises(UsageError, match="does not exist"):
            prove_record(tree, index, b"")
    with pytest.raises(UsageError, match="not record 0"):
        prove_record(tree, 0, RECORDS[1])


@pytest.mark.parametrize(
    "change",
    [
        {"index": -1},
        {"index": "0"},
        {"index": True},
        {"proof": "00"},
        {"proof": [1]},
        {"proof": ["AB" * 32]},
        {"proof": ["00" * 32] * 65},
        {"record": "?"},
        {"record": "YR=="},
        {"record": 1},
        {"record": "é"},
        {"more": 1},
    ],
)
def test_malformed_openings_are_refused(change: dict[str, object]) -> None:
    good = prove_record(RecordTree.of("jsonl", RECORDS), 0, RECORDS[0]).to_json()
    assert isinstance(good, dict)
    assert RecordOpening.from_json(good, "opening").index == 0
    with pytest.raises(MalformedError, match="opening"):
        RecordOpening.from_json(parse(json.dumps(good | change).encode(), "opening"), "opening")


@pytest.mark.parametrize("change", [{"count": 0}, {"kind": "csv"}, {"kind": None}, {"root": "0"}, {"x": 1}])
def test_malformed_commitments_are_refused(change: dict[str, object]) -> None:
    good = RecordTree.of("jsonl", RECORDS).commit.to_json()
    assert isinstance(good, dict)
    with pytest.raises(MalformedError, match="records"):
        RecordCommit.from_json(parse(json.dumps(good | change).encode(), "records"), "records")


def test_an_example_is_a_header_and_the_bytes_of_its_arrays() -> None:
    example = {"label": np.asarray(3, np.int64), "image": np.array([[0.5]], np.float32)}
    assert encode_example(example) == (
        b'[["image","F32",[1,1]],["label","I64",[]]]\n' + b"\x00\x00\x00\x3f" + b"\x03" + bytes(7)
    )


def test_published_vectors_hold() -> None:
    vectors = json.loads((VECTORS / "records.json").read_bytes())
    for vector in vectors["records"]:
        tree = RecordTree.of(vector["kind"], [record.encode() for record in vector["records"]])
        assert tree.commit.to_json() == vector["commit"]
        assert tree.commit.identity == vector["digest"]
        for opening in vector["openings"]:
            check_record(RecordOpening.from_json(opening, "opening"), tree.commit)
