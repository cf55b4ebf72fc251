"""Judges one operator: its claimed results against what its claimed operands allow.

Operands are the claimed ones, so that errors do not add up from operator to operator. What moves data or rounds nothing
has to be exact. Otherwise a result lies within the operator's proven bound, or within a calibrated threshold where the
verifier brings a profile that knows the operator.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tallystick.commitments.digests import Digest
from tallystick.errors import MalformedError
from tallystick.graphs.derive import Deriver, operand_of
from tallystick.graphs.graph import Node, Ref
from tallystick.judging.findings import DIFFERS, Findings
from tallystick.operators.balls.bound import ResultBound as OperatorBound
from tallystick.operators.balls.bound import bound
from tallystick.operators.definition import Exactness, Operator
from tallystick.operators.engines import outside
from tallystick.operators.precision import FORMATS, UNSTATED, Precision
from tallystick.operators.registry import operator
from tallystick.operators.rounding import DETERMINISTIC, Model
from tallystick.tensors.spec import TensorSpec
from tallystick.tensors.tensor import Tensor
from tallystick.tolerances.bound import Bound
from tallystick.tolerances.threshold import errors_of
from tallystick.tolerances.tolerance import Finding
from tallystick.transcripts.profile import Profile

Values = Mapping[Ref, Tensor]


@dataclass(frozen=True)
class OperatorJudge:
    """How operators of one graph are judged: stated precision, model of rounding, and perhaps a profile.

    `engine` is what the prover says it computed with: where that is known to leave bounds, nothing is held against it.
    """

    graph: Digest
    precision: Precision = UNSTATED
    profile: Profile | None = None
    model: Model = DETERMINISTIC
    engine: str | None = None

    def judge(self, notes: Findings, node: Node, values: Values) -> str:
        """Judge the results of `node`; returns what could not be checked, or nothing.

        `values` holds tensors of the specs that the graph states. Raises `MalformedError` where the operands hold
        what the operator does not take, an index out of range for example.
        """
        missing = next((ref for ref in (*node.refs, *filter(None, node.outputs)) if ref not in values), None)
        if missing is not None:
            return f"node {node.number}: {missing} is not opened"
        if not _is_well_typed(node, values):
            notes.note(DIFFERS, "operator types", f"node {node.number}", "values of other dtypes or shapes than it has")
            return ""
        meaning = operator(node.operator)
        arguments = {name: operand_of(operand, values) for name, operand in node.operands.items()}
        bounds = bound(meaning, {**arguments, **node.attributes}, self.precision, self.model)
        pairs = zip(node.outputs, bounds, strict=True)
        lines = [self._result(notes, node, meaning, ref, found, values) for ref, found in pairs if ref and found]
        return "; ".join(filter(None, lines))

    def _result(
        self, notes: Findings, node: Node, meaning: Operator, ref: Ref, found: OperatorBound, values: Values
    ) -> str:
        claimed, where = values[ref], f"{ref} ({node.operator})"
        if not claimed.dtype.startswith(("F", "BF")):
            notes.note(_same_numbers(claimed.array(), found.value), "operator", where)
            return ""
        numbers = claimed.values().astype(np.float64)
        limit = Bound(found.value.astype(np.float64), found.radius)
        finding = limit.compare(numbers)
        if finding.agrees and meaning.exactness is Exactness.MOVES:
            finding = _same_signs(numbers, limit, finding)
        if not limit.decides:
            return f"{where}: no bound holds for any of its elements"
        known = None if finding.agrees else outside(self.engine, node.operator, claimed.dtype)
        if known is not None:
            return f"{where}: {finding.distance:.3g} of its bound, and {known}"
        notes.note(finding, "operator", where)
        if finding.agrees and self.profile is not None and limit.radius.any():
            return self._threshold(notes, node, ref, limit, claimed)
        return ""

    def _threshold(self, notes: Findings, node: Node, ref: Ref, limit: Bound, claimed: Tensor) -> str:
        assert self.profile is not None  # asked by `_result`
        calibrated = self.profile.threshold(self.graph, ref.removeprefix("n"), node.operator, claimed.dtype)
        if calibrated is None:
            return f"{ref} ({node.operator}): the profile has no threshold for it in {claimed.dtype}"
        unit = FORMATS[claimed.dtype].unit
        errors = errors_of(claimed.values(), limit.reference, limit.radius, unit)
        notes.note(calibrated.judge(errors), "operator threshold", f"{ref} ({node.operator})")
        return ""


def _is_well_typed(node: Node, values: Values) -> bool:
    """Whether the operands give results of the stated specs, and the claimed results have them."""
    specs = {ref: TensorSpec.of(values[ref]) for ref in (*node.refs, *filter(None, node.outputs))}
    claimed = tuple(None if ref is None else specs[ref] for ref in node.outputs)
    try:
        return Deriver()(node, specs).results == node.results == claimed
    except MalformedError:
        return False


def _same_numbers(claimed: npt.NDArray[Any], reference: npt.NDArray[Any]) -> Finding:
    """Integers and truth values, element by element."""
    wrong = claimed != reference
    count = int(np.count_nonzero(wrong))
    return Finding(float(count), 0.0, detail=f"{count} of {wrong.size} elements differ" if count else "")


def _same_signs(claimed: npt.NDArray[np.float64], limit: Bound, finding: Finding) -> Finding:
    """What is moved keeps the signs of its zeros too."""
    zero = (limit.reference == 0) & (limit.radius == 0)
    turned = int(np.count_nonzero(np.signbit(claimed[zero]) != np.signbit(limit.reference[zero])))
    return replace(finding, distance=np.inf, detail=f"{turned} zeros of the other sign") if turned else finding
