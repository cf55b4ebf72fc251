"""Ordered records under one root: any record can be shown at its position, and nowhere else."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from tallystick.commitments.digests import Digest, digest
from tallystick.commitments.encoding import Json, encode
from tallystick.commitments.tree import Hash, leaf_hash, tree_root
from tallystick.documents.fields import fields, hash_field, integer, text
from tallystick.errors import MalformedError
from tallystick.tensors.tensor import Tensor

RecordKind = Literal["text", "jsonl", "arrays"]
RECORD_KINDS: Final = get_args(RecordKind)


@dataclass(frozen=True)
class RecordCommit:
    """How many records of which kind stand under which RFC 6962 root."""

    kind: str
    count: int
    root: Hash

    @property
    def digest(self) -> Digest:
        """The one name of the ordered records."""
        return digest("dataset", encode(self.to_json()))

    def to_json(self) -> Json:
        """The object as JSON values."""
        return {"count": self.count, "kind": self.kind, "root": self.root.hex()}

    @classmethod
    def from_json(cls, value: Json, what: str = "records") -> RecordCommit:
        """Read a commitment; raises `MalformedError`."""
        parts = fields(value, ("count", "kind", "root"), what)
        kind = text(parts["kind"], f"{what}.kind")
        if kind not in RECORD_KINDS:
            raise MalformedError(f"{what}.kind: {kind[:64]!r} is none of {', '.join(RECORD_KINDS)}")
        return cls(kind, integer(parts["count"], f"{what}.count", least=1), hash_field(parts["root"], f"{what}.root"))


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
        return RecordCommit(self.kind, len(self.leaves), tree_root(self.leaves))


def encode_example(arrays: dict[str, NDArray[np.generic]]) -> bytes:
    """One example as a record: canonical JSON of names, dtypes and shapes, a LF, then the arrays' bytes."""
    tensors = {name: Tensor.of(arrays[name]) for name in sorted(arrays)}
    header: Json = [[name, tensor.dtype, list(tensor.shape)] for name, tensor in tensors.items()]
    return b"".join([encode(header), b"\n", *(bytes(tensor.data) for tensor in tensors.values())])
