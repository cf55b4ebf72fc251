"""Corpora: a directory of shards under one digest, read in the order of their names and hashed by threads."""

from __future__ import annotations

import hashlib
import os
import stat
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from io import RawIOBase
from pathlib import Path
from typing import Annotated, ClassVar, Final, Literal, Self

from pydantic import Field, model_validator

from tallystick.core.digests import HASH_BYTES, LEAF_PREFIX, Hash, tree_root
from tallystick.core.documents import Count, DigestText, Document, HashBytes
from tallystick.core.errors import MalformedError, ProofError, UnavailableError, UsageError
from tallystick.core.files import FILE_BYTES_MAX, read_document, write_atomically
from tallystick.formats.data.records import NameOrder, RecordTree, check_name, chunk_count, shown
from tallystick.formats.dataset import CHUNK_BYTES, RecordCommit

# Corpora: a directory of shards named by one digest, so that each shard and each chunk of it can be shown.
#
# Every shard has an RFC 6962 root over its own 1 MiB chunks. The shards, in the order of their names, are the records
# of a tree of their own: its root names the corpus. See `spec/corpus.md`.

COMMIT_BYTES_MAX = 256 << 20


class Shard(Document):
    """A file of a corpus: its name below the directory, how many bytes it has, and the root over their chunks.

    Its canonical bytes are the record by which the corpus commits to it.
    """

    bytes: Count
    name: str
    root: HashBytes

    @property
    def chunks(self) -> int:
        """The number of 1 MiB chunks."""
        return chunk_count(self.bytes)


class Corpus(Document):
    """The content of `commit.json`: the shards of a directory in the order of their names, and their digest."""

    document_bytes_max: ClassVar[int] = COMMIT_BYTES_MAX

    chunk_bytes: Annotated[int, Field(ge=CHUNK_BYTES, le=CHUNK_BYTES)] = CHUNK_BYTES
    corpus: DigestText
    shards: tuple[Shard, ...]
    version: Literal[1] = 1

    @classmethod
    def of(cls, shards: Iterable[Shard]) -> Self:
        """The corpus of these shards."""
        draft = cls.model_construct(shards=tuple(shards))
        return cls(corpus=draft.commit.identity, shards=draft.shards)

    @model_validator(mode="after")
    def _is_named_by_its_shards(self) -> Self:
        check_names(shard.name for shard in self.shards)
        if self.corpus != self.commit.identity:
            raise ValueError("corpus: not the digest of the shards")
        return self

    @property
    def size(self) -> int:
        """The bytes of all shards."""
        return sum(shard.bytes for shard in self.shards)

    @cached_property
    def tree(self) -> RecordTree:
        """The tree of which the shards are the records."""
        return RecordTree.of("shards", (shard.to_bytes() for shard in self.shards))

    @property
    def commit(self) -> RecordCommit:
        """The number of shards and the root over them; its digest is the name of the corpus."""
        return self.tree.commit


def check_names(names: Iterable[str]) -> None:
    """Raise `MalformedError` unless there are names, portable, unlike each other, and sorted by their bytes."""
    order, count = NameOrder(), 0
    for name in names:
        order.add(name)
        if name.endswith("/"):
            raise MalformedError(f"{shown(name)}: a directory, not a shard")
        count += 1
    if not count:
        raise MalformedError("a corpus without a shard")


# Reading the shards of a corpus: listed in the order of their names, and hashed by threads, each byte once.

PIECE_CHUNKS: Final = 32
"""What a thread hashes at a time, so that the threads also share one large shard."""

Hashed = Callable[[int], object]
"""Called with the number of bytes just hashed, or known already."""


def silent(_count: int) -> None:
    """Report nothing."""


@dataclass(frozen=True)
class ShardFile:
    """A file below the directory of a corpus; `identity` changes with every change of the file."""

    name: str
    path: Path
    size: int
    identity: str


@dataclass(frozen=True)
class HashedShard:
    """A shard with the leaf hashes of its chunks, 32 bytes each."""

    shard: Shard
    leaves: bytes


def split_hashes(leaves: bytes) -> list[Hash]:
    """Leaf hashes one by one."""
    return [Hash(leaves[at : at + HASH_BYTES]) for at in range(0, len(leaves), HASH_BYTES)]


def list_shards(directory: Path) -> list[ShardFile]:
    """Every file below `directory`, whatever its name, sorted by the UTF-8 bytes of the names.

    Raises:
        MalformedError: for a link, device, pipe or socket, a name that is not portable, or a directory without files.
        UnavailableError: for a directory that cannot be read.
    """
    files = sorted(_walk(directory, ""), key=lambda file: os.fsencode(file.name))
    if not files:
        raise MalformedError(f"{directory}: holds no file; put shards into it, or name another directory")
    check_names(file.name for file in files)
    return files


def find_shard(directory: Path, name: str) -> ShardFile:
    """One shard by its name; raises `UnavailableError` where it is not there, and `MalformedError` for a link."""
    check_name(name)
    if not os.path.lexists(directory / name):
        raise UnavailableError(f"{shown(name)}: not there (looked in {directory})")
    files = list(_visit(name, directory / name))
    if len(files) != 1 or files[0].name != name:
        raise UnavailableError(f"{shown(name)}: a directory, not a shard")
    return files[0]


def hash_shards(
    files: Iterable[ShardFile],
    known: Mapping[str, bytes] | None = None,
    hashed: Hashed = silent,
    threads: int | None = None,
) -> Iterator[HashedShard]:
    """The shards in their order, with the leaf hashes of their chunks; a few MiB are in memory at a time.

    Args:
        files: the shards as listed.
        known: leaf hashes by the identity of a file; such a file is not read.
        hashed: called with the number of bytes just hashed.
        threads: how many threads hash; as many as there are cores by default.

    Raises:
        UnavailableError: for a file that cannot be read, or that changes while it is read.
    """
    leaves = bytearray()
    for piece, hashes in _in_order(_cut(files, known or {}), threads or os.cpu_count() or 1):
        leaves += hashes
        hashed(piece.size)
        file = piece.file
        if piece.start + piece.size < file.size:
            continue
        if len(leaves) != HASH_BYTES * chunk_count(file.size):
            raise MalformedError(f"{shown(file.name)}: {len(leaves)} bytes of leaf hashes for {file.size} bytes")
        root = tree_root(split_hashes(bytes(leaves)))
        yield HashedShard(Shard(bytes=file.size, name=file.name, root=root), bytes(leaves))
        leaves.clear()


@dataclass(frozen=True)
class _Piece:
    """Consecutive bytes of a shard from `start`, and their leaf hashes where they are known already."""

    file: ShardFile
    start: int
    size: int
    known: bytes | None = None


def _cut(files: Iterable[ShardFile], known: Mapping[str, bytes]) -> Iterator[_Piece]:
    step = PIECE_CHUNKS * CHUNK_BYTES
    for file in files:
        if file.identity in known:
            yield _Piece(file, 0, file.size, known[file.identity])
            continue
        for start in range(0, max(file.size, 1), step):
            yield _Piece(file, start, min(step, file.size - start))


def _in_order(pieces: Iterable[_Piece], threads: int) -> Iterator[tuple[_Piece, bytes]]:
    """The pieces with their leaf hashes; few are waited for at a time, so that a corpus may be larger than memory."""
    waiting: deque[tuple[_Piece, Future[bytes]]] = deque()
    pool = ThreadPoolExecutor(threads)
    try:
        for piece in pieces:
            waiting.append((piece, pool.submit(_hash_piece, piece)))
            if len(waiting) > 2 * threads:
                first, future = waiting.popleft()
                yield first, future.result()
        for first, future in waiting:
            yield first, future.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _hash_piece(piece: _Piece) -> bytes:
    if piece.known is not None:
        return piece.known
    file, left, leaves = piece.file, piece.size, []
    chunk = memoryview(bytearray(min(CHUNK_BYTES, piece.size)))
    try:
        with open_shard(file) as opened:
            opened.seek(piece.start)
            while left:
                count = _fill(opened, chunk[:left])
                leaf = hashlib.sha256(LEAF_PREFIX)
                leaf.update(chunk[:count])
                leaves.append(leaf.digest())
                left -= count
    except OSError as error:
        raise UnavailableError(f"{shown(file.name)}: {error.strerror}") from None
    return b"".join(leaves)


@contextmanager
def open_shard(file: ShardFile) -> Iterator[RawIOBase]:
    """The shard opened for reading, unbuffered; a link put in its place after the listing is not followed.

    Raises `OSError` where it cannot be read, or changed between the listing and the end.
    """
    handle = os.open(file.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        with open(handle, "rb", buffering=0, closefd=False) as opened:
            yield opened
        if identify(os.fstat(handle)) != file.identity:
            raise OSError(0, "changed while it was read")
    finally:
        os.close(handle)


def identify(status: os.stat_result) -> str:
    """What tells a file from any other and from itself before a change: device, number, size, and two times in ns."""
    numbers = status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
    return "-".join(str(number) for number in numbers)


def _fill(opened: RawIOBase, chunk: memoryview) -> int:
    """Read until `chunk` is full; a file that ends before was cut short."""
    count = 0
    while count < len(chunk):
        more = opened.readinto(chunk[count:])
        if not more:
            raise OSError(0, "was cut short while it was read")
        count += more
    return count


def _walk(directory: Path, prefix: str) -> Iterator[ShardFile]:
    try:
        names = sorted(os.listdir(directory))
    except (OSError, ValueError) as error:
        raise UnavailableError(f"{directory}: {error}") from None
    for name in names:
        check_name(prefix + name)
        yield from _visit(prefix + name, directory / name)


def _visit(name: str, path: Path) -> Iterator[ShardFile]:
    try:
        status = path.lstat()
    except OSError as error:
        raise UnavailableError(f"{shown(name)}: {error.strerror}") from None
    if stat.S_ISDIR(status.st_mode):
        yield from _walk(path, f"{name}/")
    elif stat.S_ISREG(status.st_mode):
        yield ShardFile(name, path, status.st_size, identify(status))
    else:
        raise MalformedError(f"{shown(name)}: a link, device, pipe or socket; only files can be committed to")


# The files in which a corpus is committed to, and its check against them.
#
# commit.json           the shards: names, bytes, roots
# commit.json.leaves    the hashes of all chunks, 32 bytes each, so that a check can name the first chunk that differs
# commit.json.hashed    which file of this machine was hashed when, so that it is not read again


def commit_corpus(directory: Path, path: Path, *, recheck: bool = False, hashed: Hashed = silent) -> Corpus:
    """Hash every shard below `directory` and write the commit to `path`, outside of it.

    A shard is noted as soon as it is hashed; after an interruption, and after shards were added, only the others are
    read. `recheck` reads all of them.

    Raises:
        MalformedError: for a link, device, pipe or socket, or a name that is not portable.
        UnavailableError: for a file that cannot be read, or that changes while it is read.
        UsageError: when `path` lies inside of `directory`, or holds something else already.
    """
    if path.resolve().is_relative_to(directory.resolve()):
        raise UsageError(f"{path} lies inside of {directory}: a file cannot hold its own digest")
    shards = _hash_noting(list_shards(directory), notes_path(path), recheck, hashed)
    corpus = Corpus.of(hashed_shard.shard for hashed_shard in shards)
    if path.exists() and read_document(path, FILE_BYTES_MAX) != corpus.to_bytes():
        raise UsageError(f"{path} holds another commit: remove it or choose another file with --out")
    write_commit(path, corpus, shards)
    return corpus


def write_commit(path: Path, corpus: Corpus, shards: Iterable[HashedShard]) -> None:
    """Write a commit with the leaf hashes of its shards beside it."""
    write_atomically(leaves_path(path), b"".join(shard.leaves for shard in shards))
    write_atomically(path, corpus.to_bytes())


def check_corpus(directory: Path, claimed: Corpus, leaves: Mapping[str, bytes], hashed: Hashed = silent) -> None:
    """Read every shard below `directory` and compare it with the commit; nothing noted before is believed.

    Raises `ProofError` naming the first shard that differs, and its first chunk that does where `leaves` are known.
    """
    files = list_shards(directory)
    expected, present = {shard.name: shard.bytes for shard in claimed.shards}, {file.name: file.size for file in files}
    for name in sorted(expected.keys() | present.keys(), key=str.encode):  # names and sizes take no reading
        if name not in present:
            raise ProofError(f"{shown(name)} is missing")
        if name not in expected:
            raise ProofError(f"{shown(name)} is not part of the commit")
        if present[name] != expected[name]:
            raise ProofError(f"{shown(name)} differs: {present[name]} bytes, not {expected[name]}")
    for ours, theirs in zip(hash_shards(files, None, hashed), claimed.shards, strict=True):
        check_shard(ours, theirs, leaves.get(theirs.name, b""))


def check_shard(ours: HashedShard, claimed: Shard, leaves: bytes = b"") -> None:
    """Raise `ProofError` unless a shard is the committed one; with its `leaves` the error names the first chunk."""
    if ours.shard == claimed:
        return
    if ours.shard.bytes != claimed.bytes:
        raise ProofError(f"{shown(claimed.name)} differs: {ours.shard.bytes} bytes, not {claimed.bytes}")
    pairs = zip(split_hashes(ours.leaves), split_hashes(leaves), strict=False)
    chunk = next((index for index, (own, theirs) in enumerate(pairs) if own != theirs), None)
    if chunk is None:
        raise ProofError(f"{shown(claimed.name)} differs from the one committed to")
    start = chunk * CHUNK_BYTES
    raise ProofError(
        f"{shown(claimed.name)} differs from the one committed to, first in chunk {chunk} "
        f"(bytes {start} to {min(start + CHUNK_BYTES, claimed.bytes) - 1})"
    )


def read_corpus_commit(path: Path) -> Corpus:
    """Read a `commit.json`; raises `MalformedError` or `UnavailableError`."""
    return Corpus.from_bytes(read_document(path, COMMIT_BYTES_MAX), path.name)


def read_leaves(path: Path, corpus: Corpus) -> dict[str, bytes]:
    """The leaf hashes beside the commit at `path` by the names of shards; none where that file is not there.

    Raises `ProofError` naming the first shard of which they do not make the root.
    """
    if not leaves_path(path).exists():
        return {}
    data, at, leaves = read_document(leaves_path(path), FILE_BYTES_MAX), 0, {}
    for shard in corpus.shards:
        part = data[at : at + HASH_BYTES * shard.chunks]
        if tree_root(split_hashes(part)) != shard.root:
            raise ProofError(f"{leaves_path(path).name}: not the chunks of {shown(shard.name)}")
        leaves[shard.name] = part
        at += len(part)
    return leaves


def leaves_path(commit: Path) -> Path:
    """Where the hashes of the chunks stand."""
    return commit.with_name(f"{commit.name}.leaves")


def notes_path(commit: Path) -> Path:
    """Where it is noted which files were hashed."""
    return commit.with_name(f"{commit.name}.hashed")


def read_notes(path: Path) -> dict[str, bytes]:
    """Leaf hashes by the identity of the file; lines that a crash left damaged are left out."""
    if not path.exists():
        return {}
    notes: dict[str, bytes] = {}
    for line in read_document(path, FILE_BYTES_MAX).split(b"\n"):
        content, _, check = line.rpartition(b" ")
        if content and _check_of(content) == check:
            identity, leaves = content.decode().split(" ")
            notes[identity] = bytes.fromhex(leaves)
    return notes


def _check_of(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest()[:16].encode()


def _hash_noting(files: list[ShardFile], notes: Path, recheck: bool, hashed: Hashed) -> list[HashedShard]:
    known, shards = read_notes(notes), []
    try:
        notes.parent.mkdir(parents=True, exist_ok=True)
        with notes.open("ab") as opened:
            for file, shard in zip(files, hash_shards(files, {} if recheck else known, hashed), strict=True):
                shards.append(shard)
                if known.get(file.identity) != shard.leaves:
                    note = f"{file.identity} {shard.leaves.hex()}".encode()
                    opened.write(b"\n" + note + b" " + _check_of(note))
                    opened.flush()
    except OSError as error:
        raise UnavailableError(f"{notes}: could not be written: {error.strerror}") from None
    return shards
