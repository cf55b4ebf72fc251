"""Judges fingerprints against the verifier's own pass, and whether rounding explains their distance."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tallystick.audits.answers.limits import Dtype, FingerprintRule, place_of
from tallystick.audits.answers.power import MEASURE, unmeasured_limits
from tallystick.core.errors import MalformedError
from tallystick.formats.claims import ModelCard
from tallystick.formats.fingerprints import Distance, FingerprintSettings, Rows, reach
from tallystick.formats.receipt import Fingerprint, Receipt
from tallystick.verdicts.evidence import ScaleTrials
from tallystick.verdicts.fingerprints import block_norms, distances, residuals, rows_for, settings_of
from tallystick.verdicts.language_model import Prefill
from tallystick.verdicts.tolerance import Finding

# Judges the fingerprints of a receipt against the verifier's own pass over the tokens.
#
# Of every layer, the distances of all blocks together must stay below a limit: many numbers vary little, so that this
# rejects a model that differs a little everywhere. Each block must stay below a limit of its own, which is generous,
# because a block has few numbers.

HiddenRows = npt.NDArray[np.floating[Any]]
Hidden = Mapping[int, HiddenRows]
RowsFor = Callable[[Fingerprint], Hidden]

FINGERPRINTS: Final = "fingerprint"
SPREAD: Final = 2.7
"""Three standard deviations of the squares of random codes, in units of their mean, for one number: 3 × 0.894."""
COARSE_MATRIX_MOVES: Final = 0.02
"""By how much of their norm an output matrix in 8 bits by row moves the logits (`docs/real_model_distances.md`)."""
COARSE_MATRIX: Final = "an output matrix in 8 bits by row is one of them, it moves logits by about 0.02"
BLOCKS_TRIED: Final = 64
"""The most blocks of which the report says that so many would do."""
TOPLOC_LIMITS: Final[Mapping[Dtype, tuple[int, float, float]]] = {"BF16": (37, 10.0, 8.0), "F32": (7, 256.0, 128.0)}
"""Limits of 128 values: differing exponents, mean and median of mantissa errors (Ong et al. 2025, §5).

Values are written as bfloat16, whose mantissas differ by at most 127: the last two limits never reject F32.
"""
TOPLOC_VALUES: Final = 128


def judge_fingerprints(
    receipt: Receipt, rows_for: RowsFor, rule: FingerprintRule, card: ModelCard
) -> tuple[Finding, ...]:
    """Compare every fingerprint of a receipt with the verifier's rows [answer tokens, d] of its layers.

    `rows_for` gives the rows of a fingerprint; `card` is the promised model. What `unjudged_fingerprints` lists gives
    no finding.

    Raises:
        MalformedError: a fingerprint has another number of tokens than the answer, or its bytes are malformed.
        UnavailableError: the verifier's own hidden states are not finite.
    """
    count = receipt.answer.tokens.count
    for place, fingerprint in enumerate(receipt.fingerprints):
        if fingerprint.tokens != count:
            raise MalformedError(f"fingerprints.{place}.tokens: {fingerprint.tokens}, and the answer has {count}")
    return tuple(
        finding for each in receipt.fingerprints for finding in judge_fingerprint(each, rows_for(each), rule, card)
    )


def judge_fingerprint(
    fingerprint: Fingerprint, hidden: Hidden, rule: FingerprintRule, card: ModelCard
) -> tuple[Finding, ...]:
    """Compare one fingerprint with the verifier's rows [tokens, d]; no finding where the rule has no limits for it.

    Raises as `judge_fingerprints` does.
    """
    blocks = distances(fingerprint, hidden)
    if fingerprint.method == "toploc":
        return (_toploc_finding(blocks, card.dtype),) if blocks and not _unjudged_toploc(rule, card) else ()
    return tuple(_Projection(settings_of(fingerprint), rule, card).judge(blocks)) if blocks else ()


def unjudged_fingerprints(receipt: Receipt, rule: FingerprintRule, card: ModelCard) -> tuple[str, ...]:
    """One line with the reason for each fingerprint, and each layer of one, that the rule has no useful limits for.

    A layer that several projections have needs only one line, that of the first.
    """
    lines, seen = [], set[int]()
    for place, fingerprint in enumerate(receipt.fingerprints):
        if fingerprint.method == "toploc":
            reasons = [_unjudged_toploc(rule, card)]
        elif line := unmeasured_limits(rule, "projection", card):
            reasons = [line]
        else:
            projection = _Projection(settings_of(fingerprint), rule, card)
            new = [layer for layer in projection.settings.layers if layer not in seen]
            reasons = [projection.why_unjudged(layer, fingerprint.tokens) for layer in new]
            seen.update(new)
        lines += [f"fingerprint {place}: {reason}" for reason in dict.fromkeys(reasons) if reason]
    return tuple(lines)


def unseen_changes(receipt: Receipt, rule: FingerprintRule, card: ModelCard) -> str:
    """A line with the changes that the fingerprints of an answer cannot tell from honest ones; empty without limits.

    A change of so much in a layer, relative to its norm, is seen with probability 0.95. A change may leave a number in
    its cell; one by a cell more than the limit is seen that often by 4 numbers and more (simulated).
    """
    seen: dict[int, float] = {}
    projections = [each for each in receipt.fingerprints if each.method == "projection"]
    for fingerprint in projections if receipt.answer.tokens.count else ():
        projection = _Projection(settings_of(fingerprint), rule, card)
        spans = projection.spans(fingerprint.tokens)
        for layer in projection.settings.layers:
            allowed = projection.allowed(layer, spans)
            if allowed is not None:
                share = allowed / _low(projection.numbers(spans)) + projection.cell
                seen[layer] = min(seen.get(layer, math.inf), share)
    parts = ", ".join(f"{share:.2g} of the norm of layer {layer}" for layer, share in sorted(seen.items()))
    if not parts:
        return ""
    matrix = f"; {COARSE_MATRIX}" if seen.get(card.layers + 1, 0.0) > COARSE_MATRIX_MOVES else ""
    return f"fingerprint: changes of less than {parts}: honest stacks may differ so, or the grid hides it{matrix}"


def compared(distance: Distance, allowed: float, check: str, detail: str) -> Finding:
    """The finding on the distance of one block, of which `allowed` is allowed."""
    return Finding(distance.distance, allowed, check, _where(distance), detail)


def worst(findings: Sequence[Finding]) -> Finding:
    """The finding that is farthest beyond its limit, or nearest to it; NaN is farthest."""

    def excess(finding: Finding) -> float:
        if not finding.allowed:
            return 0.0 if finding.distance <= 0.0 else math.inf
        ratio = finding.distance / finding.allowed
        return math.inf if math.isnan(ratio) else ratio

    return max(findings, key=excess)


def together(blocks: Sequence[Distance]) -> float:
    """The distance of several blocks: the root of the mean of their squares, weighed by tokens; NaN is infinite."""
    tokens = sum(each.tokens for each in blocks)
    size = math.sqrt(sum(each.tokens * each.distance**2 for each in blocks) / tokens)
    return math.inf if math.isnan(size) else size


@dataclass(frozen=True)
class _Projection:
    """Fingerprints with these settings, and the limits on their distances for the promised model."""

    settings: FingerprintSettings
    rule: FingerprintRule
    card: ModelCard

    def judge(self, blocks: Sequence[Distance]) -> Iterator[Finding]:
        """The finding on all blocks of each layer together, and that on the worst block."""
        detail, findings = f"{self.settings.width} numbers of {self.settings.bits} bits", []
        for layer in self.settings.layers:
            alike = [each for each in blocks if each.layer == layer]
            allowed = self.allowed(layer, [each.tokens for each in alike])
            if allowed is not None:
                where = f"layer {layer}, all {sum(each.tokens for each in alike)} answer tokens"
                yield Finding(together(alike), allowed, FINGERPRINTS, where, detail)
            limits = {count: self.allowed(layer, [count]) for count in {each.tokens for each in alike}}
            pairs = [(each, limits[each.tokens]) for each in alike]
            findings += [compared(each, limit, FINGERPRINTS, detail) for each, limit in pairs if limit is not None]
        if findings:
            yield worst(findings)

    def allowed(self, layer: int, spans: Sequence[int]) -> float | None:
        """The largest distance of blocks with so many tokens each; None without limits, or if codes cannot show it."""
        limits = self.rule.limits_for(self.card, layer, sum(spans))
        if limits is None:
            return None
        numbers = self.numbers(spans)
        allowed = limits.allowed(numbers, self.rule.margin)
        share = math.sqrt(max(0.25, 1.0 - SPREAD / math.sqrt(numbers)))
        is_shown = allowed <= share * reach(self.settings.bits, self.settings.resolution)
        return allowed if is_shown and not self._is_too_coarse(allowed) else None

    def why_unjudged(self, layer: int, tokens: int) -> str:
        """Why the distance of a layer decides nothing; empty if it decides, or if there are no tokens."""
        spans = self.spans(tokens)
        if not tokens or self.allowed(layer, spans) is not None:
            return ""
        dtype, limits = self.card.dtype, self.rule.limits_for(self.card, layer, tokens)
        if limits is None:
            return f"no limits were measured for layer {layer} of {self.card.layers} in {dtype}: {MEASURE}"
        allowed = limits.allowed(self.numbers(spans), self.rule.margin)
        if self._is_too_coarse(allowed):
            return f"layer {layer}: a grid of {self.cell:.2g} of the norm is too coarse for a limit of {allowed:.2g}"
        kind = f"{self.settings.width} numbers of {self.settings.bits} bits"
        enough = (count * self.settings.block for count in range(1, BLOCKS_TRIED + 1))
        needed = next((count for count in enough if self.allowed(layer, self.spans(count)) is not None), None)
        if needed is None or needed <= tokens:
            return f"layer {layer}: no limits tell honest {kind} in {dtype} from others"
        return f"layer {layer}: {tokens} tokens are too few to tell honest {kind} in {dtype} from others: {needed} do"

    @property
    def cell(self) -> float:
        """The width of a cell of the grid, relative to the norm of a block."""
        return 0.0 if self.settings.bits == 32 else 2.0**-self.settings.resolution

    def spans(self, tokens: int) -> list[int]:
        """The tokens of each block of an answer."""
        return [count for _, count in self.settings.spans(tokens)]

    def numbers(self, spans: Sequence[int]) -> float:
        """The numbers of equal blocks that vary as much as blocks with so many tokens each, weighed by them."""
        return self.settings.width * sum(spans) ** 2 / sum(each**2 for each in spans)

    def _is_too_coarse(self, allowed: float) -> bool:
        """Whether a grid that the provider chose coarser than the usual one has cells wider than the limit.

        A gap is what lies outside the claimed cell. Of differences as large as a cell, 0.69 is left in the gaps; of
        smaller ones less, so that wider cells would hide what the limit is to show.
        """
        return self.settings.resolution < self.settings.usual and self.cell > allowed


def _low(numbers: float) -> float:
    """How much smaller than its deviation the size of `numbers` numbers is, with probability 0.05 (as `allowed`)."""
    part = 2.0 / (9.0 * numbers)
    return math.pow(max(0.05, 1.0 - part - 1.645 * math.sqrt(part)), 1.5)


def _unjudged_toploc(rule: FingerprintRule, card: ModelCard) -> str:
    if card.dtype not in TOPLOC_LIMITS:
        return f"no limits tell honest TOPLOC in {card.dtype} from others"
    return unmeasured_limits(rule, "toploc", card)


def _toploc_finding(blocks: Sequence[Distance], dtype: Dtype) -> Finding:
    exponents, mean, middle = TOPLOC_LIMITS[dtype]

    def excess(each: Distance) -> float:
        share = each.distance * TOPLOC_VALUES / exponents
        return max(share, each.mantissa_mean / mean, each.mantissa_median / middle)

    farthest = max(blocks, key=excess)
    detail = f"{farthest.distance:.0%} of exponents differ; mantissas by {farthest.mantissa_mean:.1f} on average"
    return Finding(excess(farthest), 1.0, FINGERPRINTS, _where(farthest), f"TOPLOC, blind to signs: {detail}")


def _where(distance: Distance) -> str:
    return f"layer {distance.layer}, answer tokens {distance.first} to {distance.first + distance.tokens - 1}"


# Judges whether a claimed fingerprint lies as near to the promised model as rounding explains.
#
# An honest provider of a model of 16 bits rounds, and so does the verifier. A pass in F32 with the same weights says
# how far the verifier's own rounding carried each block of each layer. An honest stack is carried about as far,
# whatever the text is; other weights, another prompt or other positions are carried farther. So distances are compared
# with this scale, block by block, which a limit for all texts cannot do. Every number of a fingerprint is one piece of
# evidence, and those of several answers of a provider add up (`verdicts.evidence`).

ROUNDING: Final = "rounding"
NO_TRIALS: Final = ScaleTrials()
CELL: Final = 1.0 / 12.0
"""The variance of a number inside its cell, in squares of the cell; the number is known no better."""
Reals = npt.NDArray[np.float64]


@dataclass(frozen=True)
class RoundingEvidence:
    """The evidence of the fingerprints of one answer, or of several added up, judged at error `alpha`."""

    alpha: float
    trials: ScaleTrials = NO_TRIALS

    def __add__(self, other: RoundingEvidence) -> RoundingEvidence:
        assert self.alpha == other.alpha, "evidence at different errors does not add"
        return RoundingEvidence(self.alpha, self.trials + other.trials)

    @property
    def assumption(self) -> str:
        """A line that states what honest stacks may do, and how often one is accused nevertheless."""
        return (
            f"an honest stack rounds a block of a fingerprint no farther than was measured; then it is accused with "
            f"probability {self.alpha:g} at most, over all answers judged together"
        )

    @property
    def finding(self) -> Finding:
        """Whether the numbers lie farther off than rounding explains."""
        shown = ", ".join(f"{name} {ratio:.2f}" for name, ratio in self.trials.ratios.items())
        detail = (
            f"log e-value that {sum(self.trials.numbers)} numbers lie farther from a pass in F32 than honest rounding "
            f"carries them; in units of what is allowed: {shown}"
        )
        return Finding(self.trials.log_against(), -math.log(self.alpha), ROUNDING, "", detail)


def judge_rounding(
    receipt: Receipt, passed: Prefill, wide: Prefill, rule: FingerprintRule, card: ModelCard
) -> RoundingEvidence | None:
    """The evidence of a receipt's projections; None if there are none with limits.

    `passed` is the verifier's own pass and `wide` the one in F32, with the layers of the fingerprints. Raises as
    `fingerprints.measure` for malformed bytes and for own states that are not finite.
    """

    def rows_of(fingerprint: Fingerprint) -> tuple[Rows, Rows]:
        return rows_for(fingerprint, passed, card.layers), rows_for(fingerprint, wide, card.layers)

    return rounding_of(receipt.fingerprints, rows_of, rule, card)


def rounding_of(
    fingerprints: Iterable[Fingerprint],
    rows_of: Callable[[Fingerprint], tuple[Rows, Rows]],
    rule: FingerprintRule,
    card: ModelCard,
) -> RoundingEvidence | None:
    """As `judge_rounding`; `rows_of` gives own rows and those of the pass in F32 for a fingerprint."""
    projections = [each for each in fingerprints if each.method == "projection" and each.bits < 32 and each.tokens]
    allowed = rule.rounding_for(card, projections[0].tokens) if projections else {}
    parts: dict[int, list[tuple[Reals, Reals]]] = {}
    seen: set[tuple[int, int, str | None]] = set()
    for fingerprint in projections:
        settings = settings_of(fingerprint)
        own, true = rows_of(fingerprint)
        residual = residuals(fingerprint.raw, true, settings)
        for layer in settings.layers if fingerprint.block == projections[0].block else ():
            # Other directions are other evidence; the same ones once more would only repeat it.
            form = (layer, settings.width, settings.seed)
            ratio = allowed.get(place_of(layer, card.layers))
            if form not in seen and ratio is not None:
                seen.add(form)
                variance = (ratio * own_rounding(own, true, layer, settings)) ** 2 + CELL * residual[layer].cells ** 2
                gaps = residual[layer].gaps
                parts.setdefault(layer, []).append((gaps, np.broadcast_to(variance, gaps.shape)))
    if not parts:
        return None
    places = {layer: place_of(layer, card.layers) for layer in parts}
    names = {layer: f"block {layer}" if place == "block" else place for layer, place in places.items()}
    numbers, variances = (
        {names[layer]: np.hstack([pair[n] for pair in parts[layer]]) for layer in sorted(parts)} for n in (0, 1)
    )
    return RoundingEvidence(rule.alpha, ScaleTrials.of(numbers, variances))


def summed(evidence: Iterable[RoundingEvidence]) -> tuple[RoundingEvidence, ...]:
    """The evidence of several answers of one provider, summed where it is on the same places of a model."""
    sums: dict[tuple[str, ...], RoundingEvidence] = {}
    for each in evidence:
        groups = each.trials.groups
        sums[groups] = sums[groups] + each if groups in sums else each
    return tuple(sums.values())


def own_rounding(own: Rows, true: Rows, layer: int, settings: FingerprintSettings) -> Reals:
    """How far own rounding carried each block of a layer, F64[blocks, 1]: in the block, or in the answer if more."""
    gaps = np.asarray(own[layer], np.float64) - np.asarray(true[layer], np.float64)
    norms, sizes = block_norms(gaps, settings.block), block_norms(np.asarray(true[layer]), settings.block)
    overall = math.sqrt(float(np.square(norms).sum()) / max(float(np.square(sizes).sum()), 1e-300))
    return np.maximum(norms, overall * sizes)[:, None]
