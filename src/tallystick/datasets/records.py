"""Ordered records under one root: any record can be shown at its position, and nowhere else."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tallystick.commitments.encoding import Json, encode
from tallystick.commitments.tree import Hash, leaf_hash, tree_root
from tallystick.tensors.tensor import Tensor
from tallystick.transcripts.dataset import RecordCommit, RecordKind


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
