from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from tallystick.core.digests import LeafHashes, check_inclusion, leaf_hash, prove_inclusion
from tallystick.core.errors import MalformedError, UnavailableError
from tallystick.formats.data.tokenizer import (
    chunk_tokens,
    commit_tokens,
    encode_tokens,
    read_tokens,
    token_dtype,
    write_tokens,
)
from tallystick.formats.dataset import CHUNK_BYTES, TokensCommit

VECTORS = Path(__file__).parents[3] / "vectors" / "tokens"
Factory = pytest.TempPathFactory


@given(st.lists(st.integers(0, 299), max_size=40), st.sampled_from([300, 65_536, 65_537]))
@settings(deadline=None, max_examples=40)
def test_tokens_round_trip(tmp_path_factory: pytest.TempPathFactory, values: list[int], vocabulary: int) -> None:
    path = tmp_path_factory.mktemp("tokens") / "tokens.bin"
    write_tokens(path, np.array(values, np.int64), vocabulary)
    tokens, read_vocabulary = read_tokens(path)
    assert (tokens.tolist(), read_vocabulary) == (values, vocabulary)
    commit = commit_tokens(tokens, vocabulary)
    assert TokensCommit.from_json(commit.to_json(), "tokens") == commit


def test_read_tokens_cannot_be_written_to(tmp_path: Path) -> None:
    write_tokens(tmp_path / "tokens.bin", np.arange(4), 4)
    tokens, _ = read_tokens(tmp_path / "tokens.bin")
    with pytest.raises(ValueError, match="read-only"):
        tokens[0] = 1


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (0, b"T", "not a file of tokens"),
        (8, bytes(8), "vocabulary"),
        (15, b"\1", "vocabulary"),
        (16, b"\3", "bytes"),
        (24, b"\5\0", "token 0 lies outside the vocabulary of 5"),
    ],
)
def test_a_changed_header_is_refused(tmp_path: Path, place: int, value: bytes, message: str) -> None:
    path, data = tmp_path / "tokens.bin", encode_tokens(np.arange(4), 5)
    path.write_bytes(data)
    assert read_tokens(path)[0].tolist() == [0, 1, 2, 3]
    path.write_bytes(data[:place] + value + data[place + len(value) :])
    with pytest.raises(MalformedError, match=message):
        read_tokens(path)


@given(st.binary(max_size=40) | st.binary(max_size=24).map(lambda tail: b"tallytk1" + tail))
@settings(deadline=None)
def test_no_bytes_make_the_reader_fail_otherwise(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("tokens") / "tokens.bin"
    path.write_bytes(data)
    try:
        read_tokens(path)
    except MalformedError:
        return


def test_truncated_and_extended_files_are_refused(tmp_path: Path) -> None:
    path, data = tmp_path / "tokens.bin", encode_tokens(np.arange(4), 5)
    for changed in (data[:-1], data[:-2], data[:24], data[:10], b"", data + b"\0", data + b"\0\0"):
        path.write_bytes(changed)
        with pytest.raises(MalformedError):
            read_tokens(path)


def test_a_missing_file_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError):
        read_tokens(tmp_path / "tokens.bin")
    with pytest.raises(UnavailableError):
        read_tokens(tmp_path)


def test_a_chunk_of_tokens_is_shown_at_its_place() -> None:
    tokens = np.arange(CHUNK_BYTES, dtype="<u2")
    chunks = chunk_tokens(tokens)
    assert len(chunks) == 2
    leaf = leaf_hash(tokens[CHUNK_BYTES // 2 :].tobytes())
    check_inclusion(prove_inclusion(LeafHashes(chunks), 1, 2), leaf, 1, 2, commit_tokens(tokens, 65_536).root)


def test_count_and_vocabulary_are_part_of_the_digest() -> None:
    tokens = np.zeros(3, "<u2")
    digests = {commit_tokens(tokens, 256).identity, commit_tokens(tokens, 257).identity}
    digests.add(commit_tokens(np.zeros(4, "<u2"), 256).identity)
    assert len(digests) == 3


@pytest.mark.parametrize(
    "change", [{"count": -1}, {"vocabulary": 0}, {"chunk_bytes": 1}, {"root": None}, {"count": 1.5}, {"x": 1}]
)
def test_malformed_commitments_are_refused(change: dict[str, object]) -> None:
    good = commit_tokens(np.zeros(3, "<u2"), 256).to_json()
    assert isinstance(good, dict)
    with pytest.raises(MalformedError, match="tokens"):
        TokensCommit.from_json({**good, **change}, "tokens")  # type: ignore[dict-item]


def test_published_vectors_hold() -> None:
    for vector in json.loads((VECTORS / "tokens.json").read_bytes())["tokens"]:
        tokens = np.array(vector["tokens"], token_dtype(vector["vocabulary"]))
        assert encode_tokens(tokens, vector["vocabulary"]).hex() == vector["file"]
        commit = commit_tokens(tokens, vector["vocabulary"])
        assert (commit.root.hex(), commit.identity) == (vector["root"], vector["digest"])
