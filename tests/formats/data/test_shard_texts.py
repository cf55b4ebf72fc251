from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest

from tallystick.core.errors import MalformedError, UnavailableError
from tallystick.formats.data import texts as shard_values
from tallystick.formats.data.corpus import find_shard
from tallystick.formats.data.texts import read_texts, reader_of

LINES = (
    b'{"text":"one notch","id":123456789012345678901}\r\n\n{"n":NaN,"text":"zw\\u00f6lf \xe2\x80\xa8 \\ud83d\\ude00"}'
)
TEXTS = ["one notch", "zw\u00f6lf \u2028 \U0001f600"]


def read(folder: Path, name: str, content: bytes, field: str = "text") -> list[str]:
    (folder / name).write_bytes(content)
    return list(read_texts(find_shard(folder, name), field))


def parquet(texts: list[str | None]) -> bytes:
    arrow, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    out = arrow.BufferOutputStream()
    pq.write_table(arrow.table({"text": arrow.array(texts, arrow.string()), "n": list(range(len(texts)))}), out)
    return out.getvalue().to_pybytes()


def zstd(content: bytes) -> bytes:
    return pytest.importorskip("zstandard").ZstdCompressor().compress(content)


@pytest.mark.parametrize(("name", "pack"), [("a.jsonl", bytes), ("a.jsonl.gz", gzip.compress), ("a.jsonl.zst", zstd)])
def test_a_document_is_a_line_of_jsonl(tmp_path: Path, name: str, pack: Callable[[bytes], bytes]) -> None:
    assert read(tmp_path, name, pack(LINES)) == TEXTS
    with pytest.raises(MalformedError, match=f"'{name}' line 2: no string"):
        read(tmp_path, name, pack(b'{"text":"one"}\n{"other":"two"}'))


def test_a_document_is_a_row_of_parquet(tmp_path: Path) -> None:
    assert read(tmp_path, "a.parquet", parquet(TEXTS)) == TEXTS
    with pytest.raises(MalformedError, match=r"row 2: no string of Unicode characters in the field 'text'"):
        read(tmp_path, "a.parquet", parquet(["one", None]))
    with pytest.raises(MalformedError, match=r"'a\.parquet': no column 'body'"):
        read(tmp_path, "a.parquet", parquet(TEXTS), "body")
    with pytest.raises(MalformedError, match=r"'a\.parquet': no Parquet file"):
        read(tmp_path, "a.parquet", b"PAR1")


def test_a_document_is_a_whole_text(tmp_path: Path) -> None:
    assert read(tmp_path, "a.txt", b"one\r\ntwo\n") == ["one\r\ntwo\n"]
    for content in (b"\xef\xbb\xbfone", b"\xff"):
        with pytest.raises(MalformedError, match=r"'a\.txt': source"):
            read(tmp_path, "a.txt", content)


def test_the_field_of_the_text_can_be_another(tmp_path: Path) -> None:
    assert read(tmp_path, "a.jsonl", b'{"text":1,"body":"two"}', "body") == ["two"]


@pytest.mark.parametrize(
    "line",
    [
        b"[1]",
        b"text",
        b'{"text":"one"',
        b'{"text":"one","text":"two"}',
        b'{"text":"\\ud800"}',
        b'{"text":"\xff"}',
        b'\xef\xbb\xbf{"text":"one"}',
        b'{"text":"one","deep":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
)
def test_a_line_that_holds_no_document_is_refused(tmp_path: Path, line: bytes) -> None:
    with pytest.raises(MalformedError, match=r"'a\.jsonl' line 2: "):
        read(tmp_path, "a.jsonl", b'{"text":"one"}\n' + line)


def test_damaged_and_missing_shards_are_refused(tmp_path: Path) -> None:
    packed = gzip.compress(LINES)
    for content in (packed[:-9], packed[:20] + b"\0" + packed[21:], b"no gzip"):
        with pytest.raises(MalformedError, match=r"'a\.jsonl\.gz': no whole gzip file"):
            read(tmp_path, "a.jsonl.gz", content)
    gone = find_shard(tmp_path, "a.jsonl.gz")
    gone.path.unlink()
    with pytest.raises(UnavailableError, match="No such file"):
        list(read_texts(gone, "text"))


def test_what_would_fill_memory_or_time_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_values, "EXPANSION_MAX", 4)
    with pytest.raises(MalformedError, match="4 times its file"):
        read(tmp_path, "a.jsonl.gz", gzip.compress(b'{"text":"one"}\n' * 1000))
    monkeypatch.setattr(shard_values, "DOCUMENT_BYTES_MAX", 20)
    assert read(tmp_path, "a.jsonl", b'{"text":"one"}\n') == ["one"]
    for name in ("a.jsonl", "a.txt"):
        with pytest.raises(MalformedError, match="more than 20"):
            read(tmp_path, name, b'{"text":"one and two"}\n')


def test_a_shard_of_no_known_kind_is_refused_by_its_name() -> None:
    reader_of("d/a.jsonl")
    with pytest.raises(MalformedError, match=r"'d/a\.csv': a shard with documents ends with one of \.txt, \.jsonl"):
        reader_of("d/a.csv")
