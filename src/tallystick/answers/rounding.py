"""Judges whether a claimed fingerprint lies as near to the promised model as rounding explains.

An honest provider of a model of 16 bits rounds, and so does the verifier. A pass in F32 with the same weights says how
far the verifier's own rounding carried each block of each layer. An honest stack is carried about as far, whatever the
text is; other weights, another prompt or other positions are carried farther. So distances are compared with this
scale, block by block, which a limit for all texts cannot do. Every number of a fingerprint is one piece of evidence,
and those of several answers of a provider add up (`tolerances.scale_evidence`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from tallystick.answers.distance_limits import FingerprintRule, Place
from tallystick.tolerances.fingerprints.projection import block_norms
from tallystick.tolerances.fingerprints.settings import FingerprintSettings, Rows
from tallystick.tolerances.fingerprints.wire import residuals
from tallystick.tolerances.scale_evidence import ScaleTrials
from tallystick.tolerances.tolerance import Finding
from tallystick.transcripts.model_card import ModelCard
from tallystick.transcripts.receipt import Fingerprint, Receipt
from tallystick.workloads.fingerprints import rows_for, settings_of
from tallystick.workloads.language_model import Prefill

NAME: Final = "rounding"
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
        return Finding(self.trials.log_against(), -math.log(self.alpha), NAME, "", detail)


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
    held = [each for each in fingerprints if each.method == "projection" and each.bits < 32 and each.tokens]
    allowed = rule.rounding_for(card, held[0].tokens) if held else {}
    parts: dict[int, list[tuple[Reals, Reals]]] = {}
    seen: set[tuple[int, int, str | None]] = set()
    for each in held:
        settings = settings_of(each)
        own, true = rows_of(each)
        found = residuals(each.raw, true, settings)
        for layer in settings.layers if each.block == held[0].block else ():
            # Other directions are other evidence; the same ones once more would only repeat it.
            form = (layer, settings.width, settings.seed)
            ratio = allowed.get(place_of(layer, card.layers))
            if form not in seen and ratio is not None:
                seen.add(form)
                variance = (ratio * own_rounding(own, true, layer, settings)) ** 2 + CELL * found[layer].cells ** 2
                gaps = found[layer].gaps
                parts.setdefault(layer, []).append((gaps, np.broadcast_to(variance, gaps.shape)))
    if not parts:
        return None
    named = {_name(layer, card.layers): pieces for layer, pieces in sorted(parts.items())}
    numbers, variances = (
        {name: np.hstack([each[n] for each in pieces]) for name, pieces in named.items()} for n in (0, 1)
    )
    return RoundingEvidence(rule.alpha, ScaleTrials.of(numbers, variances))


def summed(evidence: Iterable[RoundingEvidence]) -> tuple[RoundingEvidence, ...]:
    """The evidence of several answers of one provider, summed where it is on the same places of a model."""
    found: dict[tuple[str, ...], RoundingEvidence] = {}
    for each in evidence:
        groups = each.trials.groups
        found[groups] = found[groups] + each if groups in found else each
    return tuple(found.values())


def _name(layer: int, final: int) -> str:
    place = place_of(layer, final)
    return f"block {layer}" if place == "block" else place


def place_of(layer: int, final: int) -> Place:
    """The place of a layer of a fingerprint in a model of `final` blocks."""
    return "block" if layer < final else "final" if layer == final else "logits"


def own_rounding(own: Rows, true: Rows, layer: int, settings: FingerprintSettings) -> Reals:
    """How far own rounding carried each block of a layer, F64[blocks, 1]: in the block, or in the answer if more."""
    gaps = np.asarray(own[layer], np.float64) - np.asarray(true[layer], np.float64)
    norms, sizes = block_norms(gaps, settings.block), block_norms(np.asarray(true[layer]), settings.block)
    overall = math.sqrt(float(np.square(norms).sum()) / max(float(np.square(sizes).sum()), 1e-300))
    return np.maximum(norms, overall * sizes)[:, None]
