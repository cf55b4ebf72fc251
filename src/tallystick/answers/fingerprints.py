"""Judges the fingerprints of a receipt against the verifier's own pass over the tokens.

Projections have two limits. The distance of every block and layer must stay below a generous limit, so that one block
with unlucky rounding does not reject an answer. The median of four or more full blocks, of all layers or of one layer,
must stay below a tighter limit. It rejects a model that differs a little everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from tallystick.answers.distance_limits import DistanceLimits, Dtype, FingerprintRule
from tallystick.errors import MalformedError
from tallystick.tolerances.fingerprints.settings import Distance
from tallystick.tolerances.tolerance import Finding
from tallystick.transcripts.receipt import Fingerprint, Receipt
from tallystick.workloads.fingerprints import distances, settings_of

Rows: TypeAlias = npt.NDArray[np.floating[Any]]
Hidden: TypeAlias = Mapping[int, Rows]
RowsFor: TypeAlias = Callable[[Fingerprint], Hidden]

MEDIAN_FROM: Final = 4
"""The fewest blocks whose median is judged."""
TOPLOC_LIMITS: Final[Mapping[Dtype, tuple[int, float, float]]] = {"BF16": (37, 10.0, 8.0), "F32": (7, 256.0, 128.0)}
"""Limits of 128 values: differing exponents, mean and median of mantissa errors (Ong et al. 2025, §5).

Values are written as bfloat16, whose mantissas differ by at most 127: the last two limits never reject F32.
"""
TOPLOC_VALUES: Final = 128


def judge_fingerprints(
    receipt: Receipt, rows_for: RowsFor, rule: FingerprintRule, *, dtype: Dtype = "F32", advisory: Collection[str] = ()
) -> tuple[Finding, ...]:
    """Compare every fingerprint of a receipt with the verifier's rows [answer tokens, d] of its layers.

    `rows_for` gives the rows of a fingerprint; `dtype` is the promised precision. Fingerprints listed by
    `unjudged_fingerprints` give no finding. Findings for methods in `advisory` decide nothing.

    Raises:
        MalformedError: a fingerprint has another number of tokens than the answer, or its bytes are malformed.
        UnavailableError: the verifier's own hidden states are not finite.
    """
    count = receipt.answer.tokens.count
    for place, fingerprint in enumerate(receipt.fingerprints):
        if fingerprint.tokens != count:
            raise MalformedError(f"fingerprints.{place}.tokens: {fingerprint.tokens}, and the answer has {count}")
    return tuple(
        replace(finding, advisory=each.method in advisory)
        for each in receipt.fingerprints
        for finding in judge_fingerprint(each, rows_for(each), rule, dtype=dtype)
    )


def judge_fingerprint(
    fingerprint: Fingerprint, hidden: Hidden, rule: FingerprintRule, *, dtype: Dtype = "F32"
) -> tuple[Finding, ...]:
    """Compare one fingerprint with the verifier's rows [tokens, d]; no finding if the rule has no limits for it.

    Raises as `judge_fingerprints` does.
    """
    found = distances(fingerprint, hidden)
    if not found or not _can_judge(fingerprint, rule, dtype):
        return ()
    if fingerprint.method == "toploc":
        return (_toploc_finding(found, dtype),)
    settings = settings_of(fingerprint)
    compared = compared_with(found, lambda each: rule.limits_for(settings, dtype, each.layer, each.tokens), rule.margin)
    detail = f"{fingerprint.width} numbers of {fingerprint.bits} bits"
    return largest(compared, "fingerprint", detail), *typical(compared, fingerprint.block, "fingerprint")


def unjudged_fingerprints(receipt: Receipt, rule: FingerprintRule, *, dtype: Dtype = "F32") -> tuple[str, ...]:
    """One line with the reason for each fingerprint that the rule has no useful limits for."""
    lines = []
    for place, fingerprint in enumerate(receipt.fingerprints):
        if not _can_judge(fingerprint, rule, dtype):
            kind = f"{fingerprint.width} numbers of {fingerprint.bits} bits"
            what = "TOPLOC" if fingerprint.method == "toploc" else kind
            lines.append(f"fingerprint {place}: no limits tell honest {what} in {dtype} from others")
    return tuple(lines)


@dataclass(frozen=True)
class Compared:
    """A distance of one block, and the limits for it."""

    found: Distance
    largest: float
    typical: float

    @property
    def excess(self) -> float:
        """The distance divided by its limit: above 1 it is not allowed; infinite for NaN."""
        if self.found.distance <= self.largest:
            return self.found.distance / self.largest if self.largest else 0.0
        excess = self.found.distance / self.largest if self.largest else math.inf
        return math.inf if math.isnan(excess) else excess


def compared_with(
    found: Sequence[Distance], limits_for: Callable[[Distance], DistanceLimits | None], margin: float
) -> list[Compared]:
    """Each distance with its limits times the margin; distances without limits are left out."""
    limits = [limits_for(each) for each in found]
    return [
        Compared(each, margin * limit.largest, margin * limit.typical)
        for each, limit in zip(found, limits, strict=True)
        if limit is not None
    ]


def _can_judge(fingerprint: Fingerprint, rule: FingerprintRule, dtype: Dtype) -> bool:
    """Whether there are limits for its full blocks; a short last block may have none and is then left out."""
    if fingerprint.method == "toploc":
        return dtype in TOPLOC_LIMITS
    settings, longest = settings_of(fingerprint), max(1, min(fingerprint.block, fingerprint.tokens))
    return all(rule.limits_for(settings, dtype, layer, longest) is not None for layer in settings.layers)


def largest(compared: Sequence[Compared], name: str, detail: str) -> Finding:
    """The finding on the distance with the largest excess; `name` is the check."""
    worst = max(compared, key=lambda each: each.excess)
    return Finding(worst.found.distance, worst.largest, name, _where(worst.found), detail)


def typical(compared: Sequence[Compared], block: int, name: str) -> Iterator[Finding]:
    """The median of the full blocks, for each class of layers and for each layer with at least `MEDIAN_FROM` blocks.

    A median over all layers is not enough: a provider could add honest layers to hide a wrong one.
    """
    full = [each for each in compared if each.found.tokens == block]
    for allowed in sorted({each.typical for each in full}):
        alike = [each for each in full if each.typical == allowed]
        layers = sorted({each.found.layer for each in alike})
        yield from _median(alike, allowed, name)
        for layer in layers if len(layers) > 1 else ():
            yield from _median(
                [each for each in alike if each.found.layer == layer], allowed, name, f" of layer {layer}"
            )


def _median(alike: Sequence[Compared], allowed: float, name: str, which: str = "") -> Iterator[Finding]:
    if len(alike) >= MEDIAN_FROM:
        middle = median(math.inf if math.isnan(each.found.distance) else each.found.distance for each in alike)
        yield Finding(middle, allowed, name, f"the median of {len(alike)} full blocks{which}")


def _toploc_finding(found: Sequence[Distance], dtype: Dtype) -> Finding:
    exponents, mean, middle = TOPLOC_LIMITS[dtype]

    def excess(each: Distance) -> float:
        share = each.distance * TOPLOC_VALUES / exponents
        return max(share, each.mantissa_mean / mean, each.mantissa_median / middle)

    worst = max(found, key=excess)
    detail = f"{worst.distance:.0%} of exponents differ; mantissas by {worst.mantissa_mean:.1f} on average"
    return Finding(excess(worst), 1.0, "fingerprint", _where(worst), f"TOPLOC, blind to signs: {detail}")


def _where(distance: Distance) -> str:
    return f"layer {distance.layer}, answer tokens {distance.first} to {distance.first + distance.tokens - 1}"
