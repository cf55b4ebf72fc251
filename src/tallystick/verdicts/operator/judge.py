"""Judges one operator: compares its claimed results with the bounds that follow from its claimed operands."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from tallystick.core.digests import Digest
from tallystick.core.errors import MalformedError, UnavailableError
from tallystick.core.tensors import Tensor, TensorSpec
from tallystick.programs.admission import Derived, Deriver
from tallystick.programs.graph import Node, Ref, operands_of
from tallystick.programs.operators.balls.ball import Ball
from tallystick.programs.operators.balls.bound import Argument, Balls, ResultBound, bound
from tallystick.programs.operators.definition import Exactness, Operator, operator
from tallystick.programs.operators.precision import FORMATS, PLAIN, UNSTATED, Format, Precision
from tallystick.programs.operators.rounding import DETERMINISTIC, Model
from tallystick.verdicts.bounds import Bound, errors_of
from tallystick.verdicts.operator.lazy_algebra import LazyAlgebra, LazyTensor, Places, row_and_column
from tallystick.verdicts.tolerance import Finding

if TYPE_CHECKING:
    from tallystick.verdicts.profiles import Profile


# The bounds of a few elements of an operator's results.
#
# `bound` computes a whole result. Here a definition is read over lazy tensors: only the named elements are computed,
# from only those elements of the operands that they depend on.


def bound_at(
    operator: Operator,
    arguments: Mapping[str, Argument],
    places: Sequence[Places | None],
    precision: Precision = PLAIN,
    model: Model = DETERMINISTIC,
    chunk: int = 0,
) -> tuple[ResultBound | None, ...]:
    """The bounds at flat `places`, I64[n] for each result or `None`, as vectors; computes `chunk` elements at a time.

    Values and radii equal those of `bound` except for the order in which float64 sums are formed. Raises
    `MalformedError` if the arguments do not fit together.
    """

    def define(balls: Balls, **given: Any) -> tuple[Ball | None, ...]:
        lazy = LazyAlgebra(balls)
        results = operator.read(lazy, {name: _loaded(lazy, value) for name, value in given.items()})
        pairs = zip(results, places, strict=True)
        return tuple(
            None if tensor is None or where is None else _joined(balls, tensor, where, chunk) for tensor, where in pairs
        )

    return bound(replace(operator, define=define), arguments, precision, model)


def _joined(balls: Balls, tensor: LazyTensor, places: Places, chunk: int) -> Ball:
    pieces = np.split(places, range(chunk, len(places), chunk)) if chunk else [places]
    return balls.concat([tensor.at(piece) for piece in pieces], 0)


def _loaded(lazy: LazyAlgebra, value: Any) -> Any:
    if isinstance(value, Ball):
        return lazy.load(value)
    if isinstance(value, tuple) and any(isinstance(part, Ball) for part in value):
        return tuple(_loaded(lazy, part) for part in value)
    return value


# Compares the claimed results of one operator with the bounds that follow from its claimed operands.
#
# The claimed operands are used, so errors do not add up from operator to operator. The reference computes in float64
# with NumPy alone. The results of an operator that moves data must be exact, including the signs of zeros; integers and
# booleans must be equal. Every other result must be within the operator's proven bound, and within a calibrated
# threshold if the verifier has a profile. Openings, leaf bundles and committee members all use this judge; each draws
# its own conclusions from the comparison.

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
    arguments = operands_of(node, values) | dict(node.attributes)
    try:
        if places is None:
            bounds = bound(meaning, arguments, precision, model)
        else:
            wanted = [None if ref is None else places.get(ref) for ref in node.outputs]
            bounds = bound_at(meaning, arguments, wanted, precision, model, chunk)
    except DEFINITION_ERRORS as error:
        raise UnavailableError(f"does not fit its operands ({type(error).__name__}: {str(error)[:80]})") from None
    pairs = zip(node.outputs, bounds, strict=True)
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
    count = int(np.count_nonzero(differs & known))
    finding = Finding(float(count), 0.0, detail=f"{count} of {differs.size} elements differ" if count else "")
    shares, given = differs.astype(np.float64), numbers.astype(np.float64)
    return ComparedResult(node, ref, claimed.dtype, where, finding, differs & known, differs & ~known, shares, given)


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


# Discrete results that depend on rounding: the index of the largest element, and the order of elements.
#
# Two numbers within a few roundings of each other may come in either order on honest devices. A claimed index that
# differs from the reference's is a *near tie* if the two numbers are within a margin, measured in *bands*: the unit
# roundoff of their dtype times the larger magnitude. Inside the margin neither party is wrong. Integers have no margin:
# only equal integers are tied.
#
# Comparisons and stable sorts have no ties, because with single operators opened the compared bits are known. Devices
# differ there only in NaN, zeros of either sign, and subnormal numbers, which some devices treat as 0.

Numbers: TypeAlias = npt.NDArray[Any]


@dataclass(frozen=True)
class NearTie:
    """The largest distance in bands between a claimed choice and the reference's; infinite if the claim is wrong.

    `place` is the flat place of the choice with that distance.
    """

    bands: float
    detail: str
    place: int


def find_near_tie(node: Node, values: Values, ref: Ref, places: Places) -> NearTie | None:
    """The tie behind results of `ref` that differ from the reference's at flat `places`; `None` if nothing is chosen.

    A claim is wrong outright, at an infinite distance, if an index is out of range, if it repeats in a row in which
    each index occurs once, or if the value beside it is not that of the element.
    """
    choice = _CHOICES.get(node.operator)
    if choice is None or not places.size:
        return None
    apart = choice(node, values, ref, places)
    detail = f"{places.size} of {values[ref].array().size} choices differ"
    return NearTie(float(apart.max()), detail, int(places[np.argmax(apart)]))


def bands_between(x: Numbers, y: Numbers, dtype: str) -> npt.NDArray[np.float64]:
    """|x − y| in bands of their dtype; 0 for equal numbers and for two NaNs, infinite for integers that differ."""
    same = _same(x, y)
    if dtype not in FORMATS:
        return np.where(same, 0.0, math.inf)
    a, b = x.astype(np.float64), y.astype(np.float64)
    with np.errstate(all="ignore"):
        band = np.maximum(FORMATS[dtype].unit * np.maximum(np.abs(a), np.abs(b)), FORMATS[dtype].half_step)
        apart = np.abs(a - b) / band
    return np.where(same, 0.0, np.where(np.isfinite(apart), apart, math.inf))


def _extreme(node: Node, values: Values, _: Ref, places: Places) -> Margins:
    """The distances for a claimed index of the largest or smallest number, or for that number itself."""
    x, axis = _operand(node, values)
    lines = _lines(x.values(), axis)[places]
    find = np.max if "max" in node.operator else np.min  # NaN where any is
    return _judged(node, values, places, lines, np.arange(len(places)), find(lines, axis=1), x.dtype)


def _order(node: Node, values: Values, ref: Ref, places: Places) -> Margins:
    """The distances for indices and values in ascending or descending order, or for the first few of them."""
    x, axis = _operand(node, values)
    shape = values[ref].shape or (1,)
    row, column = row_and_column(places, shape, axis)
    rows, which = np.unique(row, return_inverse=True)
    lines = _lines(x.values(), axis)[rows]
    ordered = np.sort(lines, axis=1)
    if node.attributes.get("largest", node.attributes.get("descending", False)):
        ordered = ordered[:, ::-1]
    apart = _judged(node, values, places, lines, which, ordered[which, column], x.dtype)
    if node.attributes.get("stable"):
        apart = np.where(_is_vague(ordered, x.dtype)[which, column], apart, math.inf)
    index = _results(node, values)[1]
    if index is None:
        return apart
    named = np.sort(_lines(index.reshape(shape), axis)[rows], axis=1)
    return np.where((named[:, 1:] == named[:, :-1]).any(axis=1)[which], math.inf, apart)


def _is_vague(lines: Numbers, dtype: str) -> npt.NDArray[np.bool_]:
    """Elements that devices may order differently: NaN, and zeros or subnormal numbers if a row has different ones."""
    if dtype not in FORMATS:
        return np.zeros(lines.shape, np.bool_)
    small = np.abs(lines) < FORMATS[dtype].smallest_normal
    signs, low = np.signbit(lines), np.where(small, lines, np.inf).min(axis=1, initial=np.inf)
    high = np.where(small, lines, -np.inf).max(axis=1, initial=-np.inf)
    is_mixed = (low != high) | ((small & signs).any(axis=1) & (small & ~signs).any(axis=1))
    return np.asarray(np.isnan(lines) | (small & is_mixed[:, None]))


Margins: TypeAlias = npt.NDArray[np.float64]
Choice: TypeAlias = Callable[[Node, Values, Ref, Places], Margins]
_CHOICES: Final[Mapping[str, Choice]] = {
    **dict.fromkeys(("aten.argmax.default", "aten.argmin.default", "aten.max.dim", "aten.min.dim"), _extreme),
    **dict.fromkeys(("aten.sort.default", "aten.sort.stable", "aten.argsort.default", "aten.argsort.stable"), _order),
    "aten.topk.default": _order,
}


def _judged(
    node: Node, values: Values, places: Places, lines: Numbers, which: Places, best: Numbers, dtype: str
) -> Margins:
    """How far the number at the claimed index is from the `best` one; `which` is the row of `lines` of each place."""
    stated, index = _results(node, values)
    if index is None:
        return np.full(places.size, math.inf)
    claimed = index.reshape(-1)[places].astype(np.int64)
    outside = (claimed < 0) | (claimed >= lines.shape[1])
    chosen = lines[which, np.where(outside, 0, claimed)]
    if stated is not None:
        outside |= ~_same(stated.reshape(-1)[places], chosen)
    return np.where(outside, math.inf, bands_between(chosen, best, dtype))


def _operand(node: Node, values: Values) -> tuple[Tensor, int]:
    """The tensor that is chosen from, and the axis; without an axis, all elements in one row."""
    x, dim = values[str(node.operands["self"])], node.attributes.get("dim", -1)
    if dim is None or not x.shape:
        return Tensor(x.dtype, (x.array().size,), x.data), 0
    assert isinstance(dim, int)  # the node was read through its schema
    return x, dim % len(x.shape)


def _results(node: Node, values: Values) -> tuple[Numbers | None, Numbers | None]:
    """The claimed numbers, if the operator gives them, and the claimed indices."""
    given = [None if ref is None else values[ref].values() for ref in node.outputs]
    return (None, given[0]) if len(given) == 1 else (given[0], given[1])


def _lines(array: Numbers, axis: int) -> Numbers:
    """The rows along an axis, [rows, side], in the row-major order of the other axes."""
    return np.moveaxis(array, axis, -1).reshape(-1, array.shape[axis])


def _same(x: Numbers, y: Numbers) -> npt.NDArray[np.bool_]:
    return np.asarray((x == y) | ((x != x) & (y != y)))
