"""Arknet's buckets: digests of rounded states, with hints at the edges, and how many elements lie elsewhere."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from tallystick.core.canonical_json import Json, encode
from tallystick.core.digests import Digest, digest, digest_bytes
from tallystick.core.errors import MalformedError, UsageError
from tallystick.core.tensor_digests import tensor_digest
from tallystick.core.tensors import Tensor
from tallystick.verdicts.exact import DIGEST_BYTES, narrow_pieces, read_digest
from tallystick.verdicts.tolerance import Finding, Replayed, ReplayedState, States, Values, as_state, is_float, outcome

# The two grids of Arknet's buckets: to which point a value is rounded, and how near it lies to an edge.
#
# Buckets are numbered along the number line: neighbouring buckets have neighbouring codes, and both zeros have code 0.
# With `fp16_rne` the code counts the float16 numbers from zero (1.0 has code 15360). With `grid` it is the multiple of
# eps. Every edge lies midway between two grid points. The distance of these points is the *gap* at the edge.

Mode: TypeAlias = Literal["fp16_rne", "grid"]
Codes: TypeAlias = npt.NDArray[np.int64]

FLOAT16_EDGE: Final = 65520.0  # from here on, rounding to nearest even gives infinity
FLOAT16_TOP: Final = 0x7BFF  # the code of 65504, the largest float16
FLOAT16_SIZE: Final = np.int16(0x7FFF)  # all bits but the sign
GRID_TOP: Final = 2.0**51  # below it float64 still resolves a quarter of a grid step


@dataclass(frozen=True)
class NearestEdges:
    """For each value the nearest rounding edge, which lies between bucket `lower` and bucket `lower + 1`.

    `offset` is the signed distance from the edge in gaps, within ±½. Values at -0.5 and +0.5 are grid points.
    """

    lower: Codes
    offset: npt.NDArray[np.float64]

    def within(self, margin: float) -> npt.NDArray[np.bool_]:
        """Which values lie within `margin` gaps of their edge; with a margin of 0 none does."""
        if margin == 0.0:
            return np.zeros(self.offset.shape, bool)
        return np.asarray(np.abs(self.offset) <= margin)


def bucket_codes(values: npt.NDArray[Any], mode: Mode, eps: float = 1e-6) -> npt.NDArray[np.signedinteger]:
    """The bucket of each value, rounded to nearest with ties to even; same shape, int16 (`fp16_rne`) or int64.

    Raises `MalformedError` if a value has no bucket: NaN, infinite, or out of the grid's range.
    """
    if not in_range(values, mode, eps).all():
        raise MalformedError(f"a value lies outside the range of {mode} buckets, or is not finite")
    return _float16_codes(values) if mode == "fp16_rne" else np.rint(_scaled(values, eps)).astype(np.int64)


def in_range(values: npt.NDArray[Any], mode: Mode, eps: float = 1e-6) -> npt.NDArray[np.bool_]:
    """Which values have a bucket: |x| < 65520 for `fp16_rne`, |x / eps| ≤ 2⁵¹ for `grid`."""
    if mode == "fp16_rne":
        # float16 cannot hold the edge of its own range; float32 and float64 can
        wide = values.astype(np.promote_types(values.dtype, np.float32), copy=False)
        return np.asarray(np.abs(wide) < FLOAT16_EDGE)
    return np.asarray(np.abs(_scaled(values, eps)) <= GRID_TOP)


def nearest_edges(values: npt.NDArray[Any], mode: Mode, eps: float = 1e-6) -> NearestEdges:
    """The rounding edge nearest to each value in range. `offset` is exact within a quarter of a gap of the edge."""
    if mode == "grid":
        scaled = _scaled(values, eps)
        below = np.floor(scaled)
        return NearestEdges(below.astype(np.int64), scaled - below - 0.5)
    wide = values.astype(np.float64)
    codes = _float16_codes(values).astype(np.int64)
    lower = codes - (_float16_points(codes) > wide)
    low, high = _float16_points(lower), _float16_points(lower + 1)
    outermost = (lower == FLOAT16_TOP) | (lower == -FLOAT16_TOP - 1)  # beyond this edge there is no bucket
    return NearestEdges(lower, np.where(outermost, np.nan, (wide - (low + high) / 2) / (high - low)))


def _float16_codes(values: npt.NDArray[Any]) -> npt.NDArray[np.int16]:
    with np.errstate(under="ignore"):
        bits = values.astype("<f2").view("<i2")
    sign = bits >> 15  # 0 or -1; computed without a branch, which random signs would make slow
    return np.asarray(((bits & FLOAT16_SIZE) ^ sign) - sign)


def _float16_points(codes: Codes) -> npt.NDArray[np.float64]:
    bits = np.abs(codes).astype("<u2")
    sizes = np.where(bits > FLOAT16_TOP, 65536.0, bits.view("<f2").astype(np.float64))
    return np.copysign(sizes, codes.astype(np.float64))


def _scaled(values: npt.NDArray[Any], eps: float) -> npt.NDArray[np.float64]:
    with np.errstate(over="ignore", under="ignore"):
        return values.astype(np.float64) / eps


# Boundary hints: for each of the prover's values near a rounding edge, the side of the edge on which it lies.
#
# Layout, after the line `tallystick/hints/v1`: the tensors in ascending order of their UTF-8 names, each as
#
#     name length (u16) · name · element count (u64) · hint count (u64) · byte count (u64) · hints
#
# little-endian. A hint is a base-128 number: seven bits per byte, low bits first, high bit set on all but the last
# byte. It holds 2 · (index - previous index - 1) + side. The first previous index is -1. Side 1 is the upper bucket.

MAGIC: Final = b"tallystick/hints/v1\n"
BYTES_MAX: Final = 1 << 30
NAME_BYTES_MAX: Final = 4096
COUNTS: Final = struct.Struct("<QQQ")
DIGITS_MAX: Final = 9  # 63 bits hold every index and its side
BATCH: Final = 1 << 16
Bytes: TypeAlias = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class TensorHints:
    """The hints of one tensor of `size` elements: ascending flat indices, and a side for each (true is upper)."""

    size: int
    indices: npt.NDArray[np.int64]
    sides: npt.NDArray[np.bool_]


Hints: TypeAlias = Mapping[str, TensorHints]


def encode_hints(hints: Hints) -> bytes:
    """The bytes of `hints`; tensors without a hint are left out."""
    named = sorted((name.encode(), entry) for name, entry in hints.items() if entry.indices.size)
    return MAGIC + b"".join(_encode_tensor(name, entry) for name, entry in named)


def parse_hints(data: bytes, what: str = "hints", *, bytes_max: int = BYTES_MAX) -> dict[str, TensorHints]:
    """The hints written in `data`; raises `MalformedError` naming `what` unless the bytes are canonical."""
    if len(data) > bytes_max:
        raise MalformedError(f"{what}: {len(data)} bytes exceed the limit of {bytes_max}")
    if not data.startswith(MAGIC):
        raise MalformedError(f"{what}: does not begin with {MAGIC.decode().strip()}")
    hints: dict[str, TensorHints] = {}
    previous, position = None, len(MAGIC)
    while position < len(data):
        head, position = _take(data, position, 2, what)
        (length,) = struct.unpack("<H", head)
        if length > NAME_BYTES_MAX:
            raise MalformedError(f"{what}: a tensor name of {length} bytes")
        name, position = _take(data, position, length, what)
        if previous is not None and name <= previous:
            raise MalformedError(f"{what}: tensor names are not ascending")
        try:
            text = name.decode()
        except UnicodeDecodeError:
            raise MalformedError(f"{what}: a tensor name is not UTF-8") from None
        hints[text], position = _take_tensor(data, position, f"{what}: {name!r}")
        previous = name
    return hints


def _encode_tensor(name: bytes, entry: TensorHints) -> bytes:
    assert len(name) <= NAME_BYTES_MAX
    steps = np.diff(entry.indices, prepend=-1) - 1
    numbers = (steps.astype(np.uint64) << np.uint64(1)) | entry.sides.astype(np.uint64)
    body = b"".join(_encode_numbers(numbers[start : start + BATCH]) for start in range(0, numbers.size, BATCH))
    counts = COUNTS.pack(entry.size, entry.indices.size, len(body))
    return struct.pack("<H", len(name)) + name + counts + body


def _take_tensor(data: bytes, position: int, what: str) -> tuple[TensorHints, int]:
    head, position = _take(data, position, COUNTS.size, what)
    size, count, length = COUNTS.unpack(head)
    if size > 1 << 62 or not 0 < count <= size:
        raise MalformedError(f"{what}: {count} hints for {size} elements")
    body, position = _take(data, position, length, what)
    numbers = _parse_numbers(np.frombuffer(body, np.uint8), count, what)
    steps = (numbers >> np.uint64(1)).astype(np.int64) + 1
    if steps.max() > size or float(steps.sum(dtype=np.float64)) > 2.0**62:
        raise MalformedError(f"{what}: a hint lies outside the tensor")
    indices = np.cumsum(steps) - 1
    if indices[-1] >= size:
        raise MalformedError(f"{what}: a hint lies outside the tensor")
    return TensorHints(size, indices, (numbers & np.uint64(1)).astype(bool)), position


def _take(data: bytes, position: int, count: int, what: str) -> tuple[bytes, int]:
    if count > len(data) - position:
        raise MalformedError(f"{what}: ends in the middle of an entry")
    return data[position : position + count], position + count


def _encode_numbers(numbers: npt.NDArray[np.uint64]) -> bytes:
    digits = np.arange(DIGITS_MAX, dtype=np.uint64) * np.uint64(7)
    shifted = numbers[:, None] >> digits
    more = np.zeros(shifted.shape, bool)
    more[:, :-1] = shifted[:, 1:] > 0
    written = np.ones(shifted.shape, bool)
    written[:, 1:] = shifted[:, 1:] > 0
    return ((shifted & np.uint64(0x7F)) | (more.astype(np.uint64) << np.uint64(7))).astype(np.uint8)[written].tobytes()


def _parse_numbers(body: Bytes, count: int, what: str) -> npt.NDArray[np.uint64]:
    ends = np.flatnonzero(body < 0x80)
    if ends.size != count or ends[-1] != body.size - 1:
        raise MalformedError(f"{what}: {ends.size} numbers in place of {count}")
    lengths = np.diff(ends, prepend=-1)
    if lengths.max() > DIGITS_MAX or (body[ends[lengths > 1]] == 0).any():
        raise MalformedError(f"{what}: a number is not written in its shortest form")
    digit_place = np.arange(body.size) - np.repeat(ends - lengths + 1, lengths)
    digits = (body & 0x7F).astype(np.uint64) << (digit_place * 7).astype(np.uint64)
    numbers: npt.NDArray[np.uint64] = np.add.reduceat(digits, ends - lengths + 1)
    return numbers


# Arknet's buckets: a digest of the state after rounding. Hints make it robust at the rounding edges.
#
# A bucket digest alone does not survive drift: one value that crosses an edge changes it (docs/bucket_agreement.md).
# With hints, the prover states for each value near an edge on which side it lies. The verifier accepts a hint only
# where its own value is near the same edge too.

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

        return BucketClaim(self.digest(value), encode_hints(self.hints(value)))

    def compare(self, claimed: bytes, replayed: Replayed | ReplayedState) -> Finding:
        """Distance 0 for equal buckets and 1 otherwise; raises `MalformedError` if the hints cannot be parsed."""
        claim = BucketClaim.from_bytes(claimed)
        hints = parse_hints(claim.hints) if claim.hints else NO_HINTS
        differs = claim.digest != self.digest(outcome(replayed), hints)
        return Finding(float(differs), 0.0, f"bucket-{self.mode}")

    def digest(self, value: Values | States, hints: Hints = NO_HINTS) -> Digest:
        """The bucket digest. A hint takes effect only where the value lies within the margin of its edge."""
        state = as_state(value)
        for name, entry in hints.items():
            if name not in state or state[name].array().size != entry.size:
                raise MalformedError(f"hints: no tensor {name!r} of {entry.size} elements in the replayed state")
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


# Arknet's dual bucket (§4.2): both bucket functions have to agree.

LENGTH: Final = struct.Struct("<Q")


@dataclass(frozen=True)
class DualBucket:
    """Agreement of two buckets at once.

    A forger must match both. An honest prover must too, and the two expected numbers of mismatches Λ add up.
    """

    first: Bucket = field(default_factory=lambda: Bucket("fp16_rne"))
    second: Bucket = field(default_factory=lambda: Bucket("grid"))

    def summarize(self, value: Values | States) -> bytes:
        """The length of the first claim (u64, little-endian), the first claim, the second claim."""
        first = self.first.summarize(value)
        return LENGTH.pack(len(first)) + first + self.second.summarize(value)

    def compare(self, claimed: bytes, replayed: Replayed | ReplayedState) -> Finding:
        """The number of buckets that differ; 0 is allowed. Raises `MalformedError` for a truncated claim."""
        if len(claimed) < LENGTH.size:
            raise MalformedError(f"dual bucket summary: {len(claimed)} bytes")
        (length,) = LENGTH.unpack_from(claimed)
        if length > len(claimed) - LENGTH.size:
            raise MalformedError("dual bucket summary: ends in the middle of the first claim")
        body = claimed[LENGTH.size :]
        findings = (
            self.first.compare(body[:length], replayed),
            self.second.compare(body[length:], replayed),
        )
        differing = [finding for finding in findings if not finding.agrees]
        return Finding(float(len(differing)), 0.0, "bucket-dual", differing[0].name if differing else "")


# How many elements of an opened state lie in another bucket than in the replay.
#
# The expected count is Λ = Σ |w' - w| / gap (docs/bucket_agreement.md). Honest drift is correlated and heavy-tailed. So
# the allowed number is calibrated and not computed from a binomial distribution.


def count_elements(
    claimed: npt.NDArray[np.float64],
    replayed: npt.NDArray[np.float64],
    mode: Mode = "fp16_rne",
    eps: float = 1e-6,
) -> int:
    """The number of elements of two arrays of one shape that lie in different buckets.

    If either value of an element has no bucket (not finite, or out of range), it counts unless both are equal.
    """
    inside = in_range(claimed, mode, eps) & in_range(replayed, mode, eps)
    moved = bucket_codes(claimed[inside], mode, eps) != bucket_codes(replayed[inside], mode, eps)
    return int(np.count_nonzero(moved) + np.count_nonzero(claimed[~inside] != replayed[~inside]))
