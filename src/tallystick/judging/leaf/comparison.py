"""The claimed results of one operator beside what its claimed operands allow: all of their elements, or some.

The reference computes in float64 with NumPy alone. As in `audits.operators`, what moves data is exact, everything else
is within its proven bound, and within a calibrated threshold where the referee brings one. Elements about which the
bound says nothing pass only as what the reference computes; otherwise the operator is undecided.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tallystick.commitments.digests import Digest
from tallystick.errors import MalformedError, UnavailableError
from tallystick.graphs.derive import operand_of
from tallystick.graphs.graph import Node, Ref
from tallystick.judging.findings import Findings
from tallystick.judging.leaf.elements import bound_at
from tallystick.judging.leaf.parts import Places
from tallystick.judging.leaf.ties import Tie, find_tie
from tallystick.operators.balls.bound import ResultBound as OperatorBound
from tallystick.operators.balls.bound import bound
from tallystick.operators.definition import Exactness
from tallystick.operators.precision import FORMATS, UNSTATED, Format, Precision
from tallystick.operators.registry import operator
from tallystick.tensors.tensor import Tensor
from tallystick.tolerances.bound import Bound
from tallystick.tolerances.threshold import errors_of
from tallystick.tolerances.tolerance import Finding
from tallystick.transcripts.profile import Profile

CLOSE: Final = 64.0
"""So many roundings from the reference a result may be where its bound is infinite; farther, a committee decides."""
MISFITS: Final = (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError)
"""How a definition may fail in Python on operands or attributes that its author did not think of."""
Values = Mapping[Ref, Tensor]


@dataclass(frozen=True)
class JudgeSettings:
    """How results are weighed: the stated precision, perhaps a profile for the graph, and the margin of ties."""

    graph: Digest
    precision: Precision = UNSTATED
    profile: Profile | None = None
    bands: float = 2.0


@dataclass
class ComparedResults:
    """What weighing found besides its findings: results that are wrong, that are tied, and that nothing decides.

    `outside` says what left a calibrated threshold, `worst` which element of each wrong result is the worst, and
    `refused` why the definition does not take the claimed operands.
    """

    wrong: list[str] = field(default_factory=list)
    tied: list[str] = field(default_factory=list)
    undecided: list[str] = field(default_factory=list)
    outside: list[str] = field(default_factory=list)
    worst: list[tuple[Ref, int]] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    def joined(self, other: ComparedResults) -> ComparedResults:
        """Both together."""
        return ComparedResults(
            *(mine + theirs for mine, theirs in zip(vars(self).values(), vars(other).values(), strict=True))
        )


def compare_results(
    notes: Findings,
    node: Node,
    values: Values,
    how: JudgeSettings,
    places: Mapping[Ref, Places] | None = None,
    chunk: int = 0,
) -> ComparedResults:
    """Note a finding for each result of `node`; with `places` only for these elements of those, `chunk` at a time.

    `values` holds every value of the node, of the specs that it states.
    """
    found = ComparedResults()
    try:
        bounds = _bounds(node, values, how.precision, places, chunk)
    except MalformedError as error:
        found.refused.append(f"node {node.number} ({node.operator}) does not take its operands: {error}")
        return found
    except UnavailableError as error:
        found.undecided.append(f"node {node.number}: {error}")
        return found
    for ref, limit in bounds:
        where = np.arange(limit.value.size) if places is None else places[ref]
        _Result(node, values, how, ref, limit, where).weigh(notes, found)
    return found


@dataclass(frozen=True)
class _Result:
    """One result: flat `places` of it beside vectors of reference and radius."""

    node: Node
    values: Values
    how: JudgeSettings
    ref: Ref
    limit: OperatorBound
    places: Places

    @property
    def where(self) -> str:
        return f"{self.ref} ({self.node.operator})"

    def weigh(self, notes: Findings, found: ComparedResults) -> None:
        claimed = self.values[self.ref]
        if claimed.dtype in FORMATS:
            self._floats(notes, found, claimed)
        else:
            self._discrete(notes, found, claimed.array().reshape(-1)[self.places])

    def _floats(self, notes: Findings, found: ComparedResults, claimed: Tensor) -> None:
        numbers = claimed.values().reshape(-1)[self.places].astype(np.float64)
        limit = Bound(self.limit.value.astype(np.float64), self.limit.radius)
        finding, wrong = self._located(limit, numbers), limit.shares(numbers) > 1.0
        if operator(self.node.operator).exactness is Exactness.MOVES:
            turned = (limit.reference == 0) & (limit.radius == 0) & (np.signbit(numbers) != np.signbit(limit.reference))
            if turned.any():
                finding = replace(finding, distance=np.inf, detail=f"{int(turned.sum())} zeros of the other sign")
            wrong |= turned
        doubtful = np.isinf(self.limit.radius) & ~_is_close(numbers, limit.reference, FORMATS[claimed.dtype])
        if not limit.decides:
            found.undecided.append(f"{self.where}: no bound holds for any of its elements")
        elif self._decided(notes, found, finding, wrong, doubtful, limit.shares(numbers)) and limit.radius.any():
            self._threshold(notes, found, limit, numbers, claimed.dtype)

    def _discrete(self, notes: Findings, found: ComparedResults, claimed: npt.NDArray[Any]) -> None:
        differs, known = claimed != self.limit.value, np.isfinite(self.limit.radius)
        count = int(np.count_nonzero(differs & known))
        detail = f"{count} of {differs.size} elements differ" if count else ""
        finding = Finding(float(count), 0.0, detail=detail)
        self._decided(notes, found, finding, differs & known, differs & ~known, differs.astype(np.float64))

    def _decided(
        self,
        notes: Findings,
        found: ComparedResults,
        finding: Finding,
        wrong: npt.NDArray[np.bool_],
        doubtful: npt.NDArray[np.bool_],
        shares: npt.NDArray[np.float64],
    ) -> bool:
        """Note the finding and say what follows from it; whether it is that the result holds."""
        tie = find_tie(self.node, self.values, self.ref, self.places[wrong | doubtful])
        if tie is not None:
            self._tied(notes, found, tie)
            return False
        notes.note(finding, "operator", self.where)
        if wrong.any():
            self._is_wrong(found, finding, int(self.places[np.argmax(np.where(wrong, shares, -1.0))]))
        elif doubtful.any():
            count = int(np.count_nonzero(doubtful))
            found.undecided.append(f"{self.where}: {count} elements differ about which the bound says nothing")
        return not (wrong | doubtful).any()

    def _tied(self, notes: Findings, found: ComparedResults, tie: Tie) -> None:
        finding = Finding(tie.bands, self.how.bands, "tie", "", f"{tie.detail}, in bands")
        notes.note(finding, "tie", self.where, advisory=finding.agrees)
        if finding.agrees:
            found.tied.append(_sentence(self.where, finding))
        else:
            self._is_wrong(found, finding, tie.place)

    def _is_wrong(self, found: ComparedResults, finding: Finding, worst: int) -> None:
        found.wrong.append(_sentence(self.where, finding))
        found.worst.append((self.ref, worst))

    def _located(self, limit: Bound, numbers: npt.NDArray[np.float64]) -> Finding:
        """The worst element by its index in the result."""
        finding, shape = limit.compare(numbers), self.values[self.ref].shape
        if not numbers.size:
            return finding
        worst = self.places[int(np.argmax(limit.shares(numbers)))]
        return replace(finding, where=f"element [{','.join(str(int(i)) for i in np.unravel_index(worst, shape))}]")

    def _threshold(
        self, notes: Findings, found: ComparedResults, limit: Bound, numbers: npt.NDArray[np.float64], dtype: str
    ) -> None:
        if self.how.profile is None:
            return
        name = self.ref.removeprefix("n")
        calibrated = self.how.profile.threshold(self.how.graph, name, self.node.operator, dtype)
        if calibrated is None:
            found.undecided.append(f"{self.where}: the profile has no threshold for it in {dtype}")
            return
        finding = calibrated.judge(errors_of(numbers, limit.reference, limit.radius, FORMATS[dtype].unit))
        notes.note(finding, "operator threshold", self.where, advisory=not finding.agrees)
        if not finding.agrees:
            found.outside.append(_sentence(self.where, finding))


def _bounds(
    node: Node, values: Values, precision: Precision, places: Mapping[Ref, Places] | None, chunk: int
) -> Iterator[tuple[Ref, OperatorBound]]:
    """Reference and radius of each result as vectors.

    Raises `MalformedError` where the definition refuses the operands, such as an index out of range, `UnavailableError`
    where it fails over them, which is a mistake of its own.
    """
    meaning = operator(node.operator)
    arguments = {name: operand_of(operand, values) for name, operand in node.operands.items()} | dict(node.attributes)
    try:
        if places is None:
            found: Sequence[OperatorBound | None] = bound(meaning, arguments, precision)
        else:
            wanted = [None if ref is None else places.get(ref) for ref in node.outputs]
            found = bound_at(meaning, arguments, wanted, precision, chunk=chunk)
    except MISFITS as error:
        raise UnavailableError(f"does not fit its operands ({type(error).__name__}: {str(error)[:80]})") from None
    pairs = zip(node.outputs, found, strict=True)
    return ((ref, _flat(limit)) for ref, limit in pairs if ref is not None and limit is not None)


def _flat(limit: OperatorBound) -> OperatorBound:
    return replace(limit, value=np.asarray(limit.value).reshape(-1), radius=np.asarray(limit.radius).reshape(-1))


def _is_close(x: npt.NDArray[np.float64], exact: npt.NDArray[np.float64], form: Format) -> npt.NDArray[np.bool_]:
    """Whether a result is what one rounding, or a few, make of the exact one."""
    y = np.where(np.abs(exact) > form.largest, np.copysign(np.inf, exact), exact)
    with np.errstate(all="ignore"):
        near = np.isfinite(y) & (np.abs(x - y) <= CLOSE * form.unit * np.abs(y))
    return np.asarray(near | (x == y) | (np.isnan(x) & np.isnan(y)))


def _sentence(where: str, finding: Finding) -> str:
    place = f" at {finding.where}" if finding.where else ""
    detail = f" ({finding.detail})" if finding.detail else ""
    return f"{where}: {finding.distance:.4g} of {finding.allowed:.4g} allowed{place}{detail}"
