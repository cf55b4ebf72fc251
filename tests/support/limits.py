"""Limits on distances as a test states them, and a card with nothing but sizes."""

from __future__ import annotations

from typing import Any, Final

from tallystick.audits.answers.limits import FingerprintRule, Place, RowLimits
from tallystick.core.digests import digest
from tallystick.formats.claims import ModelCard

ANY_MODEL: Final[dict[str, Any]] = {"layers": 1024, "width": 1 << 16}
PLACES: Final[tuple[Place, ...]] = ("block", "final", "logits")


def rule_of(largest: float, **changes: Any) -> FingerprintRule:
    """One limit for every row of every model in F32, or what `changes` say of it."""
    shared = {"dtype": "F32", "largest": largest, **ANY_MODEL, **changes}
    return FingerprintRule(rows=tuple(RowLimits(place=place, **shared) for place in PLACES))


def card_of(dtype: Any = "F32", layers: int = 2, width: int = 48) -> ModelCard:
    """The card of a model of this size."""
    none = digest("blob", b"")
    return ModelCard(
        architecture="llama",
        config=none,
        weights=none,
        tokenizer=none,
        dtype=dtype,
        vocabulary=256,
        layers=layers,
        width=width,
    )
