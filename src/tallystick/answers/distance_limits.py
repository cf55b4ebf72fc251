"""Limits on the distance of honest fingerprints and hidden states from the verifier's own, and the rule that picks one.

`research/fingerprint_calibration.py` makes the shipped table, which is committed with its measurements. A verifier may
use its own table, for example one measured on the promised model. A provider cannot choose the table.

Rounding adds up over layers, so limits say nothing about models that are deeper or wider than those they were measured
on. Each table states that range; outside it a distance decides nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Annotated, Final, Literal, TypeVar

from pydantic import Field

from tallystick.documents.document import Count, Document, Positive
from tallystick.tolerances.fingerprints.residues import reach
from tallystick.tolerances.fingerprints.settings import FingerprintSettings
from tallystick.transcripts.model_card import ModelCard
from tallystick.transcripts.receipt import PARTS_MAX

Dtype = Literal["F32", "BF16", "F16"]
Bits = Literal[1, 4, 8, 32]
Limit = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
Kind = Literal["projection", "toploc", "states"]
L = TypeVar("L", bound="DistanceLimits")


class MeasuredModels(Document):
    """Models on which limits were tested: in `dtype`, up to `layers` blocks deep and `width` elements wide.

    `answers` honest answers of `models` were compared; none of them was rejected.
    """

    dtype: Dtype
    layers: Positive
    width: Positive
    models: tuple[str, ...] = ()
    answers: Positive = 1

    def covers(self, card: ModelCard) -> bool:
        """Whether a model has this dtype and is not deeper or wider."""
        return self.dtype == card.dtype and card.layers <= self.layers and card.width <= self.width


TRIED: Final = (MeasuredModels(dtype="F32", layers=30, width=576, models=("SmolLM2-135M-Instruct",), answers=37),)
"""Models on which limits of smaller models were tested: on four stacks no honest answer was rejected, and every other
model, precision and cache was detected."""


class MarginBin(Document):
    """Of `tokens` honest tokens, `beyond` had a margin of more than `margin` logits."""

    margin: Limit
    tokens: Positive
    beyond: Count


class TokenLimits(MeasuredModels):
    """How honest tokens and logits differ from a verifier's own, for models that this covers.

    An honest token is not the verifier's choice with probability `mismatches` at most, and its margin is beyond `band`
    logits with probability 0.001 at most. `rms` is the drift of one logit: it turns the order of two scores with a gap
    of m logits round with probability 1 / (1 + exp(m / rms)) at most. `bins` are the margins that were seen, `largest`
    is the largest of them. `calibration.answers` says how the bounds follow.
    """

    band: Annotated[float, Field(gt=0.0, le=1e6)]
    mismatches: Annotated[float, Field(gt=0.0, lt=1.0)]
    rms: Annotated[float, Field(gt=0.0, le=1e6)] | None = None
    largest: Limit = 0.0
    bins: tuple[MarginBin, ...] = ()


class DistanceLimits(Document):
    """The largest distance of an honest claim from the verifier's rows, relative to the block's norm, in `dtype`.

    They hold for blocks of `tokens` tokens or more, because longer blocks vary less, and for layers up to `layer_max`,
    where rounding has not grown yet; without it for all layers. `honest` blocks were compared: the largest distance was
    `honest_largest`, the largest median of one answer `honest_typical`.
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
    """Limits for projections in `bits` bits with `width` numbers or more: wider ones vary less too."""

    bits: Bits
    width: Positive


class FingerprintCalibration(Document):
    """A table of limits and where it was measured; made by `research/fingerprint_calibration.py`."""

    version: Literal[1] = 1
    machine: str
    software: str
    models: tuple[str, ...]
    stacks: tuple[str, ...]
    held_out: tuple[str, ...]
    measured: tuple[MeasuredModels, ...] = ()
    limits: tuple[FingerprintLimits, ...]
    states: tuple[DistanceLimits, ...]
    tokens: tuple[TokenLimits, ...] = ()


class FingerprintRule(Document):
    """The distances that one verifier allows: limits times `margin`; and how many parts of the states are opened.

    Without `limits` or `states`, the shipped ones hold. `measured` lists models for which the limits hold. Without it,
    a verifier's own limits hold for every model, shipped limits for the models they were tested on. With shipped
    limits, `measured` adds to those models.
    """

    limits: tuple[FingerprintLimits, ...] | None = None
    states: tuple[DistanceLimits, ...] | None = None
    measured: tuple[MeasuredModels, ...] | None = None
    margin: Annotated[float, Field(gt=0.0, allow_inf_nan=False)] = 1.0
    parts: Annotated[int, Field(ge=1, le=PARTS_MAX)] = 4

    def measured_for(self, kind: Kind) -> tuple[MeasuredModels, ...] | None:
        """The models for which limits hold; None means every model. A verifier has no own limits for TOPLOC."""
        own = {"projection": self.limits, "states": self.states}.get(kind)
        if own is not None:
            return self.measured
        return (*shipped_calibration().measured, *TRIED, *(self.measured or ()))

    def limits_for(
        self, settings: FingerprintSettings, dtype: Dtype, layer: int, tokens: int
    ) -> FingerprintLimits | None:
        """The limits for a block of `tokens` tokens; None if honest claims already fill half the numbers' range."""
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
    """The rank of a class of limits: fewer layers rank highest, then longer blocks."""
    return -math.inf if limits.layer_max is None else -limits.layer_max, limits.tokens


@cache
def shipped_calibration() -> FingerprintCalibration:
    """The table that comes with the package."""
    data = resources.files("tallystick.answers").joinpath("fingerprints.json").read_bytes()
    return FingerprintCalibration.from_bytes(data.strip(), "fingerprints.json")
