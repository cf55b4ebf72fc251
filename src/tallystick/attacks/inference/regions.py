"""How far a prover may move each result before a judge objects: the regions a bound-aware adversary searches.

`Deterministic`, `Probabilistic` and `Variance` bounds allow every element its own radius. A calibrated threshold allows
shares of the deterministic bound by rank: few elements the largest share, the rest what its percentile says.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tallystick.graphs import Graph, Ref
from tallystick.graphs.values import float_results, operands_of
from tallystick.operators.bound import Bound, bound
from tallystick.operators.registry import operator
from tallystick.operators.rounding import Model
from tallystick.tensors import Tensor
from tallystick.tolerances.threshold import QUANTILES, SUPPORT, Threshold

Radii = dict[Ref, np.ndarray[Any, np.dtype[np.float64]]]


@dataclass(frozen=True)
class Ranks:
    """The shares allowed to the elements of one result from the largest to the smallest, and to their mean."""

    shares: np.ndarray[Any, np.dtype[np.float64]]
    bias: float = math.inf


def radii_of(graph: Graph, values: Mapping[Ref, Tensor], model: Model) -> Radii:
    """The radius of every floating-point result that rounding can move; infinite ones count as 0."""
    found: Radii = {}
    for node in graph.nodes:
        wanted = float_results(node)
        if wanted:
            bounds = bound(operator(node.operator), {**operands_of(node, values), **node.attributes}, model=model)
            found |= {ref: _finite(bounds[node.outputs.index(ref)]) for ref, _ in wanted}
    return {ref: radius for ref, radius in found.items() if radius.any()}


def ranks_of(threshold: Threshold | None, elements: int) -> Ranks:
    """What a threshold allows by rank; the whole radius to everything where there is none."""
    if threshold is None:
        return Ranks(np.ones(elements))
    allowed = threshold.allowed()
    shares = np.full(elements, allowed[-1])
    order = np.arange(elements)  # 0 is the largest
    for quantile, support, share in zip(QUANTILES[-2::-1], SUPPORT[-2::-1], allowed[-2::-1], strict=True):
        if elements >= support:
            shares[order >= elements - 1 - math.ceil(quantile * (elements - 1))] = share
    return Ranks(shares, threshold.bias_allowed(elements) if elements >= SUPPORT[1] else math.inf)


def _finite(found: Bound | None) -> np.ndarray[Any, np.dtype[np.float64]]:
    assert found is not None  # a result that the node has is a result that its definition gives
    return np.where(np.isfinite(found.radius), found.radius, 0.0)
