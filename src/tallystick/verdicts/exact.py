"""Equality of bytes and of quantised losses, over tensors that are read in pieces."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from tallystick.core.digests import Digest, digest_bytes, digest_from
from tallystick.core.errors import MalformedError, UsageError
from tallystick.core.tensor_digests import state_digest, tensor_digest
from tallystick.core.tensors import Tensor, item_size
from tallystick.verdicts.tolerance import (
    Finding,
    Replayed,
    ReplayedState,
    States,
    Values,
    as_state,
    as_tensor,
    is_float,
    outcome,
    square_sum,
)

# Tensors read in pieces, so that a comparison's memory does not grow with the model.

PIECE = 1 << 18


def pieces(tensor: Tensor, piece: int = PIECE) -> Iterator[npt.NDArray[np.float64]]:
    """The elements in row-major order as float64, at most `piece` at a time; the conversion is always exact."""
    for values in narrow_pieces(tensor, piece):
        with np.errstate(invalid="ignore"):  # a signalling NaN stays a NaN
            yield values.astype(np.float64)


def narrow_pieces(tensor: Tensor, piece: int = PIECE) -> Iterator[npt.NDArray[Any]]:
    """As `pieces`, but in the narrowest type that NumPy computes with: 16-bit floats become float32, others stay."""
    flat = tensor.array().reshape(-1)
    for start in range(0, flat.size, piece):
        yield Tensor.of(flat[start : start + piece], tensor.dtype).values()


def element_count(tensors: Iterable[Tensor]) -> int:
    """The number of elements of all tensors together."""
    return sum(math.prod(tensor.shape) for tensor in tensors)


def not_finite(state: Mapping[str, Tensor]) -> list[str]:
    """The names of weights and optimizer slots that hold NaN or ∞. Buffers are skipped: a mask may hold −∞."""
    learned = (name for name in state if name.startswith(("weights.", "optimizer.")) and is_float(state[name]))
    return [name for name in learned if not all(np.isfinite(values).all() for values in narrow_pieces(state[name]))]


def norm(tensors: Iterable[Tensor]) -> float:
    """The Euclidean norm of all tensors together, accumulated in float64."""
    return math.sqrt(math.fsum(square_sum(part) for tensor in tensors for part in pieces(tensor)))


def difference_norm(left: Sequence[Tensor], right: Sequence[Tensor]) -> float:
    """The Euclidean norm of `left - right`; raises `MalformedError` if counts or shapes differ."""
    if len(left) != len(right):
        raise MalformedError(f"{len(left)} tensors beside {len(right)}")
    pairs = zip(left, right, strict=True)
    return math.sqrt(math.fsum(square_sum(a - b) for pair in pairs for a, b in side_by_side(*pair)))


def side_by_side(*tensors: Tensor, piece: int = PIECE) -> Iterator[tuple[npt.NDArray[np.float64], ...]]:
    """Matching pieces of tensors of one shape; raises `MalformedError` if the shapes differ."""
    shapes = [tensor.shape for tensor in tensors]
    if any(shape != shapes[0] for shape in shapes):
        raise MalformedError(f"tensors of unlike shapes {', '.join(str(list(shape)) for shape in shapes)}")
    return zip(*(pieces(tensor, piece) for tensor in tensors), strict=True)


# Equality of bytes: the strictest tolerance, for a replay on the same stack.

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


def describe_difference(claimed: Tensor, replayed: Tensor) -> str:
    """One line on how two tensors with different bytes differ.

    It gives dtype and shape if those differ; otherwise the number of unequal elements and the largest difference.
    Elements that differ in bits but not in value (−0 and 0, NaN payloads) are counted apart.
    """
    if (claimed.dtype, claimed.shape) != (replayed.dtype, replayed.shape):
        return f"{claimed.dtype} {claimed.shape}, replayed {replayed.dtype} {replayed.shape}"
    patterns = (np.frombuffer(tensor.data, f"<u{item_size(tensor.dtype)}") for tensor in (claimed, replayed))
    bits, numbers, largest = int(np.count_nonzero(np.not_equal(*patterns))), 0, 0.0
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


def read_digest(data: bytes, what: str) -> Digest:
    """The digest written as 32 bytes; raises `MalformedError` naming `what`."""
    if len(data) != DIGEST_BYTES:
        raise MalformedError(f"{what}: {len(data)} bytes instead of {DIGEST_BYTES}")
    return digest_from(data)


# A quantised loss, compared within a stated band.
#
# Two honest losses that differ by |Δ| can round to neighbouring decimals, with probability |Δ| / 10^-decimals per step.
# So the replayed loss is compared with the recorded one as a number, never as a string.

Quantised: TypeAlias = float | Literal["nan", "inf", "-inf"]
DECIMALS_MAX: Final = 12


def quantise(loss: float, decimals: int) -> Quantised:
    """The loss rounded to `decimals`, ties of the exact binary value to even, without a negative zero.

    >>> quantise(2.34567, 2), quantise(-0.04, 1), quantise(float("inf"), 1)
    (2.35, 0.0, 'inf')
    """
    if math.isnan(loss):
        return "nan"
    if math.isinf(loss):
        return "inf" if loss > 0 else "-inf"
    return round(float(loss), decimals) + 0.0


@dataclass(frozen=True)
class LossBand:
    """Agreement of a replayed loss with a recorded one within half a unit of the last decimal plus a band.

    |Δ| ≤ ½ · 10^-decimals + band · max(1, |loss|). Losses that are not finite agree only if `permits_non_finite` is
    set and both are the same infinity or both NaN.
    """

    decimals: int
    band: float = 0.0
    permits_non_finite: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.decimals <= DECIMALS_MAX:
            raise UsageError(f"loss_decimals = {self.decimals} lies outside 0 … {DECIMALS_MAX}")
        if not 0.0 <= self.band < math.inf:
            raise UsageError(f"loss band {self.band} is not a number from 0")

    def summarize(self, loss: float) -> Quantised:
        """What goes into the record: the quantised loss, or "nan", "inf" or "-inf"."""
        return quantise(loss, self.decimals)

    def compare(self, claimed: Quantised, replayed: float) -> Finding:
        """The distance from the recorded loss; raises `MalformedError` for a number that is not quantised."""
        if isinstance(claimed, str) or not math.isfinite(replayed):
            same = self.permits_non_finite and claimed == quantise(replayed, self.decimals)
            return Finding(0.0 if same else math.nan, 0.0, "loss")
        if quantise(claimed, self.decimals) != claimed:
            raise MalformedError(f"loss {claimed} has more than {self.decimals} decimals")
        rounding = 2 * math.ulp(max(abs(claimed), abs(replayed)))  # binary64 cannot hold the decimal exactly
        allowed = 0.5 * 10.0**-self.decimals + self.band * max(1.0, abs(replayed)) + rounding
        return Finding(abs(claimed - replayed), allowed, "loss")
