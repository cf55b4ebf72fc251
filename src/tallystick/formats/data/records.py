"""Sources of a data set: portable names, and chunks and records under one root."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from tallystick.core.canonical_json import Json, encode, parse
from tallystick.core.digests import Hash, leaf_hash, tree_root
from tallystick.core.errors import MalformedError
from tallystick.core.tensors import Tensor
from tallystick.formats.dataset import CHUNK_BYTES, RecordCommit, RecordKind

# Portable names: the same file on every operating system, or a refusal.

CONTROL = re.compile(r"[\x00-\x1f\x7f]")
DRIVE = re.compile(r"[A-Za-z]:")
NAME_BYTES_MAX = 256
SHOWN_MAX = 80


def check_name(name: str) -> None:
    """Refuse a name that some operating system would read as another path.

    Refused are absolute names, `.`, `..` and empty components, backslashes, drive letters, control characters
    and text that is not UTF-8. The name of an empty directory ends with one slash.

    Raises:
        MalformedError: naming the file and the reason.
    """
    for reason, refused in (
        ("is empty", not name.removesuffix("/")),
        ("is absolute", name.startswith("/") or DRIVE.match(name) is not None),
        ("holds a backslash", "\\" in name),
        ("holds a control character", CONTROL.search(name) is not None),
        ("is not UTF-8", any("\ud800" <= letter <= "\udfff" for letter in name)),
        (f"is longer than {NAME_BYTES_MAX} bytes", len(name.encode(errors="replace")) > NAME_BYTES_MAX),
        ("holds an empty, '.' or '..' component", not {"", ".", ".."}.isdisjoint(name.removesuffix("/").split("/"))),
    ):
        if refused:
            raise MalformedError(f"the name {shown(name)} {reason}")


@dataclass
class NameOrder:
    """The names of one directory tree, in order; refuses two that some file system would take for one.

    >>> names = NameOrder()
    >>> names.add("A/c.txt")
    >>> names.add("a/b.txt")
    Traceback (most recent call last):
    tallystick.core.errors.MalformedError: the names 'A' and 'a' differ only in case or form
    """

    _last: bytes = b""
    _kinds: dict[str, str] = field(default_factory=dict)
    _spellings: dict[str, str] = field(default_factory=dict)

    def add(self, name: str) -> None:
        """Check `name` by itself and against the names added before, which sort before it."""
        check_name(name)
        path = name.removesuffix("/")
        for end, letter in enumerate(path):
            if letter == "/":
                self._claim(path[:end], "directory")
        if path in self._kinds:
            raise MalformedError(f"the name {shown(path)} occurs twice")
        self._claim(path, "file" if path == name else "empty directory")
        if name.encode() < self._last:
            raise MalformedError(f"the name {shown(name)} is not in sorted order")
        self._last = name.encode()

    def _claim(self, path: str, kind: str) -> None:
        folded = unicodedata.normalize("NFC", unicodedata.normalize("NFC", path).casefold())
        first = self._spellings.setdefault(folded, path)
        if first != path:
            raise MalformedError(f"the names {shown(first)} and {shown(path)} differ only in case or form")
        if self._kinds.setdefault(path, kind) != kind:
            raise MalformedError(f"the name {shown(path)} is a {self._kinds[path]} and a {kind}")


def shown(name: str) -> str:
    """A name as it is printed in a message: quoted, escaped and of limited length."""
    return ascii(name) if len(name) <= SHOWN_MAX else f"{name[:SHOWN_MAX]!a}…"


# Ordered chunks: bytes of any length under one RFC 6962 root, so that each can be shown at its place.


def chunk_count(size: int) -> int:
    """How many chunks hold `size` bytes; the last one may be shorter, none is empty."""
    return -(-size // CHUNK_BYTES)


@dataclass
class ChunkHasher:
    """Hashes a stream of bytes in chunks while keeping at most one chunk in memory."""

    _pending: bytearray = field(default_factory=bytearray)
    _leaves: list[Hash] = field(default_factory=list)

    def update(self, data: bytes) -> None:
        """Append `data` to the stream."""
        self._pending += data
        while len(self._pending) >= CHUNK_BYTES:
            self._leaves.append(leaf_hash(bytes(self._pending[:CHUNK_BYTES])))
            del self._pending[:CHUNK_BYTES]

    def root(self) -> Hash:
        """The RFC 6962 root over the chunks of everything that was appended."""
        return tree_root([*self._leaves, leaf_hash(bytes(self._pending))] if self._pending else self._leaves)


# Ordered records under one root: any record can be shown at its position, and nowhere else.


@dataclass(frozen=True)
class RecordTree:
    """The leaf hashes of ordered records, from which every one of them can be proven."""

    kind: RecordKind
    leaves: tuple[Hash, ...]

    @classmethod
    def of(cls, kind: RecordKind, records: Iterable[bytes]) -> RecordTree:
        """The tree over `records` in their order."""
        return cls(kind, tuple(leaf_hash(record) for record in records))

    @cached_property
    def commit(self) -> RecordCommit:
        """What the records are committed to by."""
        return RecordCommit(kind=self.kind, count=len(self.leaves), root=tree_root(self.leaves))


def encode_example(arrays: dict[str, NDArray[np.generic]]) -> bytes:
    """One example as a record: canonical JSON of names, dtypes and shapes, a LF, then the arrays' bytes."""
    tensors = {name: Tensor.of(arrays[name]) for name in sorted(arrays)}
    header: Json = [[name, tensor.dtype, list(tensor.shape)] for name, tensor in tensors.items()]
    return b"".join([encode(header), b"\n", *(bytes(tensor.data) for tensor in tensors.values())])


# Sources: text and JSONL after newline normalisation, split into the records that are committed to.

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
    texts = []
    for number, line in enumerate(_split_lines(data), 1):
        record = parse(line, f"source line {number}")
        text = record.get(TEXT_FIELD) if isinstance(record, dict) else None
        if not isinstance(text, str):
            raise MalformedError(f"source line {number}: no string in the field {TEXT_FIELD!r}")
        texts.append(f"{text}\n")
    return "".join(texts)


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
