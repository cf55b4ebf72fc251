"""Compares the claimed results of one operator with the bounds that follow from its claimed operands.

The claimed operands are used, so errors do not add up from operator to operator. The reference computes in float64 with
NumPy alone. The results of an operator that moves data must be exact, including the signs of zeros; integers and
booleans must be equal. Every other result must be within the operator's proven bound, and within a calibrated threshold
if the verifier has a profile. Openings, leaf bundles and committee members all use this judge; each draws its own
conclusions from the comparison.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from tallystick.commitments.digests import Digest
from tallystick.errors import MalformedError, UnavailableError
from tallystick.graphs.derive import Derived, Deriver, operand_of
from tallystick.graphs.graph import Node, Ref
from tallystick.judging.operator.places import Places
from tallystick.operators.balls.bound import ResultBound, bound
from tallystick.operators.definition import Exactness
from tallystick.operators.precision import FORMATS, UNSTATED, Format, Precision
from tallystick.operators.registry import operator
from tallystick.operators.rounding import DETERMINISTIC, Model
from tallystick.tensors.spec import TensorSpec
from tallystick.tensors.tensor import Tensor
from tallystick.tolerances.bound import Bound
from tallystick.tolerances.tolerance import Finding

if TYPE_CHECKING:
    from tallystick.transcripts.profile import Profile

Values: TypeAlias = Mapping[Ref, Tensor]
Flags: TypeAlias = npt.NDArray[np.bool_]
Floats: TypeAlias = npt.NDArray[np.float64]
CLOSE: Final = 64.0
"""With an infinite bound, a result this many roundings from the reference passes; one farther away is undecided."""
DEFINITION_ERRORS: Final = (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError)
"""Python's exceptions that a definition may raise on operands or attributes that its author did not expect."""


@dataclass(frozen=True)
class OperatorJudge:
    """The settings for judging operators of one graph: stated precision, profile if any, and model of rounding."""

    graph: Digest
    precision: Precision = UNSTATED
    profile: Profile | None = None
    model: Model = DETERMINISTIC

    def compare(
        self, node: Node, values: Values, places: Mapping[Ref, Places] | None = None, chunk: int = 0
    ) -> tuple[ComparedResult, ...]:
        """Compare each claimed result of `node` with its bound; with `places` only these elements, `chunk` at a time.

        `values` holds every value of the node, with the specs that the node states.

        Raises:
            MalformedError: the operator does not accept its operands, for example an index out of range.
            UnavailableError: the definition fails on the operands.
        """
        limits = result_bounds(node, values, self.precision, self.model, places, chunk)
        return tuple(
            compare_result(node, ref, values[ref], limit, None if places is None else places[ref])
            for ref, limit in limits.items()
        )

    def threshold(self, result: ComparedResult) -> Finding | None:
        """Compare a result with its calibrated threshold; `None` without a profile, or if nothing was rounded.

        Raises `UnavailableError` if the profile has no threshold for the operator.
        """
        limit, dtype = result.limit, result.dtype
        if self.profile is None or limit is None or not limit.radius.any():
            return None
        from tallystick.tolerances.threshold import errors_of

        name = result.ref.removeprefix("n")
        calibrated = self.profile.threshold(self.graph, name, result.node.operator, dtype)
        if calibrated is None:
            raise UnavailableError(f"{result.name}: the profile has no threshold for it in {dtype}")
        return calibrated.judge(errors_of(result.numbers, limit.reference, limit.radius, FORMATS[dtype].unit))


@dataclass(frozen=True)
class ComparedResult:
    """One claimed result compared with its bound at N of its elements, at flat `places` I64[N].

    `finding` names the worst element. `wrong` BOOL[N] marks elements beyond the bound; `unbounded` BOOL[N] marks
    elements with an infinite radius that are not what the reference computes either. `shares` F64[N] are distances in
    radii, `numbers` F64[N] the claimed values. Integers and booleans have no `limit`, and a share of 1 if they differ.
    """

    node: Node
    ref: Ref
    dtype: str
    places: Places
    finding: Finding
    wrong: Flags
    unbounded: Flags
    shares: Floats
    numbers: Floats
    limit: Bound | None = None

    @property
    def name(self) -> str:
        """The result and its operator."""
        return f"{self.ref} ({self.node.operator})"

    @property
    def undecided(self) -> str:
        """The message for a result without a bound for any element; empty for other results."""
        has_bound = self.limit is None or self.limit.decides
        return "" if has_bound else f"{self.name}: no bound holds for any of its elements"

    @property
    def worst(self) -> int:
        """The flat place of the wrong element that is farthest beyond its bound."""
        return int(self.places[np.argmax(np.where(self.wrong, self.shares, -1.0))])


def derive_results(node: Node, values: Values) -> Derived:
    """The specs of the results of `node`, derived from those of its operands, and the costs.

    Raises `MalformedError` unless the operands fit and the claimed results have the derived specs.
    """
    specs = {ref: TensorSpec.of(values[ref]) for ref in (*node.refs, *filter(None, node.outputs))}
    derived = Deriver()(node, specs)
    claimed = tuple(None if ref is None else specs[ref] for ref in node.outputs)
    if not derived.results == node.results == claimed:
        raise MalformedError(f"node {node.number}: its values are of other dtypes or shapes than it gives")
    return derived


def result_bounds(
    node: Node,
    values: Values,
    precision: Precision,
    model: Model = DETERMINISTIC,
    places: Mapping[Ref, Places] | None = None,
    chunk: int = 0,
) -> dict[Ref, ResultBound]:
    """Reference and radius of each result, in its shape; with `places` as vectors of these elements.

    Raises what `OperatorJudge.compare` raises.
    """
    meaning = operator(node.operator)
    arguments = {name: operand_of(operand, values) for name, operand in node.operands.items()} | dict(node.attributes)
    try:
        if places is None:
            found = bound(meaning, arguments, precision, model)
        else:
            from tallystick.judging.operator.elements import bound_at

            wanted = [None if ref is None else places.get(ref) for ref in node.outputs]
            found = bound_at(meaning, arguments, wanted, precision, model, chunk)
    except DEFINITION_ERRORS as error:
        raise UnavailableError(f"does not fit its operands ({type(error).__name__}: {str(error)[:80]})") from None
    pairs = zip(node.outputs, found, strict=True)
    return {ref: limit for ref, limit in pairs if ref is not None and limit is not None}


def compare_result(
    node: Node, ref: Ref, claimed: Tensor, limit: ResultBound, places: Places | None = None
) -> ComparedResult:
    """Compare a claimed result, or its elements at flat `places`, with the reference and radius of these elements."""
    where = np.arange(limit.value.size) if places is None else places
    value, radius = np.asarray(limit.value).reshape(-1), np.asarray(limit.radius).reshape(-1)
    if claimed.dtype in FORMATS:
        return _compare_floats(node, ref, claimed, Bound(value.astype(np.float64), radius), where)
    numbers = claimed.array().reshape(-1)[where]
    differs, known = numbers != value, np.isfinite(radius)
    shares, finding = differs.astype(np.float64), count_differing(differs & known)
    given = numbers.astype(np.float64)
    return ComparedResult(node, ref, claimed.dtype, where, finding, differs & known, differs & ~known, shares, given)


def count_differing(differs: Flags) -> Finding:
    """The finding for values that must be equal: the number of elements that differ."""
    count = int(np.count_nonzero(differs))
    return Finding(float(count), 0.0, detail=f"{count} of {differs.size} elements differ" if count else "")


def _compare_floats(node: Node, ref: Ref, claimed: Tensor, limit: Bound, places: Places) -> ComparedResult:
    numbers = claimed.values().reshape(-1)[places].astype(np.float64)
    finding, shares = limit.compare(numbers), limit.shares(numbers)
    wrong = shares > 1.0
    if operator(node.operator).exactness is Exactness.MOVES:  # moved elements keep the signs of their zeros
        is_zero = (limit.reference == 0) & (limit.radius == 0)
        turned = is_zero & (np.signbit(numbers) != np.signbit(limit.reference))
        if finding.agrees and turned.any():
            finding = replace(finding, distance=np.inf, detail=f"{int(turned.sum())} zeros of the other sign")
        wrong = wrong | turned
    if numbers.size:
        worst = int(places[np.argmax(np.where(wrong, shares, -1.0) if wrong.any() else shares)])
        index = np.unravel_index(worst, claimed.shape)
        finding = replace(finding, where=f"element [{','.join(str(int(i)) for i in index)}]")
    unbounded = np.isinf(limit.radius) & ~_is_close(numbers, limit.reference, FORMATS[claimed.dtype])
    return ComparedResult(node, ref, claimed.dtype, places, finding, wrong, unbounded, shares, numbers, limit)


def _is_close(x: Floats, exact: Floats, form: Format) -> Flags:
    """Whether a result is within a few roundings of the exact one."""
    y = np.where(np.abs(exact) > form.largest, np.copysign(np.inf, exact), exact)
    with np.errstate(all="ignore"):
        near = np.isfinite(y) & (np.abs(x - y) <= CLOSE * form.unit * np.abs(y))
    return np.asarray(near | (x == y) | (np.isnan(x) & np.isnan(y)))
