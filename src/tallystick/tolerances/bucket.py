"""Arknet's buckets: a digest of the state after rounding. Hints make it robust at the rounding edges.

A bucket digest alone does not survive drift: one value that crosses an edge changes it (docs/bucket_agreement.md). With
hints, the prover states for each value near an edge on which side it lies. The verifier accepts a hint only where its
own value is near the same edge too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from tallystick.commitments.digests import Digest, digest, digest_bytes
from tallystick.commitments.encoding import Json, encode
from tallystick.errors import MalformedError, UsageError
from tallystick.tensors.digest import tensor_digest
from tallystick.tensors.tensor import Tensor
from tallystick.tolerances.grids import Mode, bucket_codes, in_range, nearest_edges
from tallystick.tolerances.streams import narrow_pieces
from tallystick.tolerances.tolerance import (
    Finding,
    Replayed,
    ReplayedState,
    States,
    Values,
    as_state,
    is_float,
    outcome,
)

if TYPE_CHECKING:
    from tallystick.tolerances.hints import Hints, TensorHints

MARGIN_MAX: Final = 0.25  # with more, a value beside a power of two could lie near two edges
CODE_DTYPES: Final = {"fp16_rne": "<i2", "grid": "<i8"}
NO_HINTS: Final[Hints] = MappingProxyType({})


@dataclass(frozen=True)
class BucketClaim:
    """What the prover records: the bucket digest, and the encoded hints (empty where none are logged)."""

    digest: Digest
    hints: bytes = b""

    def to_bytes(self) -> bytes:
        """The 32 bytes of the digest, then the hints."""
        return digest_bytes(self.digest) + self.hints

    @classmethod
    def from_bytes(cls, data: bytes) -> BucketClaim:
        """Read a claim; the hints stay unparsed. Raises `MalformedError` below 32 bytes."""
        from tallystick.tolerances.exact import DIGEST_BYTES, read_digest

        return cls(read_digest(data[:DIGEST_BYTES], "bucket summary"), data[DIGEST_BYTES:])


@dataclass(frozen=True)
class Bucket:
    """Equality after rounding each value to float16 (`fp16_rne`) or to a multiple of `grid_eps` (`grid`).

    `hint_margin` is a fraction of the gap between neighbouring grid points, at most ¼. A replay always agrees if no
    value drifts by more than `hint_margin` gaps (of the two gaps beside a value, the smaller counts). Integer tensors,
    and tensors with a value that has no bucket (not finite, or out of range), are compared by their exact digest. So a
    difference cannot be hidden behind an overflow.

    >>> weights = np.array([1.0, 2.0], "<f4")
    >>> claimed = Bucket().summarize(weights)
    >>> Bucket().compare(claimed, Replayed((), weights + np.float32(1e-5))).agrees
    True
    """

    mode: Mode = "fp16_rne"
    grid_eps: float = 1e-6
    hint_margin: float = 0.0

    def __post_init__(self) -> None:
        if self.mode not in CODE_DTYPES:
            raise UsageError(f"bucket mode {self.mode!r} is neither fp16_rne nor grid")
        if not 0.0 < self.grid_eps <= 1.0:
            raise UsageError(f"grid_eps = {self.grid_eps} lies outside (0, 1]")
        if not 0.0 <= self.hint_margin <= MARGIN_MAX:
            raise UsageError(f"hint_margin = {self.hint_margin} lies outside [0, {MARGIN_MAX}]")

    def summarize(self, value: Values | States) -> bytes:
        """The bytes of the claim: digest and hints."""
        return self.claim(value).to_bytes()

    def claim(self, value: Values | States) -> BucketClaim:
        """The digest and the hints that a prover logs for a tensor or a state."""
        if not self.hint_margin:
            return BucketClaim(self.digest(value))
        from tallystick.tolerances.hints import encode_hints

        return BucketClaim(self.digest(value), encode_hints(self.hints(value)))

    def compare(self, claimed: bytes, replayed: Replayed | ReplayedState) -> Finding:
        """Distance 0 for equal buckets and 1 otherwise; raises `MalformedError` if the hints cannot be parsed."""
        from tallystick.tolerances.hints import parse_hints

        claim = BucketClaim.from_bytes(claimed)
        hints = parse_hints(claim.hints) if claim.hints else NO_HINTS
        differs = claim.digest != self.digest(outcome(replayed), hints)
        return Finding(float(differs), 0.0, f"bucket-{self.mode}")

    def digest(self, value: Values | States, hints: Hints = NO_HINTS) -> Digest:
        """The bucket digest. A hint takes effect only where the value lies within the margin of its edge."""
        state = as_state(value)
        _check_fit(hints, state)
        entries: list[Json] = [
            [name, tensor.dtype, self._entry(tensor, hints.get(name))] for name, tensor in state.items()
        ]
        parameters: dict[str, Json] = {"mode": self.mode, "tensors": entries}
        if self.mode == "grid":
            parameters["eps"] = self.grid_eps
        return digest("bucket", encode(parameters))

    def hints(self, value: Values | States) -> dict[str, TensorHints]:
        """By tensor: for every value within the margin of a rounding edge, the side on which it lies."""
        state = as_state(value)
        return {name: self._tensor_hints(tensor) for name, tensor in state.items() if self._has_codes(tensor)}

    def codes(self, tensor: Tensor, hints: TensorHints | None = None) -> npt.NDArray[np.signedinteger]:
        """The bucket codes of a tensor in its shape, int16 or int64, after applying `hints`."""
        codes = np.empty(tensor.array().size, CODE_DTYPES[self.mode])
        start = 0
        for values in narrow_pieces(tensor):
            part = bucket_codes(values, self.mode, self.grid_eps)
            if hints is not None:
                self._apply_hints(part, values, hints, start)
            codes[start : start + values.size] = part
            start += values.size
        return codes.reshape(tensor.shape)

    def _entry(self, tensor: Tensor, hints: TensorHints | None) -> Json:
        if not self._has_codes(tensor):
            return {"exact": tensor_digest(tensor)}
        return {"codes": tensor_digest(Tensor.of(self.codes(tensor, hints)))}

    def _has_codes(self, tensor: Tensor) -> bool:
        return is_float(tensor) and all(
            in_range(values, self.mode, self.grid_eps).all() for values in narrow_pieces(tensor)
        )

    def _tensor_hints(self, tensor: Tensor) -> TensorHints:
        from tallystick.tolerances.hints import TensorHints

        indices, sides, start = [np.empty(0, np.int64)], [np.empty(0, bool)], 0
        for values in narrow_pieces(tensor):
            edges = nearest_edges(values, self.mode, self.grid_eps)
            near = np.flatnonzero(edges.within(self.hint_margin))
            codes = bucket_codes(values[near], self.mode, self.grid_eps)
            indices.append(start + near)
            sides.append(codes > edges.lower[near])
            start += values.size
        return TensorHints(start, np.concatenate(indices), np.concatenate(sides))

    def _apply_hints(
        self, codes: npt.NDArray[np.int64], values: npt.NDArray[Any], hints: TensorHints, start: int
    ) -> None:
        """Change `codes` in place to the hinted sides; `start` is the flat index of the first value."""
        first, last = np.searchsorted(hints.indices, [start, start + values.size])
        places = hints.indices[first:last] - start
        edges = nearest_edges(values[places], self.mode, self.grid_eps)
        near = edges.within(self.hint_margin)
        codes[places[near]] = edges.lower[near] + hints.sides[first:last][near]


def _check_fit(hints: Hints, state: Mapping[str, Tensor]) -> None:
    for name, entry in hints.items():
        if name not in state or state[name].array().size != entry.size:
            raise MalformedError(f"hints: no tensor {name!r} of {entry.size} elements in the replayed state")
