"""Equality of bytes: the strictest tolerance, for a replay on the same stack."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tallystick.commitments.digests import Digest, digest_bytes, digest_from
from tallystick.errors import MalformedError
from tallystick.tensors.digest import state_digest, tensor_digest
from tallystick.tensors.dtypes import item_size
from tallystick.tensors.tensor import Tensor
from tallystick.tolerances.streams import side_by_side
from tallystick.tolerances.tolerance import (
    Finding,
    Replayed,
    ReplayedState,
    States,
    Values,
    as_state,
    as_tensor,
    outcome,
)

DIGEST_BYTES = 32
BITS_ALONE = "in their bits alone: the sign of a zero, or the payload of a NaN"


@dataclass(frozen=True)
class Exact:
    """Equality of every byte: the summary is the tensor digest, or the state digest, as 32 bytes."""

    def digest(self, value: Values | States) -> Digest:
        """The digest of a tensor, or of a state with its names."""
        return state_digest(as_state(value)) if isinstance(value, Mapping) else tensor_digest(as_tensor(value))

    def summarize(self, value: Values | States) -> bytes:
        """The 32 bytes of the digest."""
        return digest_bytes(self.digest(value))

    def compare(self, claimed: bytes, replayed: Replayed | ReplayedState) -> Finding:
        """Distance 0 for equal bytes and 1 otherwise; raises `MalformedError` unless the claim has 32 bytes."""
        digest = read_digest(claimed, "exact summary")
        return Finding(float(digest != self.digest(outcome(replayed))), 0.0, "exact")

    def compare_opened(self, claimed: States, replayed: ReplayedState) -> Finding:
        """The number of tensors that differ, are missing or were added; `where` names the first of them."""
        expected, opened = as_state(replayed.end), as_state(claimed)
        differing = [name for name in sorted(expected.keys() | opened.keys()) if _differs(name, opened, expected)]
        return Finding(float(len(differing)), 0.0, "exact", differing[0] if differing else "")


def describe_difference(claimed: Tensor, replayed: Tensor) -> str:
    """One line on how two tensors with different bytes differ.

    It gives dtype and shape if those differ; otherwise the number of unequal elements and the largest difference.
    Elements that differ in bits but not in value (−0 and 0, NaN payloads) are counted apart.
    """
    if (claimed.dtype, claimed.shape) != (replayed.dtype, replayed.shape):
        return f"{claimed.dtype} {claimed.shape}, replayed {replayed.dtype} {replayed.shape}"
    bits, numbers, largest = _count_bits(claimed, replayed), 0, 0.0
    for theirs, ours in side_by_side(claimed, replayed):
        other = (theirs != ours) & ~(np.isnan(theirs) & np.isnan(ours))
        numbers += int(np.count_nonzero(other))
        with np.errstate(invalid="ignore"):
            largest = float(np.max(np.abs(theirs - ours)[other], initial=largest))
    whole = f"of {math.prod(claimed.shape)} elements differ"
    if not numbers:
        return f"{bits} {whole} {BITS_ALONE}"
    also = f"; {bits - numbers} more {BITS_ALONE}" if bits > numbers else ""
    return f"{numbers} {whole}, by at most {largest:.3g}{also}"


def _count_bits(claimed: Tensor, replayed: Tensor) -> int:
    """The number of elements whose bytes differ."""
    form = f"<u{item_size(claimed.dtype)}"
    return int(np.count_nonzero(np.frombuffer(claimed.data, form) != np.frombuffer(replayed.data, form)))


def read_digest(data: bytes, what: str) -> Digest:
    """The digest written as 32 bytes; raises `MalformedError` naming `what`."""
    if len(data) != DIGEST_BYTES:
        raise MalformedError(f"{what}: {len(data)} bytes instead of {DIGEST_BYTES}")
    return digest_from(data)


def _differs(name: str, left: States, right: States) -> bool:
    if name not in left or name not in right:
        return True
    return tensor_digest(as_tensor(left[name])) != tensor_digest(as_tensor(right[name]))
