"""What the records of shards hold: fields of text, JSONL and Parquet, documents, and conversations."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator
from io import BufferedReader, RawIOBase
from pathlib import Path
from typing import Any, Final

from tallystick.core.canonical_json import loose_json, unique_members
from tallystick.core.errors import MalformedError, UnavailableError
from tallystick.core.lazy import not_installed
from tallystick.formats.data.corpus import ShardFile, list_shards, open_shard
from tallystick.formats.data.records import decode_text, shown

# What the records of a shard hold in one field, read one after the other: text, JSONL, compressed JSONL, Parquet.

DOCUMENT_BYTES_MAX: Final = 64 << 20
EXPANSION_MAX: Final = 1024
"""How many times larger than its file a decompressed shard may be: more is no text, and would fill a reader's time."""
PARQUET_ROWS: Final = 1024


Value = tuple[Any, str]
"""What a record holds in the field, `None` where it holds nothing, and the words for where it stands."""
Reader = Callable[[RawIOBase, ShardFile, str], Iterator[Value]]


def read_values(file: ShardFile, field: str) -> Iterator[Value]:
    """What the records of one shard hold in `field`, in their order, and where each stands.

    Args:
        file: the shard as listed.
        field: the member of a JSON object, or the column of a Parquet file; a text is one record, which is its value.

    Raises:
        MalformedError: naming the shard and the line of a damaged record; or for a name of no known kind.
        UnavailableError: the shard cannot be read, or a library that reads it is missing.
    """
    read = reader_of(file.name)
    try:
        with open_shard(file) as opened:
            yield from read(opened, file, field)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise MalformedError(f"{shown(file.name)}: no whole gzip file: {error}") from None
    except OSError as error:
        raise UnavailableError(f"{shown(file.name)}: {error.strerror or error}") from None


def reader_of(name: str) -> Reader:
    """What reads a shard of this name; raises `MalformedError` for a name of no known kind."""
    for suffix, read in READERS.items():
        if name.endswith(suffix):
            return read
    raise MalformedError(f"{shown(name)}: a shard with documents ends with one of {', '.join(READERS)}")


def holds_surrogate(text: str) -> bool:
    """Whether a string holds a lone surrogate, which is no Unicode character."""
    return not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text)


def _read_whole(opened: RawIOBase, file: ShardFile, _field: str) -> Iterator[Value]:
    if file.size > DOCUMENT_BYTES_MAX:
        raise MalformedError(
            f"{shown(file.name)}: one document of {file.size} bytes, more than {DOCUMENT_BYTES_MAX}: "
            "divide it into several files, or into the lines of a .jsonl"
        )
    content = BufferedReader(opened).read()
    try:
        yield decode_text(content), shown(file.name)
    except MalformedError as error:
        raise MalformedError(f"{shown(file.name)}: {error}") from None


def _read_gzip(opened: RawIOBase, file: ShardFile, field: str) -> Iterator[Value]:
    with gzip.open(opened, "rb") as lines:
        yield from _values_of(lines, file, field)


def _read_zstd(opened: RawIOBase, file: ShardFile, field: str) -> Iterator[Value]:
    try:
        import zstandard
    except ModuleNotFoundError:
        raise not_installed("zstandard") from None
    try:
        with zstandard.ZstdDecompressor().stream_reader(BufferedReader(opened), read_across_frames=True) as content:
            yield from _values_of(BufferedReader(content), file, field)
    except zstandard.ZstdError as error:
        raise MalformedError(f"{shown(file.name)}: no zstd file: {error}") from None


def _read_parquet(opened: RawIOBase, file: ShardFile, field: str) -> Iterator[Value]:
    try:
        from pyarrow import ArrowException, parquet
    except ModuleNotFoundError:
        raise not_installed("pyarrow") from None
    row = 0
    try:
        for batch in parquet.ParquetFile(opened).iter_batches(PARQUET_ROWS, columns=[field]):
            if batch.num_columns != 1:
                raise MalformedError(f"{shown(file.name)}: no column {field!r}")
            for value in batch.column(0).to_pylist():
                row += 1
                yield value, f"{shown(file.name)} row {row}"
    except ArrowException as error:
        raise MalformedError(f"{shown(file.name)}: no Parquet file: {str(error).splitlines()[0]}") from None


def _values_of(lines: BufferedReader | gzip.GzipFile, file: ShardFile, field: str) -> Iterator[Value]:
    left, number = EXPANSION_MAX * file.size, 0
    while line := lines.readline(DOCUMENT_BYTES_MAX + 1):
        number, left = number + 1, left - len(line)
        where = f"{shown(file.name)} line {number}"
        if len(line) > DOCUMENT_BYTES_MAX or left < 0:
            raise MalformedError(f"{where}: more than {DOCUMENT_BYTES_MAX} bytes, or {EXPANSION_MAX} times its file")
        if not line.isspace():
            try:  # no number is interpreted
                record = loose_json(line.decode(), object_pairs_hook=unique_members, parse_int=str, parse_float=str)
            except ValueError as error:
                raise MalformedError(f"{where}: no valid JSON: {error}") from None
            yield record.get(field) if isinstance(record, dict) else None, where


READERS: Final[dict[str, Reader]] = {
    ".txt": _read_whole,
    ".jsonl": lambda opened, file, field: _values_of(BufferedReader(opened), file, field),
    ".jsonl.gz": _read_gzip,
    ".jsonl.zst": _read_zstd,
    ".parquet": _read_parquet,
}


# The documents of a shard, read one after the other: the strings that its records hold.


def read_texts(file: ShardFile, field: str) -> Iterator[str]:
    """The documents of one shard in their order; raises what `read_values` raises, also where a record holds none."""
    for value, where in read_values(file, field):
        if not isinstance(value, str) or holds_surrogate(value):
            raise MalformedError(f"{where}: no string of Unicode characters in the field {field!r}")
        yield value


# The conversations of a corpus, read one after the other from its shards.

Conversation = list[dict[str, str]]
MEMBERS = ("role", "content")
KINDS = tuple(suffix for suffix in READERS if suffix != ".txt")


def read_conversations(directory: Path, field: str) -> Iterator[Conversation]:
    """The conversations below a directory, in the order of its shards and of their records.

    Raises:
        MalformedError: naming the record whose `field` is no list of turns with `role` and `content` as strings.
        UnavailableError: a shard cannot be read, or a library that reads it is missing.
    """
    files = list_shards(directory)
    for file in files:
        if not file.name.endswith(KINDS):
            raise MalformedError(f"{shown(file.name)}: a shard with conversations ends with one of {', '.join(KINDS)}")
    for file in files:
        for turns, where in read_values(file, field):
            if not isinstance(turns, list) or not turns or not all(map(_is_turn, turns)):
                members = "each with `role` and `content` as strings"
                raise MalformedError(f"{where}: {field!r} is no list of turns, {members}")
            yield [{name: turn[name] for name in MEMBERS} for turn in turns]


def _is_turn(value: object) -> bool:
    parts = [value.get(name) for name in MEMBERS] if isinstance(value, dict) else [None]
    return all(isinstance(part, str) and not holds_surrogate(part) for part in parts)
