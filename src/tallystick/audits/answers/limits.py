"""Limits on how far honest rows and tokens lie from the verifier's own, and the rules that pick and apply them.

A row is the hidden states or logits of one token. Rounding adds up over layers, and a final norm and an output matrix
scale it, so each place of a model has limits of its own. They are measured on the rows themselves: what a fingerprint
adds is the chance of its random directions, which follows from the number of its numbers.

`research/shipped_limits.py` puts measured tables into the shipped one. A verifier may use its own table, for example
one measured on the promised model. A provider cannot choose the table. Limits say nothing about models that are deeper
or wider than those they were measured on: each states that range, and outside it a distance decides nothing.
"""

from __future__ import annotations

import math
from functools import cache
from importlib import resources
from typing import Annotated, Final, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from tallystick.core.documents import Count, Document, Positive
from tallystick.formats.claims import ModelCard
from tallystick.formats.receipt import PARTS_MAX
from tallystick.verdicts.evidence import MarginRates, MismatchTest
from tallystick.verdicts.sampling.fast_path import USUAL_REACH

Dtype = Literal["F32", "BF16", "F16"]
Limit = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
Rate = Annotated[float, Field(gt=0.0, lt=1.0)]
Logits = Annotated[float, Field(gt=0.0, le=1e6)]
Kind = Literal["projection", "toploc", "states"]
Place = Literal["block", "final", "logits", "layer"]
CHANCE: Final = 1e-6
"""The probability at most by which directions carry the largest honest distance beyond a limit."""
_NORMAL: Final = 4.7534243
"""The quantile of the normal distribution that is exceeded with probability `CHANCE`."""


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


TOPLOC_TRIED: Final = (
    MeasuredModels(dtype="F32", layers=30, width=576, models=("SmolLM2-135M-Instruct",), answers=37),
    MeasuredModels(dtype="BF16", layers=6, width=128, models=("demo", "served"), answers=64),
    MeasuredModels(dtype="F16", layers=6, width=128, models=("demo", "served"), answers=64),
)
"""Models on which the published limits of TOPLOC rejected no honest answer. Of SmolLM2-135M-Instruct in BF16 they
rejected 2 of 80."""


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

    band: Logits
    mismatches: Rate
    rms: Logits | None = None
    largest: Limit = 0.0
    bins: tuple[MarginBin, ...] = ()


class RowLimits(MeasuredModels):
    """How far `tokens` rows or more at one place lie from the verifier's own, for models that this covers.

    The distance of several blocks is the root of the mean of their squares, each relative to the norm of its rows and
    weighed by its tokens. Limits of blocks hold up to layer `layer_max`; without it for all. `honest` runs of rows were
    compared, and the largest distance was `honest_largest`.
    """

    place: Place
    tokens: Positive = 1
    layer_max: Count | None = None
    largest: Limit
    honest: Positive = 1
    honest_largest: Limit = 0.0

    def allowed(self, numbers: float, margin: float = 1.0) -> float:
        """The largest distance of a projection with `numbers` numbers in all.

        Each number is about normal with the distance as its deviation. So the sum of squares follows a chi-squared
        distribution, whose quantile is that of Wilson and Hilferty (1931), a little too large in this tail.
        """
        part = 2.0 / (9.0 * numbers)
        chance = math.pow(1.0 - part + _NORMAL * math.sqrt(part), 1.5)
        return margin * max(self.largest, chance * self.honest_largest)


class RoundingLimits(MeasuredModels):
    """How much more honest stacks round than the verifier's own, for models of this depth and width.

    Both are compared with a pass in F32: at `place`, an honest stack lies at most `ratio` times as far from it, in any
    block of a fingerprint, as the verifier's own pass does. At `layer`, it is how far one layer lies from the
    nearest of the verifier's own stacks (`audits.answers.states`). `largest` is the largest such ratio seen in answers
    of `tokens` tokens or more; in a long answer rounding varies less.
    """

    place: Place
    tokens: Positive = 1
    ratio: Annotated[float, Field(gt=0.0, le=100.0)]
    largest: Limit = 0.0


class FingerprintCalibration(Document):
    """A table of limits and where it was measured."""

    version: Literal[2] = 2
    machine: str
    software: str
    stacks: tuple[str, ...]
    held_out: tuple[str, ...] = ()
    rows: tuple[RowLimits, ...]
    tokens: tuple[TokenLimits, ...] = ()
    rounding: tuple[RoundingLimits, ...] = ()


class FingerprintRule(Document):
    """The distances that one verifier allows: limits times `margin`; and how many parts of the states are opened.

    Without `rows`, the shipped limits hold. `measured` lists further models for which the widest limits of their dtype
    are to hold, and those of TOPLOC.

    With `wide`, models of 16 bits are passed a second time in F32, which tells rounding from other changes: what lies
    `rounding` times farther from that pass than the verifier's own rounding does is evidence against the provider, who
    is accused with probability `alpha` at most if honest, over all answers judged together.
    """

    rows: tuple[RowLimits, ...] | None = None
    measured: tuple[MeasuredModels, ...] = ()
    margin: Annotated[float, Field(gt=0.0, allow_inf_nan=False)] = 1.0
    parts: Annotated[int, Field(ge=1, le=PARTS_MAX)] = 4
    wide: bool = False
    rounding: tuple[RoundingLimits, ...] | None = None
    alpha: Rate = 1e-6

    def rounding_for(self, card: ModelCard, tokens: int = 1) -> dict[Place, float]:
        """By place, how many times own rounding that of an honest answer of `tokens` may be; empty if not measured.

        How rounding adds up depends on the model, so this holds for models of the measured depth and width alone.
        """
        table = shipped_calibration().rounding if self.rounding is None else self.rounding
        size = (card.dtype, card.layers, card.width)
        alike = [each for each in table if (each.dtype, each.layers, each.width) == size and each.tokens <= tokens]
        return {each.place: each.ratio for each in sorted(alike, key=lambda each: each.tokens)}

    @property
    def table(self) -> tuple[RowLimits, ...]:
        """All limits of this rule."""
        return shipped_calibration().rows if self.rows is None else self.rows

    def measured_for(self, kind: Kind) -> tuple[MeasuredModels, ...]:
        """The models for which limits hold. A verifier has no own limits for TOPLOC."""
        return (*(TOPLOC_TRIED if kind == "toploc" else self.table), *self.measured)

    def for_model(self, card: ModelCard) -> Self:
        """This rule with the limits for one model alone, which are found faster; unchanged if there are none."""
        alike = self._models_like(card)
        return self.model_copy(update={"rows": tuple(alike)}) if alike else self

    def limits_for(self, card: ModelCard, layer: int, tokens: int) -> RowLimits | None:
        """The limits for `tokens` rows of a layer; None if there are none for the model or the layer."""
        place = place_of(layer, card.layers)
        limits = [
            each
            for each in self._models_like(card)
            if each.place == place and each.tokens <= tokens and (each.layer_max is None or layer <= each.layer_max)
        ]
        # Limits of fewer layers are the narrower ones; of those, the ones for longer runs.
        return max(
            limits, key=lambda each: (each.layer_max is not None, -(each.layer_max or 0), each.tokens), default=None
        )

    def _models_like(self, card: ModelCard) -> list[RowLimits]:
        """The limits of the smallest models that cover a model; of the largest, if only `measured` covers it."""
        covering = [each for each in self.table if each.covers(card)]
        pick, among = min, covering
        if not covering and any(each.covers(card) for each in self.measured):
            pick, among = max, [each for each in self.table if each.dtype == card.dtype]
        size = pick(((each.layers, each.width) for each in among), default=None)
        return [each for each in among if (each.layers, each.width) == size]


def place_of(layer: int, final: int) -> Place:
    """The place of a layer of a fingerprint in a model of `final` blocks."""
    return "block" if layer < final else "final" if layer == final else "logits"


@cache
def shipped_calibration() -> FingerprintCalibration:
    """The table that comes with the package."""
    data = resources.files("tallystick.audits.answers").joinpath("fingerprints.json").read_bytes()
    return FingerprintCalibration.from_bytes(data.strip(), "fingerprints.json")


# How one verifier judges sampled tokens.

BANDS: Final = {"F32": 2e-3, "F16": 6e-2, "BF16": 5e-1}
"""Tie bands in logits where none was measured: about eight roundings of a logit of 32 to the model's dtype."""
MISMATCHES: Final = 0.05
"""The bound on honest tokens that are not the verifier's own choice, where none was measured."""
GRADES: Final = (0.0, 0.5, 1.0, 2.0, 4.0)
"""The margins, in tie bands, from which on a token weighs more; the last grade is `far`."""


class SamplerRule(Document):
    """One verifier's requirements on sampled tokens.

    `band` is the tie band in logits, `rms` the drift of one logit, and `mismatches` bounds the probability that an
    honest token is not the verifier's own choice. By default all three are those of the calibration for the model
    (`limits`, or the shipped table). `honest` bounds the probability that an honest token has a margin beyond the band,
    and `far_rate` that of a margin where a single token is refused: beyond `far` bands, or less (`far_bands`) where the
    drift is known. `dishonest` is the rate of
    tokens beyond the band that must be excluded with error `beta` before an answer is accepted. `alpha` is the
    probability of ever accusing an honest provider on accumulated evidence. `seed` says who chose the seed; with
    `unknown`, tokens are judged by their probability alone. `form` is the promised form: a receipt of unknown form is
    judged by it; without it, such a receipt is not judged. `likelihoods` says when token probabilities are judged in
    addition to margins. `reach` says how unlikely a token may be and still be compared with the claimed one
    (`verdicts.sampling.fast_path`).
    """

    band: Logits | None = None
    far: Annotated[float, Field(ge=1.0, le=1e6)] = 8.0
    far_rate: Rate = 1e-9
    mismatches: Rate | None = None
    honest: Rate = 1e-3
    dishonest: Rate = 0.1
    alpha: Rate = 1e-6
    beta: Rate = 0.01
    rms: Logits | None = None
    limits: tuple[TokenLimits, ...] | None = None
    seed: Literal["customer", "provider", "unknown"] = "provider"
    form: Literal["gumbel", "cdf"] | None = None
    likelihoods: Literal["unseeded", "always"] = "unseeded"
    reach: Annotated[float, Field(ge=1.0, le=100.0)] = USUAL_REACH

    @model_validator(mode="after")
    def _orders(self) -> Self:
        if not self.honest < self.dishonest:
            raise ValueError("honest has to be less than dishonest")
        return self

    @property
    def token_limits(self) -> tuple[TokenLimits, ...]:
        """The verifier's own calibrations of tokens, or else the shipped ones."""
        return shipped_calibration().tokens if self.limits is None else self.limits

    def limits_for(self, card: ModelCard) -> TokenLimits | None:
        """The calibration that holds for the model, the narrowest of several; None if there is none."""
        return min((each for each in self.token_limits if each.covers(card)), key=lambda each: each.band, default=None)

    def for_model(self, card: ModelCard) -> Self:
        """This rule, with what it does not state from the calibration for the model.

        A rule that states its own tie band takes nothing from it. Without a calibration, the band is that of `BANDS`.
        """
        if self.band is not None:
            return self
        measured = self.limits_for(card)
        if measured is None:
            return self.model_copy(update={"band": BANDS[card.dtype]})
        own = {name: getattr(measured, name) for name in ("rms", "mismatches") if getattr(self, name) is None}
        return self.model_copy(update={"band": measured.band, **own})

    @property
    def far_bands(self) -> float:
        """The margin, in bands, where a single token is refused: `far`, or where drift alone falls to `far_rate`."""
        assert self.band is not None
        if self.rms is None:
            return self.far
        return min(self.far, 1.0 + self.rms / self.band * max(0.0, math.log(self.honest / self.far_rate)))

    @property
    def far_margin(self) -> float:
        """`far_bands` in logits."""
        assert self.band is not None
        return self.band * self.far_bands

    @property
    def test(self) -> MismatchTest:
        """The test on the number of tokens beyond the band."""
        return MismatchTest(self.honest, self.dishonest)

    @property
    def rates(self) -> MarginRates:
        """How often honest margins reach parts and multiples of the band: by three rates, log-linear between them."""
        assert self.band is not None
        first = max(self.honest, MISMATCHES if self.mismatches is None else self.mismatches)
        bands = sorted({*(each for each in GRADES if each < self.far_bands), self.far_bands})
        falling = np.log((first, self.honest, min(self.far_rate, self.honest)))
        rates = np.interp(bands, (0.0, 1.0, self.far_bands), falling)
        return MarginRates(tuple((self.band * m, math.exp(rate)) for m, rate in zip(bands, rates, strict=True)))
