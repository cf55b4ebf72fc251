"""How far a prover may move each result before a judge objects: the regions a bound-aware adversary searches.

`Deterministic`, `Probabilistic` and `Variance` bounds allow every element its own radius. A calibrated threshold allows
shares of the deterministic bound by rank: few elements the largest share, the rest what its percentile says.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tallystick.core.tensors import Tensor, TensorSpec, numpy_dtype
from tallystick.programs.graph import Graph, Ref, float_results, operands_of, results_of
from tallystick.programs.operators.balls.bound import ResultBound, bound
from tallystick.programs.operators.definition import operator
from tallystick.programs.operators.rounding import Model
from tallystick.verdicts.bounds import QUANTILES, SUPPORT, Threshold
from tests.support.attacks.inference.workload import StudyWorkload, ValuesByRef

Floats = npt.NDArray[np.float64]
Radii = dict[Ref, Floats]


@dataclass(frozen=True)
class Ranks:
    """The shares allowed to the elements of one result from the largest to the smallest, and to their mean."""

    shares: Floats
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


def place(workload: StudyWorkload, shares: Mapping[Ref, Floats], model: Model) -> ValuesByRef:
    """The run in which each result that `shares` names lies so many radii from its exact value.

    Exact values and radii are those on the operands of this run, so that a judge of the same model finds these very
    shares, but for the rounding to the dtype of the result, which is towards the exact value.
    """
    graph, engine = workload.graph, workload.engine
    values: ValuesByRef = {source.name: workload.bindings[source.name] for source in graph.sources}
    for node in graph.nodes:
        wanted = [(ref, spec) for ref, spec in results_of(node) if ref in shares]
        if len(wanted) < len(results_of(node)):
            loaded = {ref: engine.load(values[ref]) for ref in node.refs}
            results = dict(zip(node.outputs, engine.prepare(node)(operands_of(node, loaded)), strict=True))
            values |= {ref: engine.unload(results[ref], spec.dtype).copy() for ref, spec in results_of(node)}
        if wanted:
            bounds = bound(operator(node.operator), {**operands_of(node, values), **node.attributes}, model=model)
            values |= {ref: _placed(bounds[node.outputs.index(ref)], spec, shares[ref]) for ref, spec in wanted}
    return values


def _placed(found: ResultBound | None, spec: TensorSpec, share: Floats) -> Tensor:
    assert found is not None  # as in `radii_of`
    exact, distance = np.asarray(found.value, np.float64), share * _finite(found)
    kind = numpy_dtype(spec.dtype)
    with np.errstate(invalid="ignore"):
        outer = (exact + distance).astype(kind)
        inner = np.nextafter(outer, exact.astype(kind))
        error = np.abs(outer - exact)
        is_wide = (error > np.abs(distance)) & (np.abs(inner - exact) < error)
    return Tensor.of(np.where(is_wide, inner, outer).astype(kind))


def _finite(found: ResultBound | None) -> Floats:
    assert found is not None  # a result that the node has is a result that its definition gives
    return np.where(np.isfinite(found.radius), found.radius, 0.0)
