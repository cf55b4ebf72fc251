"""The ruling at the leaf: decides who is at fault over one opened operator. Anybody can repeat it offline.

The checks, in order: the bundle is consistent (`checks.py`); every value is present; the element that the challenger
named exists; the results are within the operator's proven bound (`operator/judge.py`); discrete results that differ are
tied or wrong (`operator/near_ties.py`); and results within the bound are also within a calibrated threshold.

Without a nonce, only the named element is judged. With a nonce, a large operator is judged at the elements that were
named, drawn or found to deviate; all rows of a matrix product are also checked with vectors of random signs
(`freivalds.py`). The same bundle and request give the same ruling: there is no clock, and no randomness but the
nonce's. Every radius includes the reference's own rounding, 2⁻⁵³.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from tallystick.errors import MalformedError, ProofError
from tallystick.graphs.derive import Derived
from tallystick.graphs.graph import Node, Ref
from tallystick.judging.fault import Fault
from tallystick.judging.findings import Findings
from tallystick.judging.leaf.bundle import BundleSizes, LeafBundle
from tallystick.judging.leaf.checks import check_bundle, small_values
from tallystick.judging.leaf.conclusions import Conclusions, conclude
from tallystick.judging.leaf.request import Ground, LeafRequest, Ruling, RulingWork
from tallystick.judging.operator.judge import OperatorJudge, derive_results
from tallystick.judging.operator.places import Places
from tallystick.judging.verdict import Verdict, VerdictCoverage
from tallystick.tensors.tensor import Tensor
from tallystick.tolerances.tolerance import Finding
from tallystick.transcripts.record import StepRecord

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
    notes, sizes = Findings(), bundle.sizes
    node = check_bundle(notes, bundle, request.published, request.bits)
    if node is None:
        objection = next(finding for finding in notes.seen if not finding.agrees)
        text = f"the opening is not consistent: {objection.name}: {objection.detail}"
        return Ruling(Fault.PROVER, Ground.STRUCTURE, text, Verdict(tuple(notes.seen)), RulingWork(sizes=sizes))
    missing = [ref for ref in (*node.refs, *filter(None, node.outputs)) if ref not in bundle.values]
    if missing:
        text = f"node {node.number}: {missing[0]} is not opened"
        return Ruling(Fault.PROVER, Ground.DATA, text, Verdict(tuple(notes.seen), (text,)), RulingWork(sizes=sizes))
    return _Leaf(bundle, request, node, notes, sizes).rule()


@dataclass(frozen=True)
class _Leaf:
    """The judgement of one operator whose bundle is consistent."""

    bundle: LeafBundle
    request: LeafRequest
    node: Node
    notes: Findings
    sizes: BundleSizes

    def rule(self) -> Ruling:
        try:
            derived = derive_results(self.node, self._values)
        except MalformedError as error:
            self.notes.note(Finding(1.0, 0.0, detail=str(error)), "operator types", f"node {self.node.number}")
            return self._ruled(Fault.PROVER, Ground.STRUCTURE, str(error), RulingWork(sizes=self.sizes))
        work = RulingWork(derived.flops, sum(map(self._size, self._results)), sizes=self.sizes)
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

    @property
    def _values(self) -> Mapping[Ref, Tensor]:
        return self.bundle.values

    def _size(self, ref: Ref) -> int:
        return self._values[ref].array().size

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
        found = self._conclude(places, chunk)
        found.wrong[:0] = objection
        return self._concluded(found, replace(work, judged=sum(map(len, places.values()))))

    def _conclude(self, places: Mapping[Ref, Places] | None = None, chunk: int = 0) -> Conclusions:
        judge = OperatorJudge(self.bundle.opening.graph, self.request.precision, self.request.profile)
        return conclude(self.notes, judge, self.node, self._values, self.request.bands, places, chunk)

    def _affordable(self, derived: Derived, elements: int) -> int:
        """How many elements of each result are drawn, so that they cost no more than a small operator."""
        limits = self.request.limits
        return min(limits.elements, max(FEWEST, limits.whole_flops * elements // max(derived.flops, 1)))

    def _places(self, ref: Ref, count: int) -> Places:
        """The elements of a result that are judged: the drawn ones, the named one, and those that deviate."""
        from tallystick.judging.leaf.sampling import chosen_places

        named, deviating = self.request.element, self.request.deviating.get(ref)
        place = named[1] if named is not None and named[0] == ref else None
        places = chosen_places(self.request.nonce, f"{self._subject}/{ref}", self._size(ref), count, place)
        return places if deviating is None else np.union1d(places, deviating)

    @property
    def _subject(self) -> str:
        return f"{self.bundle.opening.operators.root}/{self.bundle.operator.index}"

    @property
    def _named_alone(self) -> tuple[Ref, int] | None:
        """The element that the challenger named, if nothing else was asked for."""
        return None if self.request.nonce else self.request.element

    def _product(self, places: dict[Ref, Places], work: RulingWork) -> tuple[list[str], RulingWork]:
        """Check all rows of a product of matrices at once; adds the places of its largest errors to `places`.

        Returns the objections, and the cost of the check.
        """
        from tallystick.judging.leaf.freivalds import check_product, places_of_largest_errors, product_of, signs_of

        product, limits = product_of(self.node, self._values), self.request.limits
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

    def _concluded(self, found: Conclusions, work: RulingWork) -> Ruling:
        """The ruling, the strongest ground first. An undecided result goes to a committee before a tie ends it."""
        if found.wrong:
            ruling = self._ruled(Fault.PROVER, Ground.BOUND, found.wrong[0], work)
            return replace(ruling, worst=found.worst[0] if found.worst else None)
        if found.refused:
            return self._ruled(None, Ground.OPERANDS, found.refused[0], work, tuple(found.refused))
        if found.undecided or found.outside:
            ground = Ground.UNDECIDED if found.undecided else Ground.THRESHOLD
            lines = tuple(found.undecided + found.outside)
            return self._ruled(None, ground, lines[0], work, lines)
        if found.tied:
            return self._ruled(Fault.NOBODY, Ground.TIE, found.tied[0], work, tuple(found.tied))
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
