"""The allow-list: every operator that a graph may hold, by its name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tallystick.errors import MalformedError
from tallystick.operators.aten import (
    activation,
    attention,
    batch_norm,
    comparison,
    contraction,
    convolution,
    creation,
    elementwise,
    embedding,
    group_norm,
    indexing,
    joining,
    loss,
    movement,
    normalization,
    optimizer,
    ordering,
    pooling,
    reduction,
    resampling,
    softmax,
)
from tallystick.operators.definition import Operator, merge
from tallystick.operators.stablehlo import families
from tallystick.operators.tally import random, sampling

ATEN: Final = (
    activation.FAMILY,
    attention.FAMILY,
    batch_norm.FAMILY,
    comparison.FAMILY,
    contraction.FAMILY,
    convolution.FAMILY,
    creation.FAMILY,
    elementwise.FAMILY,
    embedding.FAMILY,
    group_norm.FAMILY,
    indexing.FAMILY,
    joining.FAMILY,
    loss.FAMILY,
    movement.FAMILY,
    normalization.FAMILY,
    optimizer.FAMILY,
    ordering.FAMILY,
    pooling.FAMILY,
    reduction.FAMILY,
    resampling.FAMILY,
    softmax.FAMILY,
)
OPERATORS: Final[Mapping[str, Operator]] = merge(*ATEN, *families.FAMILIES, random.FAMILY, sampling.FAMILY)


def operator(name: str) -> Operator:
    """The operator of this name; raises `MalformedError` if it is not on the allow-list."""
    found = OPERATORS.get(name)
    if found is None:
        raise MalformedError(f"operator {name[:80]!r} is not on the allow-list")
    return found
