"""How far a claimed result may differ from the exact one, calibrated by a committee member's own kernel.

The member computes the operator on the same operands. Its own error, joined with one rounding, is the error of an
honest kernel here. The claim may be `SAFETY` times as far off at each percentile, and never beyond the proven bound
(`tolerances.threshold`). Elements without a bound are compared directly with the member's own results.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from tallystick.disputes.evidence.drift import Leeway, deviation
from tallystick.graphs.derive import operand_of
from tallystick.graphs.engine import Engine
from tallystick.graphs.graph import Node, Ref
from tallystick.operators.balls.bound import ResultBound, bound
from tallystick.operators.precision import FORMATS, Precision
from tallystick.operators.registry import operator
from tallystick.tensors.spec import TensorSpec
from tallystick.tensors.tensor import Tensor
from tallystick.tolerances.threshold import Threshold, errors_of, rounding_errors

SAFETY: Final = 8.0


def within_own(node: Node, values: Mapping[Ref, Tensor], engine: Engine, precision: Precision) -> tuple[bool, str]:
    """Whether an honest kernel can give the claimed results of `node`, and a sentence about the first that it cannot.

    Raises `UnavailableError` if the engine or the reference does not compute the operator, `MalformedError` if the
    operator refuses its operands.
    """
    own = own_results(node, values, engine)
    meaning = operator(node.operator)
    arguments = {name: operand_of(operand, values) for name, operand in node.operands.items()}
    bounds = bound(meaning, {**arguments, **node.attributes}, precision)
    leeway = Leeway.of([node], {ref: TensorSpec.of(value) for ref, value in values.items()})
    for ref, limit in zip(node.outputs, bounds, strict=True):
        if ref is not None and limit is not None and not _holds(ref, values[ref], own[ref], limit, leeway):
            return False, f"{ref} ({node.operator}) is further off than {SAFETY:g} times the member's own kernel"
    return True, f"node {node.number} ({node.operator}) is what the member's own kernel gives"


def own_results(node: Node, values: Mapping[Ref, Tensor], engine: Engine) -> dict[Ref, Tensor]:
    """The results that an engine computes from the claimed operands, by reference."""
    loaded = {ref: engine.load(values[ref]) for ref in dict.fromkeys(node.refs)}

    def fetch(operand: object) -> object:
        if isinstance(operand, tuple):
            return tuple(None if each is None else loaded[each] for each in operand)
        return None if operand is None else loaded[str(operand)]

    results = engine.prepare(node)({name: fetch(operand) for name, operand in node.operands.items()})
    triples = zip(node.outputs, node.results, results, strict=True)
    return {
        ref: engine.unload(array, spec.dtype) for ref, spec, array in triples if ref is not None and spec is not None
    }


def _holds(ref: Ref, claimed: Tensor, own: Tensor, limit: ResultBound, leeway: Leeway) -> bool:
    if claimed.dtype not in FORMATS or not np.isfinite(limit.radius).all():
        return deviation(claimed, own, leeway, ref) <= 1.0
    unit, reference = FORMATS[claimed.dtype].unit, limit.value.astype(np.float64)
    ours = errors_of(own.values().astype(np.float64), reference, limit.radius, unit)
    calibrated = ours.joined(rounding_errors(reference, limit.radius, unit))
    theirs = errors_of(claimed.values().astype(np.float64), reference, limit.radius, unit)
    return Threshold(calibrated, SAFETY).judge(theirs).agrees
