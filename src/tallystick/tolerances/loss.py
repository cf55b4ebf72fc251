"""A quantised loss, compared within a stated band.

Two honest losses that differ by |Δ| can round to neighbouring decimals, with probability |Δ| / 10^-decimals per step.
So the replayed loss is compared with the recorded one as a number, never as a string.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from tallystick.errors import MalformedError, UsageError
from tallystick.tolerances.tolerance import Finding

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
        return Finding(abs(claimed - replayed), self._allowed(claimed, replayed), "loss")

    def _allowed(self, claimed: float, replayed: float) -> float:
        scale = max(abs(claimed), abs(replayed))
        rounding = 2 * math.ulp(scale)  # binary64 cannot hold the decimal exactly
        return 0.5 * 10.0**-self.decimals + self.band * max(1.0, abs(replayed)) + rounding
