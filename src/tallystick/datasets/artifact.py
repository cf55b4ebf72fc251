"""Artifacts: a directory named by one digest, as the canonical tar that is hashed and never written.

The digest covers the number of bytes and the root over ordered 1 MiB chunks, so that any part of the archive
can be shown at its place. See `spec/artifact.md`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tallystick.commitments.digests import Digest, digest
from tallystick.commitments.encoding import Json, decode, encode
from tallystick.commitments.tree import Hash
from tallystick.datasets import ustar
from tallystick.datasets.chunks import chunk_count
from tallystick.datasets.names import NameOrder, shown
from tallystick.documents.fields import constant, fields, hash_field, integer, items, text
from tallystick.errors import MalformedError, ProofError
from tallystick.transcripts.dataset import CHUNK_BYTES

COMMIT_BYTES_MAX = 256 << 20


@dataclass(frozen=True)
class ArtifactMember:
    """A file of an artifact; one whose name ends with a slash is an empty directory."""

    name: str
    size: int
    sha256: str

    def to_json(self) -> Json:
        """The object as JSON values."""
        return {"bytes": self.size, "name": self.name, "sha256": self.sha256}

    @classmethod
    def from_json(cls, value: Json, what: str) -> ArtifactMember:
        """Read one entry of a commit; raises `MalformedError`."""
        entry = fields(value, ("bytes", "name", "sha256"), what)
        sha256 = hash_field(entry["sha256"], f"{what}.sha256").hex()
        size = integer(entry["bytes"], f"{what}.bytes", most=ustar.MEMBER_BYTES_MAX)
        return cls(text(entry["name"], f"{what}.name"), size, sha256)


@dataclass(frozen=True)
class ArtifactCommit:
    """What a directory is committed to by: the root over the chunks of its tar, and its members."""

    root: Hash
    size: int
    members: tuple[ArtifactMember, ...]

    @property
    def chunks(self) -> int:
        """The number of 1 MiB chunks of the tar."""
        return chunk_count(self.size)

    @property
    def files(self) -> int:
        """The number of files, empty directories left out."""
        return sum(not member.name.endswith("/") for member in self.members)

    @property
    def digest(self) -> Digest:
        """The one name of the directory's content."""
        summary: Json = {
            "bytes": self.size,
            "chunk_bytes": CHUNK_BYTES,
            "members": len(self.members),
            "root": self.root.hex(),
        }
        return digest("artifact", encode(summary))

    def to_json(self) -> Json:
        """The content of `commit.json`."""
        return {
            "artifact": self.digest,
            "bytes": self.size,
            "members": [member.to_json() for member in self.members],
            "root": self.root.hex(),
            "version": 1,
        }

    def to_bytes(self) -> bytes:
        """Canonical JSON (RFC 8785)."""
        return encode(self.to_json())

    @classmethod
    def from_json(cls, value: Json) -> ArtifactCommit:
        """Read a commit whose parts agree with each other; raises `MalformedError`."""
        parts = fields(value, ("artifact", "bytes", "members", "root", "version"), "commit")
        constant(parts["version"], 1, "commit.version")
        entries = enumerate(items(parts["members"], "commit.members"))
        members = tuple(ArtifactMember.from_json(entry, f"commit.members[{index}]") for index, entry in entries)
        check_order(member.name for member in members)
        size = integer(parts["bytes"], "commit.bytes")
        if size != _tar_bytes(members):
            raise MalformedError(f"commit.bytes: {size}, but the members make {_tar_bytes(members)}")
        commit = cls(hash_field(parts["root"], "commit.root"), size, members)
        if parts["artifact"] != commit.digest:
            raise MalformedError("commit.artifact: not the digest of the other fields")
        return commit

    @classmethod
    def from_bytes(cls, data: bytes) -> ArtifactCommit:
        """Read `commit.json`; raises `MalformedError`."""
        return cls.from_json(decode(data, "commit", bytes_max=COMMIT_BYTES_MAX))


def check_commit(claimed: ArtifactCommit, found: ArtifactCommit) -> None:
    """Raise `ProofError` naming the first file, in the order of names, in which `found` differs."""
    expected = {member.name: member for member in claimed.members}
    present = {member.name: member for member in found.members}
    for name in sorted(expected.keys() | present.keys(), key=str.encode):
        if name not in present:
            raise ProofError(f"{shown(name)} is missing")
        if name not in expected:
            raise ProofError(f"{shown(name)} is not part of the commit")
        if present[name] != expected[name]:
            raise ProofError(f"{shown(name)} differs: {_difference(expected[name], present[name])}")
    if claimed != found:
        raise ProofError(f"the members agree, but the root is {found.root.hex()}, not {claimed.root.hex()}")


def check_order(names: Iterable[str]) -> None:
    """Raise `MalformedError` unless the names are portable, unlike each other, and sorted by their bytes."""
    order = NameOrder()
    for name in names:
        order.add(name)


def _tar_bytes(members: Iterable[ArtifactMember]) -> int:
    size = sum(ustar.BLOCK_BYTES + member.size + len(ustar.padding(member.size)) for member in members)
    return size + len(ustar.ending(size))


def _difference(claimed: ArtifactMember, found: ArtifactMember) -> str:
    if claimed.size != found.size:
        return f"{found.size} bytes, not {claimed.size}"
    return f"SHA-256 {found.sha256[:16]}…, not {claimed.sha256[:16]}…"
