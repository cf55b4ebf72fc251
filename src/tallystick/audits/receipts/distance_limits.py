"""How far honest fingerprints and hidden states may lie from a verifier's own: tables, and the rule that picks one.

The shipped table is made by `scripts/fingerprint_calibration.py` and committed with the figures it rests on. A verifier
may bring another one, such as that of the one model it was promised; a provider never can.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Annotated, Literal, TypeVar

from pydantic import Field

from tallystick.tolerances.fingerprints import FingerprintSettings
from tallystick.tolerances.fingerprints.residues import reach
from tallystick.transcripts.door import Count, Document, Positive
from tallystick.transcripts.states_opening import PARTS_MAX

Dtype = Literal["F32", "BF16", "F16"]
Bits = Literal[1, 4, 8, 32]
Limit = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
L = TypeVar("L", bound="DistanceLimits")


class DistanceLimits(Document):
    """How far an honest claim may lie from the verifier's rows, relative to the block, in `dtype`.

    For blocks of `tokens` tokens or more, since a longer one varies less, and for the first layers up to `layer_max`,
    where rounding has not grown yet, or all if that is absent. `honest` blocks were compared; the furthest lay at
    `honest_largest`, the highest median of an answer's at `honest_typical`.
    """

    dtype: Dtype
    tokens: Positive
    layer_max: Count | None = None
    largest: Limit
    typical: Limit
    honest: Positive
    honest_largest: Limit
    honest_typical: Limit


class FingerprintLimits(DistanceLimits):
    """Limits for projections in `bits` bits, of `width` numbers or more: a wider one varies less, too."""

    bits: Bits
    width: Positive


class FingerprintCalibration(Document):
    """A table of limits and where it was measured; made by `scripts/fingerprint_calibration.py`."""

    version: Literal[1] = 1
    machine: str
    software: str
    models: tuple[str, ...]
    stacks: tuple[str, ...]
    held_out: tuple[str, ...]
    limits: tuple[FingerprintLimits, ...]
    states: tuple[DistanceLimits, ...]


class FingerprintRule(Document):
    """What one verifier allows: limits (those shipped, if absent), times a margin, and how many states are opened."""

    limits: tuple[FingerprintLimits, ...] | None = None
    states: tuple[DistanceLimits, ...] | None = None
    margin: Annotated[float, Field(gt=0.0, allow_inf_nan=False)] = 1.0
    parts: Annotated[int, Field(ge=1, le=PARTS_MAX)] = 4

    def limits_for(
        self, settings: FingerprintSettings, dtype: Dtype, layer: int, tokens: int
    ) -> FingerprintLimits | None:
        """The limits for a block of `tokens` tokens; none where honest claims fill the range of the numbers."""
        table = self.limits if self.limits is not None else shipped_calibration().limits
        alike = [each for each in table if each.bits == settings.bits and each.width <= settings.width]
        found = max(_fitting(alike, dtype, layer, tokens), key=lambda each: (*_rank(each), each.width), default=None)
        return None if found is None or self.margin * found.largest > reach(settings.bits) / 2 else found

    def states_for(self, dtype: Dtype, layer: int, tokens: int) -> DistanceLimits | None:
        """The limits for a block of `tokens` rows compared directly."""
        table = self.states if self.states is not None else shipped_calibration().states
        return max(_fitting(table, dtype, layer, tokens), key=_rank, default=None)


def _fitting(table: Sequence[L], dtype: Dtype, layer: int, tokens: int) -> list[L]:
    fits = [each for each in table if each.dtype == dtype and each.tokens <= tokens]
    return [each for each in fits if each.layer_max is None or layer <= each.layer_max]


def _rank(limits: DistanceLimits) -> tuple[float, int]:
    """The narrower class first: fewer layers, then longer blocks."""
    return -math.inf if limits.layer_max is None else -limits.layer_max, limits.tokens


@cache
def shipped_calibration() -> FingerprintCalibration:
    """The table that comes with the package."""
    data = (resources.files("tallystick") / "audits" / "receipts" / "fingerprints.json").read_bytes()
    return FingerprintCalibration.from_bytes(data.strip(), "fingerprints.json")
