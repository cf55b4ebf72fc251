"""Ordered records under one root: any record can be shown at its position, and nowhere else."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tallystick.commitments.encoding import Json, encode
from tallystick.commitments.proofs import LeafHashes, check_inclusion, prove_inclusion
from tallystick.commitments.tree import Hash, leaf_hash, tree_root
from tallystick.documents.fields import fields, hash_field, integer, items, text
from tallystick.errors import MalformedError, UsageError
from tallystick.tensors.tensor import Tensor
from tallystick.transcripts.dataset import RecordCommit, RecordKind

PROOF_HASHES_MAX: Final = 64


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


@dataclass(frozen=True)
class RecordOpening:
    """One record, the position it claims, and the RFC 6962 audit path that shows it."""

    index: int
    record: bytes
    proof: tuple[Hash, ...]

    def to_json(self) -> Json:
        """The object as JSON values; the record is base64."""
        return {
            "index": self.index,
            "proof": [node.hex() for node in self.proof],
            "record": base64.b64encode(self.record).decode(),
        }

    @classmethod
    def from_json(cls, value: Json) -> RecordOpening:
        """Read an opening; raises `MalformedError`."""
        parts = fields(value, ("index", "proof", "record"), "opening")
        nodes = items(parts["proof"], "opening.proof")
        if len(nodes) > PROOF_HASHES_MAX:
            raise MalformedError(f"opening.proof: {len(nodes)} hashes, more than any tree needs")
        proof = tuple(hash_field(node, f"opening.proof[{index}]") for index, node in enumerate(nodes))
        return cls(integer(parts["index"], "opening.index"), _from_base64(parts["record"]), proof)


def prove_record(tree: RecordTree, index: int, record: bytes) -> RecordOpening:
    """Open record `index`; raises `UsageError` when it is not there or is not `record`."""
    if not 0 <= index < len(tree.leaves):
        raise UsageError(f"record {index} does not exist: there are {len(tree.leaves)}, counted from 0")
    if leaf_hash(record) != tree.leaves[index]:
        raise UsageError(f"these bytes are not record {index}")
    return RecordOpening(index, record, tuple(prove_inclusion(LeafHashes(tree.leaves), index, len(tree.leaves))))


def check_record(opening: RecordOpening, commit: RecordCommit) -> None:
    """Raise `ProofError` unless the opened record stands at its position under the commitment."""
    leaf = leaf_hash(opening.record)
    check_inclusion(list(opening.proof), leaf, opening.index, commit.count, commit.root)


def encode_example(arrays: dict[str, NDArray[np.generic]]) -> bytes:
    """One example as a record: canonical JSON of names, dtypes and shapes, a LF, then the arrays' bytes."""
    tensors = {name: Tensor.of(arrays[name]) for name in sorted(arrays)}
    header: Json = [[name, tensor.dtype, list(tensor.shape)] for name, tensor in tensors.items()]
    return b"".join([encode(header), b"\n", *(bytes(tensor.data) for tensor in tensors.values())])


def _from_base64(value: Json) -> bytes:
    written = text(value, "opening.record")
    try:
        record = base64.b64decode(written, validate=True)
    except (binascii.Error, ValueError):
        raise MalformedError("opening.record: not base64") from None
    if base64.b64encode(record).decode() != written:
        raise MalformedError("opening.record: not canonical base64")
    return record
