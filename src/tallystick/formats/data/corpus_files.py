"""The files in which a corpus is committed to, and its check against them.

commit.json           the shards: names, bytes, roots
commit.json.leaves    the hashes of all chunks, 32 bytes each, so that a check can name the first chunk that differs
commit.json.hashed    which file of this machine was hashed when, so that it is not read again
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from tallystick.core.digests import tree_root
from tallystick.core.errors import ProofError, UnavailableError, UsageError
from tallystick.core.files import FILE_BYTES_MAX, read_document, write_atomically
from tallystick.formats.data.corpus import (
    COMMIT_BYTES_MAX,
    HASH_BYTES,
    Corpus,
    Hashed,
    HashedShard,
    Shard,
    ShardFile,
    check_shards_named,
    hash_shards,
    list_shards,
    silent,
    split_hashes,
)
from tallystick.formats.data.records import shown
from tallystick.formats.dataset import CHUNK_BYTES


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
    check_shards_named(claimed, files)
    for ours, expected in zip(hash_shards(files, None, hashed), claimed.shards, strict=True):
        check_shard(ours, expected, leaves.get(expected.name, b""))


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
