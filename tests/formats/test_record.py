"""Every kind of record, read from one line."""

from __future__ import annotations

import json
from typing import Annotated, Any

import pytest
from hypothesis import given, settings, strategies as st
from pydantic import Field, TypeAdapter, ValidationError

from tallystick.core.canonical_json import decode, encode
from tallystick.core.errors import MalformedError
from tallystick.formats.claims import Claim, Log
from tallystick.formats.records import (
    AnchorRecord,
    BucketSummary,
    FailedRecord,
    HeaderRecord,
    Record,
    StateSummary,
    StepRecord,
    TraceEntry,
    anchor_file,
    decode_sketch,
    encode_sketch,
    read_record,
)

DIGEST = "sha256:" + "ab" * 32
KNOBS = {"anchor_stride": 4, "bucket_mode": "both", "grid_eps": 1e-6, "loss_decimals": 4}
RECORDS: dict[str, dict[str, Any]] = {
    "header": {"kind": "header", "version": 1, "spec": DIGEST, "environment": DIGEST, "data": DIGEST, "knobs": KNOBS},
    "anchor": {"kind": "anchor", "index": 4, "file": anchor_file(4), "digest": DIGEST, "summary": {}},
    "failed": {"kind": "failed", "index": 3, "error": "RuntimeError: no"},
    "step": {
        "kind": "step",
        "index": 3,
        "data": DIGEST,
        "batch": {"split": "train", "indices": [5, 0]},
        "pre": {"projection": "AAAAAA=="},
        "post": {"exact": DIGEST, "fp16_rne": {"digest": DIGEST, "hints": DIGEST}},
        "loss": 2.5,
        "gradient_norm": "inf",
        "activation": [0.5, "nan"],
        "learning_rate": 0.001,
        "tags": ["noop"],
    },
}
TYPES = {"header": HeaderRecord, "anchor": AnchorRecord, "failed": FailedRecord, "step": StepRecord}


@pytest.mark.parametrize("kind", RECORDS)
def test_a_record_reads_back_from_its_line(kind: str) -> None:
    line = encode(RECORDS[kind])
    record = read_record(line, "line 1")
    assert type(record) is TYPES[kind]
    assert record.to_bytes() == line


@pytest.mark.parametrize("kind", RECORDS)
def test_a_missing_an_unknown_and_an_explicit_null_field_are_refused(kind: str) -> None:
    for name in RECORDS[kind].keys() - {"data", "gradient_norm", "activation"}:
        with pytest.raises(MalformedError, match="line 1"):
            read_record(encode({key: value for key, value in RECORDS[kind].items() if key != name}), "line 1")
    for extra in ({"zzz": 1}, {"note": None}):
        with pytest.raises(MalformedError, match="line 1"):
            read_record(encode(RECORDS[kind] | extra), "line 1")


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("header", {"version": 2}),
        ("header", {"spec": "sha256:ab"}),
        ("header", {"knobs": KNOBS | {"anchor_stride": 0}}),
        ("header", {"knobs": KNOBS | {"bucket_mode": "fp8"}}),
        ("anchor", {"index": -1}),
        ("anchor", {"file": "anchors/../../etc/passwd"}),
        ("anchor", {"file": "/anchors/step_00000004.safetensors"}),
        ("anchor", {"file": "anchors/step_00000004.safetensors\n"}),
        ("anchor", {"file": "anchors/step_4.safetensors"}),
        ("failed", {"index": 0}),
        ("failed", {"error": "x" * 1025}),
        ("failed", {"error": 3}),
        ("step", {"index": 0}),
        ("step", {"index": 1.5}),
        ("step", {"index": True}),
        ("step", {"index": 2**53 - 1, "tags": ["NOOP"]}),
        ("step", {"tags": ["x" * 33]}),
        ("step", {"loss": "NaN"}),
        ("step", {"loss": None}),
        ("step", {"learning_rate": "inf"}),
        ("step", {"activation": [0.5]}),
        ("step", {"batch": {"split": "test"}}),
        ("step", {"batch": {"indices": [-1], "split": "train"}}),
        ("step", {"batch": {"indices": [0.5], "split": "train"}}),
        ("step", {"pre": {"projection": "AAAA!"}}),
        ("step", {"pre": {"projection": ""}}),
        ("step", {"post": {"exact": "sha256:"}}),
        ("step", {"post": {"grid": DIGEST}}),
        ("step", {"kind": "leap"}),
        ("step", {"kind": None}),
    ],
)
def test_a_value_out_of_range_is_refused(kind: str, change: dict[str, Any]) -> None:
    with pytest.raises(MalformedError, match="line 7"):
        read_record(encode(RECORDS[kind] | change), "line 7")


@pytest.mark.parametrize(
    "line",
    [b"", b"{}", b"[]", b"null", b"3", b"\xff", b'{"kind":"step"', b'{"kind":NaN}', b'{"kind":"failed","index":1e999}'],
)
def test_what_is_no_record_is_refused(line: bytes) -> None:
    with pytest.raises(MalformedError, match="line 1"):
        read_record(line, "line 1")


def test_a_record_of_more_than_a_mebibyte_is_refused() -> None:
    step = RECORDS["step"] | {"batch": {"split": "train", "indices": [10**9] * 100_000}}
    with pytest.raises(MalformedError, match="line 1"):
        read_record(encode(step), "line 1")
    step = RECORDS["step"] | {"batch": {"split": "train", "indices": [10**9] * 90_000}}
    assert read_record(encode(step), "line 1")


def test_another_spelling_of_the_same_record_is_refused() -> None:
    line = encode(RECORDS["failed"])
    for spelling in (line + b" ", line.replace(b":3", b":3.0"), json.dumps(RECORDS["failed"]).encode()):
        with pytest.raises(MalformedError, match="line 1"):
            read_record(spelling, "line 1")


def test_a_claim_has_one_identity_that_covers_every_field() -> None:
    log = Log(root=DIGEST, size=3)
    claim = Claim(spec=DIGEST, environment=DIGEST, data=DIGEST, transcript=log, trace=log, final_state=DIGEST)
    assert Claim.from_bytes(claim.to_bytes(), "claim.json") == claim
    other = "sha256:" + "cd" * 32
    changes: list[dict[str, Any]] = [
        {"spec": other},
        {"environment": other},
        {"data": other},
        {"data": None},
        {"transcript": Log(root=DIGEST, size=4)},
        {"trace": Log(root=other, size=3)},
        {"final_state": other},
    ]
    identities = {claim.identity, *(claim.model_copy(update=change).identity for change in changes)}
    assert len(identities) == len(changes) + 1


@pytest.mark.parametrize(
    "change", [{"version": 2}, {"claim": "inference"}, {"trace": {"root": DIGEST, "size": -1}}, {"zzz": 1}]
)
def test_another_claim_is_refused(change: dict[str, Any]) -> None:
    log = {"root": DIGEST, "size": 3}
    fields = {"claim": "training", "version": 1, "spec": DIGEST, "environment": DIGEST, "final_state": DIGEST}
    whole = fields | {"transcript": log, "trace": log}
    assert Claim.from_bytes(encode(whole), "claim.json")
    with pytest.raises(MalformedError, match=r"claim\.json"):
        Claim.from_bytes(encode(whole | change), "claim.json")


def test_a_timeline_entry_is_no_negative_time() -> None:
    assert TraceEntry.from_json({"step": 1, "seconds": 0.5, "recording_seconds": 0.0}, "trace")
    for change in ({"seconds": -0.1}, {"recording_seconds": -1.0}, {"step": 0}):
        with pytest.raises(MalformedError, match="trace"):
            TraceEntry.from_json({"step": 1, "seconds": 0.5, "recording_seconds": 0.0} | change, "trace")


def test_a_sketch_reads_back_from_its_text() -> None:
    assert decode_sketch(encode_sketch(bytes(range(64)))) == bytes(range(64))
    for text in ("AAA", "AA=A", "====", "A A A"):
        with pytest.raises(MalformedError, match="base64"):
            decode_sketch(text)


def test_an_empty_summary_says_nothing() -> None:
    assert StateSummary().is_empty
    assert not StateSummary(grid=BucketSummary(digest=DIGEST)).is_empty  # type: ignore[arg-type]


def test_the_file_of_an_anchor_follows_from_its_index() -> None:
    assert anchor_file(1234) == "anchors/step_00001234.safetensors"
    assert anchor_file(10**9) == "anchors/step_1000000000.safetensors"


def is_read_strictly(line: bytes) -> bool:
    """Whether `line` is canonical JSON, holds a record, and is that record's own encoding: three passes."""
    try:
        decode(line, "line 1")
        record = TypeAdapter(Annotated[Record, Field(discriminator="kind")]).validate_json(line)
        return record.to_bytes() == line
    except (MalformedError, ValidationError):
        return False


@given(kind=st.sampled_from(sorted(RECORDS)), data=st.data())
@settings(deadline=None, max_examples=300)
def test_reading_in_one_pass_accepts_what_three_passes_accept(kind: str, data: st.DataObject) -> None:
    line = bytearray(encode(RECORDS[kind]))
    place = data.draw(st.integers(0, len(line) - 1))
    piece = data.draw(
        st.sampled_from([b"", b" ", b"0", b"1", b"e5", b".0", b"-", b"NaN", b"null", b',"index":3', b"\\u0061"])
    )
    line[place : place + data.draw(st.integers(0, 2))] = piece
    try:
        read_record(bytes(line), "line 1")
    except MalformedError:
        assert not is_read_strictly(bytes(line))
    else:
        assert is_read_strictly(bytes(line))
