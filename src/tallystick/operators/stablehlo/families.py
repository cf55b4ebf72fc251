"""All families of StableHLO operators."""

from __future__ import annotations

from typing import Final

from tallystick.operators.stablehlo import comparison, contraction, elementwise, indexing, movement, reduction

FAMILIES: Final = (
    elementwise.FAMILY,
    comparison.FAMILY,
    movement.FAMILY,
    reduction.FAMILY,
    contraction.FAMILY,
    indexing.FAMILY,
)
