"""Sources: text and JSONL after newline normalisation, split into the records that are committed to."""

from __future__ import annotations

from typing import Final, Literal

from tallystick.commitments.encoding import parse
from tallystick.errors import MalformedError

TextKind = Literal["text", "jsonl"]
TEXT_RECORD_BYTES: Final = 64 << 10
BYTE_ORDER_MARK: Final = "\ufeff".encode()
TEXT_FIELD: Final = "text"


def normalize_newlines(kind: TextKind, data: bytes) -> bytes:
    r"""The bytes with CRLF and CR written as LF; the last line of JSONL always ends with one.

    >>> normalize_newlines("text", b"a\r\nb\rc")
    b'a\nb\nc'
    """
    lines = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    unfinished = kind == "jsonl" and lines and not lines.endswith(b"\n")
    return lines + b"\n" if unfinished else lines


def split_records(kind: TextKind, data: bytes) -> list[bytes]:
    """The records of normalised `data`: 64 KiB each for text, one line without its LF for JSONL.

    Raises:
        MalformedError: when `data` is empty, is not UTF-8 text, or has a line that is no JSON object.
    """
    if not data:
        raise MalformedError("source: empty")
    if kind == "jsonl":
        return _split_lines(data)
    decode_text(data)
    return [data[start : start + TEXT_RECORD_BYTES] for start in range(0, len(data), TEXT_RECORD_BYTES)]


def read_corpus(kind: TextKind, data: bytes) -> str:
    """The text that is tokenized: all of a text; of JSONL each record's `text`, followed by a LF."""
    if kind == "text":
        return decode_text(data)
    return "".join(_text_of(line, number) for number, line in enumerate(_split_lines(data), 1))


def decode_text(data: bytes) -> str:
    """UTF-8 without a byte order mark; raises `MalformedError` naming the first bad byte."""
    if data.startswith(BYTE_ORDER_MARK):
        raise MalformedError("source: starts with a byte order mark")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise MalformedError(f"source: byte {error.start} is not UTF-8") from None


def _split_lines(data: bytes) -> list[bytes]:
    if not data.endswith(b"\n"):
        raise MalformedError("source: the last line does not end with a line feed")
    lines = data[:-1].split(b"\n")
    for number, line in enumerate(lines, 1):
        if not line:
            raise MalformedError(f"source line {number}: empty")
        if not isinstance(parse(line, f"source line {number}"), dict):
            raise MalformedError(f"source line {number}: not a JSON object")
    return lines


def _text_of(line: bytes, number: int) -> str:
    record = parse(line, f"source line {number}")
    text = record.get(TEXT_FIELD) if isinstance(record, dict) else None
    if not isinstance(text, str):
        raise MalformedError(f"source line {number}: no string in the field {TEXT_FIELD!r}")
    return f"{text}\n"
