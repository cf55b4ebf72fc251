"""The ruling at the leaf: who is at fault over one opened operator. Anybody can repeat it offline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Final

import numpy as np
import numpy.typing as npt

from tallystick.core.canonical_json import encode
from tallystick.core.digests import digest, digest_bytes
from tallystick.core.errors import MalformedError, ProofError, UnavailableError
from tallystick.core.tensors import Tensor
from tallystick.formats.records import StepRecord
from tallystick.programs.admission import Derived
from tallystick.programs.graph import Node, Ref
from tallystick.programs.operators.precision import FORMATS
from tallystick.programs.random_words import words
from tallystick.verdicts.leaf.bundle import LeafBundle
from tallystick.verdicts.leaf.freivalds import check_product, places_of_largest_errors, product_of, signs_of
from tallystick.verdicts.leaf.request import Ground, LeafRequest, Ruling, RulingWork, check_bundle, small_values
from tallystick.verdicts.operator.judge import ComparedResult, OperatorJudge, Values, derive_results, find_near_tie
from tallystick.verdicts.operator.lazy_algebra import Places
from tallystick.verdicts.tolerance import Finding
from tallystick.verdicts.verdict import Fault, Findings, Verdict, VerdictCoverage

# Selects elements of a result by a nonce.


def chosen_places(nonce: bytes, subject: str, size: int, count: int, named: int | None = None) -> Places:
    """At most `count` of `size` places, drawn by the words of a nonce, and the `named` one; ascending.

    If there are at most `count` elements, all are returned. Draws are with replacement, so a place drawn twice counts
    once. The key is the digest of nonce and `subject`: a prover that committed to the elements before the nonce was
    known cannot predict the places.
    """
    if size <= count:
        return np.arange(size)
    key = digest_bytes(digest("draw", encode({"nonce": nonce.hex(), "subject": subject})))
    drawn = (words(key, count) % np.uint64(size)).astype(np.int64)
    extra = [] if named is None else [named]
    return np.unique(np.concatenate([drawn, np.array(extra, np.int64)]))


# Finds the elements of a claimed result that differ most from the result of the judge's own kernel.
#
# A deviation only selects elements to judge; it is never itself a reason. A prover may hide one wrong element among
# millions, and a few random draws miss it. So the elements that deviate most are judged exactly. Three measures are
# used: the absolute distance, the distance relative to the element's size, and the distance relative to its size and
# the scale of the elements around it. An element far beyond its bound ranks high in one of them, unless the prover
# moved many others, with wider bounds, almost to their bounds.

BY_MEASURE: Final = 32
"""The number of elements that are judged for each measure."""
DISCRETE_MAX: Final = 1024
"""The number of differing integers and booleans that are judged."""
SHORTEST: Final = 8
"""The shortest axis along which a root mean square is used as a scale."""
Floats = npt.NDArray[np.float64]


def deviating_places(claimed: Tensor, own: Tensor, nonce: bytes) -> Places:
    """Flat places, ascending, of the elements of a claimed result that differ most from `own`, of equal spec.

    Integers and booleans have no distance: the nonce selects among those that differ.
    """
    if not own.array().size:
        return np.empty(0, np.int64)
    if claimed.dtype not in FORMATS:
        differing = np.flatnonzero(claimed.array().reshape(-1) != own.array().reshape(-1))
        return differing[chosen_places(nonce, "suspects", differing.size, DISCRETE_MAX)]
    theirs, ours = claimed.values().astype(np.float64), own.values().astype(np.float64)
    least = FORMATS[claimed.dtype].smallest_normal
    distance, size = _distance(theirs, ours), np.where(np.isfinite(ours), np.abs(ours), 0.0)
    measures = (distance, distance / np.maximum(size, least), distance / np.maximum(size + _scale(size), least))
    return np.unique(np.concatenate([_largest(measure.reshape(-1)) for measure in measures]))


def _distance(x: Floats, y: Floats) -> Floats:
    """|x − y|; infinite if NaNs or infinities differ, and a small number for zeros of different signs."""
    with np.errstate(all="ignore"):
        same = (x == y) | (np.isnan(x) & np.isnan(y))
        off = np.where(same, 0.0, np.nan_to_num(np.abs(x - y), nan=np.inf, posinf=np.inf))
    turned = (x == 0) & (y == 0) & (np.signbit(x) != np.signbit(y))
    return np.where(turned, np.finfo(np.float64).tiny, off)


def _scale(size: Floats) -> Floats:
    """The smallest root mean square along the axes through each element; that of all elements if axes are short."""
    largest = float(size.max(initial=0.0)) or 1.0
    squares = np.square(size / largest)
    axes = [axis for axis, side in enumerate(size.shape) if side >= SHORTEST]
    means = [squares.mean(axis=axis, keepdims=True) for axis in axes] or [squares.mean(keepdims=True)]
    return np.asarray(np.sqrt(reduce(np.minimum, means)) * largest, np.float64)


def _largest(measure: Floats) -> Places:
    """The places of the few largest elements above 0."""
    few = min(BY_MEASURE, measure.size)
    places = np.argpartition(measure, measure.size - few)[measure.size - few :]
    return np.asarray(places[measure[places] > 0], np.int64)


# What a referee concludes when it compares the results of one operator with their bounds.
#
# A result beyond its bound is wrong, except for a choice between numbers that honest devices may order either way. A
# dispute must end with a loser, so a referee does not read the table of engines that are known to exceed bounds
# (`programs/operators/precision.py`). An element with an infinite bound passes only if it is what the reference
# computes; otherwise the dispute is undecided.


@dataclass
class Conclusions:
    """Results that are wrong, tied or undecided, one line each.

    `outside` lists results beyond a calibrated threshold, `worst` the worst element of each wrong result, and `refused`
    the reasons why the definition does not accept the claimed operands.
    """

    wrong: list[str] = field(default_factory=list)
    tied: list[str] = field(default_factory=list)
    undecided: list[str] = field(default_factory=list)
    outside: list[str] = field(default_factory=list)
    worst: list[tuple[Ref, int]] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)


def conclude(
    notes: Findings,
    judge: OperatorJudge,
    node: Node,
    values: Values,
    margin: float,
    places: Mapping[Ref, Places] | None = None,
    chunk: int = 0,
) -> Conclusions:
    """Note a finding for each result of `node`, and return the conclusions; `places` selects the elements to compare.

    `values` holds every value of the node, with the specs that the node states. Choices within `margin` roundings are
    tied.
    """
    conclusions = Conclusions()
    try:
        compared = judge.compare(node, values, places, chunk)
    except MalformedError as error:
        conclusions.refused.append(f"node {node.number} ({node.operator}) does not take its operands: {error}")
        return conclusions
    except UnavailableError as error:
        conclusions.undecided.append(f"node {node.number}: {error}")
        return conclusions
    for result in compared:
        _conclude_one(notes, conclusions, judge, result, values, margin)
    return conclusions


def _conclude_one(
    notes: Findings,
    conclusions: Conclusions,
    judge: OperatorJudge,
    result: ComparedResult,
    values: Values,
    margin: float,
) -> None:
    differing = result.wrong | result.unbounded
    if result.undecided:
        conclusions.undecided.append(result.undecided)
        return
    if differing.any() and _is_tie(notes, conclusions, result, values, margin):
        return
    notes.note(result.finding, "operator", result.name)
    if result.wrong.any():
        conclusions.wrong.append(_line(result, result.finding))
        conclusions.worst.append((result.ref, result.worst))
    elif differing.any():
        count = int(result.unbounded.sum())
        conclusions.undecided.append(f"{result.name}: {count} elements differ about which the bound says nothing")
    else:
        try:
            finding = judge.threshold(result)
        except UnavailableError as error:
            conclusions.undecided.append(str(error))
            return
        if finding is not None:
            notes.note(finding, "operator threshold", result.name, advisory=not finding.agrees)
            if not finding.agrees:  # within the bound but not the threshold: a committee decides
                conclusions.outside.append(_line(result, finding))


def _is_tie(notes: Findings, conclusions: Conclusions, result: ComparedResult, values: Values, margin: float) -> bool:
    """Whether the operator chooses among numbers; then a differing result is tied or wrong by how close they are."""
    tie = find_near_tie(result.node, values, result.ref, result.places[result.wrong | result.unbounded])
    if tie is None:
        return False
    finding = Finding(tie.bands, margin, "tie", "", f"{tie.detail}, in bands")
    notes.note(finding, "tie", result.name, advisory=finding.agrees)
    if finding.agrees:
        conclusions.tied.append(_line(result, finding))
    else:
        conclusions.wrong.append(_line(result, finding))
        conclusions.worst.append((result.ref, tie.place))
    return True


def _line(result: ComparedResult, finding: Finding) -> str:
    place = f" at {finding.where}" if finding.where else ""
    detail = f" ({finding.detail})" if finding.detail else ""
    return f"{result.name}: {finding.distance:.4g} of {finding.allowed:.4g} allowed{place}{detail}"


# The ruling at the leaf: decides who is at fault over one opened operator. Anybody can repeat it offline.
#
# The checks, in order: the bundle is consistent (`request.py`); every value is present; the element that the challenger
# named exists; the results are within the operator's proven bound (`operator/judge.py`); discrete results that differ
# are tied or wrong (`find_near_tie`); and results within the bound are also within a calibrated threshold.
#
# Without a nonce, only the named element is judged. With a nonce, a large operator is judged at the elements that were
# named, drawn or found to deviate; all rows of a matrix product are also checked with vectors of random signs
# (`freivalds.py`). The same bundle and request give the same ruling: there is no clock, and no randomness but the
# nonce's. Every radius includes the reference's own rounding, 2⁻⁵³.

FEWEST: Final = 32
CHUNK_TERMS: Final = 1 << 22
FRACTIONS: Final = (0.01, 0.001)
"""Shares of wrong elements for which a ruling states the probability of missing them all."""


def rule_leaf(bundle: LeafBundle, request: LeafRequest) -> Ruling:
    """The ruling on a bundle that the prover supplied, or that was made of pieces from the prover.

    An invalid proof or a missing value is the prover's fault, because the prover had to open it. If it is not certain
    that the bytes came from the prover, a ruling on the grounds `STRUCTURE` or `DATA` must not be held against it.

    Raises:
        ProofError: the bundle is about another leaf than the contested one.
    """
    if request.opening not in (None, bundle.opening.identity):
        raise ProofError(f"the bundle is about the opening {bundle.opening.identity}, another one than is contested")
    if request.index not in (None, bundle.operator.index):
        raise ProofError(f"the bundle is about operator {bundle.operator.index}, another one than is contested")
    notes, work = Findings(), RulingWork(sizes=bundle.sizes)
    node = check_bundle(notes, bundle, request.published, request.bits)
    if node is None:
        objection = next(finding for finding in notes.seen if not finding.agrees)
        text = f"the opening is not consistent: {objection.name}: {objection.detail}"
        return Ruling(Fault.PROVER, Ground.STRUCTURE, text, Verdict(tuple(notes.seen)), work)
    missing = [ref for ref in (*node.refs, *filter(None, node.outputs)) if ref not in bundle.values]
    if missing:
        text = f"node {node.number}: {missing[0]} is not opened"
        return Ruling(Fault.PROVER, Ground.DATA, text, Verdict(tuple(notes.seen), (text,)), work)
    return _Leaf(bundle, request, node, notes).rule(work)


@dataclass(frozen=True)
class _Leaf:
    """The judgement of one operator whose bundle is consistent."""

    bundle: LeafBundle
    request: LeafRequest
    node: Node
    notes: Findings

    def rule(self, work: RulingWork) -> Ruling:
        try:
            derived = derive_results(self.node, self.bundle.values)
        except MalformedError as error:
            self.notes.note(Finding(1.0, 0.0, detail=str(error)), "operator types", f"node {self.node.number}")
            return self._ruled(Fault.PROVER, Ground.STRUCTURE, str(error), work)
        work = replace(work, flops=derived.flops, elements=sum(map(self._size, self._results)))
        named = self.request.element
        if named is not None and not (named[0] in self._results and 0 <= named[1] < self._size(named[0])):
            reason = f"there is no element {named[1]} of {named[0]}, which the challenger named"
            unjudged = (f"node {self.node.number}: nothing of it was judged",)
            return self._ruled(Fault.CHALLENGER, Ground.ELEMENT, reason, work, unjudged)
        needed = 8 * (sum(self._size(ref) for ref in set(self.node.refs)) + derived.largest_bytes)
        if needed > self.request.limits.memory_bytes:
            line = f"node {self.node.number}: takes {needed} bytes, more than this referee's"
            return self._ruled(None, Ground.UNDECIDED, line, work, (line,))
        return self._compared(derived, work)

    @property
    def _results(self) -> tuple[Ref, ...]:
        return tuple(ref for ref in self.node.outputs if ref is not None)

    def _size(self, ref: Ref) -> int:
        return self.bundle.values[ref].array().size

    def _compared(self, derived: Derived, work: RulingWork) -> Ruling:
        """The ruling on all elements, or on the named one; of a large operator, on those that are selected."""
        if self._named_alone is not None:
            ref, place = self._named_alone
            return self._concluded(self._conclude({ref: np.array([place])}), replace(work, judged=1))
        if not (self.request.limits.are_passed_by(derived) and self.request.nonce):
            return self._concluded(self._conclude(), replace(work, judged=work.elements))
        drawn = self._affordable(derived, work.elements)
        places = {ref: self._places(ref, drawn) for ref in self._results}
        if sum(map(len, places.values())) == work.elements:
            return self._concluded(self._conclude(), replace(work, judged=work.elements))
        objection, work = self._product(places, replace(work, drawn=drawn))
        chunk = max(1, CHUNK_TERMS // max(1, derived.flops // max(work.elements, 1)))
        conclusions = self._conclude(places, chunk)
        conclusions.wrong[:0] = objection
        return self._concluded(conclusions, replace(work, judged=sum(map(len, places.values()))))

    def _conclude(self, places: Mapping[Ref, Places] | None = None, chunk: int = 0) -> Conclusions:
        judge = OperatorJudge(self.bundle.opening.graph, self.request.precision, self.request.profile)
        return conclude(self.notes, judge, self.node, self.bundle.values, self.request.bands, places, chunk)

    def _affordable(self, derived: Derived, elements: int) -> int:
        """How many elements of each result are drawn, so that they cost no more than a small operator."""
        limits = self.request.limits
        return min(limits.elements, max(FEWEST, limits.whole_flops * elements // max(derived.flops, 1)))

    def _places(self, ref: Ref, count: int) -> Places:
        """The elements of a result that are judged: the drawn ones, the named one, and those that deviate."""
        named, deviating = self.request.element, self.request.deviating.get(ref)
        place = named[1] if named is not None and named[0] == ref else None
        places = chosen_places(self.request.nonce, f"{self._subject}/{ref}", self._size(ref), count, place)
        return places if deviating is None else np.union1d(places, deviating)

    @property
    def _subject(self) -> str:
        return f"{self.bundle.opening.operators.root}/{self.bundle.operator.index}"

    @property
    def _named_alone(self) -> tuple[Ref, int] | None:
        """The element that the challenger named, if nothing else is to be judged."""
        return None if self.request.nonce else self.request.element

    def _product(self, places: dict[Ref, Places], work: RulingWork) -> tuple[list[str], RulingWork]:
        """Check all rows of a product of matrices at once; adds the places of its largest errors to `places`.

        Returns the objections, and the cost of the check.
        """
        product, limits = product_of(self.node, self.bundle.values), self.request.limits
        if product is None:
            return [], work
        signs = signs_of(self.request.nonce, self._subject, product.claimed.shape[-1], limits.vectors)
        residuals = check_product(product, signs, self.request.precision)
        row = f"row {','.join(map(str, residuals.worst_rows[0]))}"
        detail = f"{residuals.unbounded} of {residuals.shares.size} rows have no bound" if residuals.unbounded else ""
        self.notes.note(Finding(residuals.worst, 1.0, "", row, detail), "product", f"node {self.node.number}")
        objection = f"{row} of the product leaves the sum of its bounds by a factor of {residuals.worst:.4g}"
        ref, rows = self._results[0], residuals.shares.size - residuals.unbounded
        places[ref] = np.union1d(places[ref], places_of_largest_errors(product, residuals, limits.rows, FEWEST))
        work = replace(work, vectors=residuals.vectors if rows else 0, rows=rows, unbounded=residuals.unbounded)
        return [] if residuals.holds else [objection], work

    def _concluded(self, conclusions: Conclusions, work: RulingWork) -> Ruling:
        """The ruling, the strongest ground first. An undecided result goes to a committee before a tie ends it."""
        if conclusions.wrong:
            ruling = self._ruled(Fault.PROVER, Ground.BOUND, conclusions.wrong[0], work)
            return replace(ruling, worst=conclusions.worst[0] if conclusions.worst else None)
        if conclusions.refused:
            return self._ruled(None, Ground.OPERANDS, conclusions.refused[0], work, tuple(conclusions.refused))
        if conclusions.undecided or conclusions.outside:
            ground = Ground.UNDECIDED if conclusions.undecided else Ground.THRESHOLD
            lines = tuple(conclusions.undecided + conclusions.outside)
            return self._ruled(None, ground, lines[0], work, lines)
        if conclusions.tied:
            return self._ruled(Fault.NOBODY, Ground.TIE, conclusions.tied[0], work, tuple(conclusions.tied))
        reason = f"node {self.node.number} ({self.node.operator}) holds"
        return self._ruled(Fault.CHALLENGER, Ground.HOLDS, "; ".join([reason, *self._missed(work)]), work)

    def _missed(self, work: RulingWork) -> Iterator[str]:
        """The probability that a wrong element was missed, whatever was named or found to deviate."""
        if work.judged >= work.elements:
            return
        if self._named_alone is not None:
            yield "element {1} of {0} was judged alone, as the challenger named it".format(*self._named_alone)
            return
        chances = ", ".join(f"{(1 - share) ** work.drawn:.2g} if {share:.1%} are" for share in FRACTIONS)
        judged = f"{work.judged} of {work.elements} elements were judged, with {work.drawn} draws from a result"
        yield f"{judged}: all wrong ones of a result are missed with probability at most {chances}"
        if work.vectors:
            which = f"in {work.rows} of {work.rows + work.unbounded} rows " if work.unbounded else ""
            beyond = f"{which}an element beyond the sum of its row's bounds"
            yield f"{beyond} passes with probability at most 2^-{work.vectors}"

    def _ruled(
        self, fault: Fault | None, ground: Ground, reason: str, work: RulingWork, unavailable: tuple[str, ...] = ()
    ) -> Ruling:
        seen = tuple(self.notes.seen)
        coverage = VerdictCoverage(work.judged, work.elements, "elements", "judged", None, "within their bounds")
        verdict = Verdict(seen, unavailable, tuple(self._not_checked()), tuple(self._assumed()), coverage)
        return Ruling(fault, ground, reason, verdict, work)

    def _not_checked(self) -> Iterator[str]:
        opening = self.bundle.opening
        record = opening.opened_record()
        if self.request.published is None:
            yield "whether transcript and graph are those of the claim that was published: only the claim says so"
        else:
            names = {named: name for name, named in {**opening.sources, **opening.results}.items()}
            yield from self.request.published.not_checked(
                opening, record, lambda named: named in names and bool(small_values(self.bundle, {names[named]: named}))
            )
        if isinstance(record, StepRecord) and (record.pre.exact is None or record.post.exact is None):
            yield f"whether these are the states around step {record.index}: its record has no exact summary of both"

    def _assumed(self) -> Iterator[str]:
        yield "SHA-256 is collision resistant, and NumPy computes what it says"
        if self.request.nonce:
            yield "the nonce was drawn after the prover had committed to the operator, and not by the prover"
        if self.request.profile is not None:
            yield "honest stacks differ by no more than those the profile was calibrated on"
