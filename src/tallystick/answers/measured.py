"""Whether limits were measured on models like the promised one; otherwise distances decide nothing.

The promised model is described by the verifier's own copy, never by a receipt.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tallystick.answers.distance_limits import FingerprintRule, Kind, MeasuredModels
from tallystick.answers.sampler import SamplerRule
from tallystick.transcripts.model_card import ModelCard

MEASURE: Final = "measure them with `tally calibrate-answers MODEL --out TABLE` and give the table as --limits"
WAYS: Final[dict[Kind, str]] = {
    "projection": MEASURE,
    "states": MEASURE,
    "toploc": "name such models in the policy's `fingerprints.measured` if the published limits are to hold for them",
}


def unmeasured_limits(rule: FingerprintRule, kind: Kind, card: ModelCard) -> str:
    """Why limits on distances do not hold for the model, and what to do; empty if they hold."""
    return _reason(rule.measured_for(kind), card, "no limits were", WAYS[kind])


def other_form(dtype: str, card: ModelCard) -> str:
    """Why limits do not hold for states kept in `dtype`; empty for the model's own dtype and for F32."""
    if dtype in ("F32", card.dtype):
        return ""
    return f"the states are kept in {dtype}, which rounds those of a model in {card.dtype}: keep them as they are"


def unmeasured_tokens(rule: SamplerRule, card: ModelCard) -> str:
    """Why no calibration of tokens holds for the model, and what to do; empty if one does, or if a band is stated."""
    if rule.band is not None:
        return ""
    return _reason(
        rule.token_limits, card, "no tie band was", f"{MEASURE}, or state one as `sampler.band` in the policy"
    )


def unmeasured_rounding(card: ModelCard) -> str:
    """Why a pass in F32 decides nothing: how far honest stacks round was measured for no model like this."""
    return f"no scale was measured for {card.layers} layers of width {card.width} in {card.dtype}: {MEASURE}"


def _reason(measured: Sequence[MeasuredModels], card: ModelCard, what: str, way: str) -> str:
    if any(each.covers(card) for each in measured):
        return ""
    held = f"{card.layers} layers of width {card.width} in {card.dtype}"
    alike = [f"{each.layers} layers of width {each.width}" for each in measured if each.dtype == card.dtype]
    tried = f"up to {' or '.join(dict.fromkeys(alike))}" if alike else "nothing in that precision"
    return f"{what} measured for {held} (measured: {tried}): {way}"
