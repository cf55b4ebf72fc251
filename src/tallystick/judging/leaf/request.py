"""The request to a referee about a leaf, and its ruling."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from tallystick.commitments.digests import Digest
from tallystick.commitments.encoding import Json
from tallystick.graphs.derive import Derived
from tallystick.graphs.graph import Ref
from tallystick.judging.fault import Fault
from tallystick.judging.leaf.bundle import BundleSizes
from tallystick.judging.operator.places import Places
from tallystick.judging.verdict import Verdict
from tallystick.operators.precision import UNSTATED, Precision

if TYPE_CHECKING:
    from tallystick.judging.published import Published
    from tallystick.transcripts.profile import Profile

BANDS: Final = 2.0
"""The default margin of ties, in bands: each of the two numbers may be off by one rounding."""


class Ground(StrEnum):
    """The ground of a ruling."""

    STRUCTURE = "structure"
    DATA = "data"
    BOUND = "bound"
    TIE = "tie"
    THRESHOLD = "threshold"
    UNDECIDED = "undecided"
    OPERANDS = "operands"
    ELEMENT = "element"
    HOLDS = "holds"


@dataclass(frozen=True)
class LeafLimits:
    """Limits on what a referee computes.

    An operator with more than `whole_flops` floating-point operations, or with intermediates of more than
    `whole_bytes`, is not judged as a whole. It is judged at `elements` elements of each result, with `vectors` vectors
    of signs, and in the `rows` rows of a product with the largest residuals. If operands and intermediates take more
    than `memory_bytes` in float64, the referee does not judge.
    """

    whole_flops: int = 1 << 26
    whole_bytes: int = 1 << 28
    memory_bytes: int = 8 << 30
    elements: int = 1024
    vectors: int = 20
    rows: int = 2

    def are_passed_by(self, derived: Derived) -> bool:
        """Whether an operator exceeds the limits for being judged as a whole."""
        return derived.flops > self.whole_flops or derived.largest_bytes > self.whole_bytes


@dataclass(frozen=True)
class LeafRequest:
    """The settings of a ruling; the prover chooses none of them.

    `profile` holds calibrated thresholds, `published` the claim as it was published. `nonce` was drawn after the
    prover had committed to the leaf. `element` is the one that the challenger named: a result and a flat place in it.
    Without a nonce only this element is judged, or every element if none is named. `deviating` are further elements of
    a large operator to judge, because the judge's own kernel gives different ones. `opening` and `index` identify the
    contested leaf: a bundle about another one is refused. Without `bits`, the states and outputs of an opening are not
    compared with the digests in its record (`check_binding`).
    """

    precision: Precision = UNSTATED
    profile: Profile | None = None
    published: Published | None = None
    nonce: bytes = b""
    element: tuple[Ref, int] | None = None
    deviating: Mapping[Ref, Places] = field(default_factory=dict)
    bands: float = BANDS
    opening: Digest | None = None
    index: int | None = None
    bits: bool = True
    limits: LeafLimits = field(default_factory=LeafLimits)


@dataclass(frozen=True)
class RulingWork:
    """The cost of a ruling: operations of the operator, its elements, and how many were judged.

    `drawn` is the number of draws from each result that was not judged as a whole. `vectors` is the number of sign
    vectors in the check of a product; `rows` of its rows have a tolerance, and `unbounded` have none.
    """

    flops: int = 0
    elements: int = 0
    judged: int = 0
    vectors: int = 0
    sizes: BundleSizes | None = None
    drawn: int = 0
    rows: int = 0
    unbounded: int = 0


@dataclass(frozen=True)
class Ruling:
    """Who is at fault, and why; if `fault` is `None`, a committee has to decide.

    `worst` is the wrong element farthest beyond its bound, by its result and flat place.
    """

    fault: Fault | None
    ground: Ground
    reason: str
    verdict: Verdict
    work: RulingWork
    worst: tuple[Ref, int] | None = None

    def to_json(self) -> dict[str, Json]:
        """The ruling as JSON values."""
        sizes = self.work.sizes
        work: dict[str, Json] = {
            "elements": self.work.elements,
            "flops": self.work.flops,
            "judged": self.work.judged,
            "vectors": self.work.vectors,
        }
        work |= {} if sizes is None else {"proof_bytes": sizes.proof, "proof_hash_bytes": sizes.hashes}
        work |= {} if sizes is None else {"statement_bytes": sizes.statement, "value_bytes": sizes.values}
        fault: Json = "committee" if self.fault is None else str(self.fault)
        return {
            "fault": fault,
            "ground": str(self.ground),
            "reason": self.reason,
            "work": work,
        } | self.verdict.to_json()
