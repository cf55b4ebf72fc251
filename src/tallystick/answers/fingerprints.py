"""Judges the fingerprints of a receipt, and opened hidden states, against the verifier's own pass over the tokens.

Two limits hold for projections. The largest distance of any block and layer may not exceed a generous one: one block
with unlucky rounding does not reject an answer. Where there are four or more full blocks, of all layers or of one,
their median may not exceed a tighter one: a model that differs everywhere, if by little, is not excused by that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from tallystick.answers.distance_limits import (
    DistanceLimits,
    Dtype,
    FingerprintCalibration,
    FingerprintLimits,
    FingerprintRule,
    MeasuredModels,
    shipped_calibration,
)
from tallystick.errors import MalformedError, ProofError, UnavailableError
from tallystick.tolerances.fingerprints.projection import summarise
from tallystick.tolerances.fingerprints.settings import BLOCK_MAX, Distance, FingerprintSettings
from tallystick.tolerances.tolerance import Finding
from tallystick.transcripts.receipt import Fingerprint, Receipt, StatesCommitment
from tallystick.transcripts.states_opening import StatesOpening
from tallystick.workloads.fingerprints import distances, settings_of
from tallystick.workloads.hidden_states import Place, check_states_opening, direction_seed

Rows: TypeAlias = npt.NDArray[np.floating[Any]]
Hidden: TypeAlias = Mapping[int, Rows]

MEDIAN_FROM: Final = 4
"""How many blocks and layers it takes for a median to be judged."""
NONCE_WIDTH: Final = 16
"""Fresh directions for each opened part."""
FRESH: Final = 2.0
"""Under fresh directions a gap looks twice as large less than once in 10⁶: P(χ² > 64) = 1.1e-7 for 16 of them."""
TOPLOC_LIMITS: Final[Mapping[Dtype, tuple[int, float, float]]] = {"BF16": (37, 10.0, 8.0), "F32": (7, 256.0, 128.0)}
"""Exponents that may differ of 128 values, mean and median of mantissa errors, as published (Ong et al. 2025, §5).

Values are written as bfloat16, whose mantissas never differ by more than 127: the last two hold for F32 always.
"""
TOPLOC_VALUES: Final = 128


def judge_fingerprints(
    receipt: Receipt, hidden: Hidden, rule: FingerprintRule, *, dtype: Dtype = "F32", advisory: Collection[str] = ()
) -> tuple[Finding, ...]:
    """What every fingerprint of a receipt shows beside own rows [answer tokens, d] of its layers.

    `dtype` is the precision that was promised. Fingerprints that `unjudged_fingerprints` names give no finding; those
    of the methods in `advisory` decide nothing.

    Raises:
        MalformedError: a fingerprint is of another number of tokens than the answer, or is no fingerprint.
        UnavailableError: the verifier's own hidden states are not finite.
    """
    count = receipt.answer.tokens.count
    for place, fingerprint in enumerate(receipt.fingerprints):
        if fingerprint.tokens != count:
            raise MalformedError(f"fingerprints.{place}.tokens: {fingerprint.tokens}, and the answer has {count}")
    return tuple(
        replace(finding, advisory=each.method in advisory)
        for each in receipt.fingerprints
        for finding in judge_fingerprint(each, hidden, rule, dtype=dtype)
    )


def judge_fingerprint(
    fingerprint: Fingerprint, hidden: Hidden, rule: FingerprintRule, *, dtype: Dtype = "F32"
) -> tuple[Finding, ...]:
    """What one fingerprint shows beside own rows [tokens, d]; nothing where the rule has no limits for it.

    Raises as `judge_fingerprints` does.
    """
    found = distances(fingerprint, hidden)
    if not found or not _can_judge(fingerprint, rule, dtype):
        return ()
    if fingerprint.method == "toploc":
        return (_toploc_finding(found, dtype),)
    settings = settings_of(fingerprint)
    compared = _compared(found, lambda each: rule.limits_for(settings, dtype, each.layer, each.tokens), rule.margin)
    detail = f"{fingerprint.width} numbers of {fingerprint.bits} bits"
    return _largest(compared, "fingerprint", detail), *_typical(compared, fingerprint.block, "fingerprint")


def unjudged_fingerprints(receipt: Receipt, rule: FingerprintRule, *, dtype: Dtype = "F32") -> tuple[str, ...]:
    """One line for each fingerprint for which the rule has no limits that mean anything, saying why."""
    lines = []
    for place, fingerprint in enumerate(receipt.fingerprints):
        if not _can_judge(fingerprint, rule, dtype):
            kind = f"{fingerprint.width} numbers of {fingerprint.bits} bits"
            what = "TOPLOC" if fingerprint.method == "toploc" else kind
            lines.append(f"fingerprint {place}: no limits tell honest {what} in {dtype} from others")
    return tuple(lines)


def judge_states(
    opening: StatesOpening,
    statement: StatesCommitment,
    nonce: bytes,
    hidden: Hidden,
    rule: FingerprintRule,
    *,
    dtype: Dtype = "F32",
    count: int | None = None,
    advisory: bool = False,
) -> tuple[Finding, ...]:
    """What opened hidden states show beside own rows [committed rows, d] of the committed layers.

    The nonce has to select every opened part, `count` of them (`rule.parts` if not given). Each is compared with the
    own rows directly, and under directions drawn from the nonce. With `advisory` distances decide nothing; an opening
    that is none of the commitment always does.

    Raises:
        MalformedError: the bytes of a part are no rows, or of another width or number than the verifier's.
        UnavailableError: own rows are not finite, or there are no limits for `dtype`.
    """
    if any(rule.states_for(dtype, layer, 1) is None for layer in statement.layers):
        raise UnavailableError(f"states: there are no limits for {dtype}")
    try:
        parts = check_states_opening(opening, statement, nonce, rule.parts if count is None else count)
    except ProofError as error:
        return (Finding(1.0, 0.0, "states", detail=str(error)),)
    own = {place: _own_rows(place, rows, statement, hidden) for place, rows in parts.items()}
    with np.errstate(invalid="ignore"):  # a NaN stays one, and is no distance that is allowed
        gaps = {place: rows - own[place] for place, rows in parts.items()}
    direct = [_part_distance(place, _relative(gaps[place], own[place]), statement) for place in parts]
    seed = direction_seed(nonce, statement)
    projected = [
        _part_distance(place, _relative(_projected(gaps[place], place[1], seed), own[place]), statement)
        for place in parts
    ]
    compared = _compared(direct, lambda each: rule.states_for(dtype, each.layer, each.tokens), rule.margin)
    fresh = _compared(projected, lambda each: rule.states_for(dtype, each.layer, each.tokens), FRESH * rule.margin)
    full = min(statement.block, statement.rows)
    found = (
        _largest(compared, "states", "rows as they are"),
        *_typical(compared, full, "states"),
        _largest(fresh, "states", f"{NONCE_WIDTH} directions of the nonce"),
    )
    return tuple(replace(each, advisory=advisory) for each in found)


@dataclass(frozen=True)
class _Compared:
    """A distance, and what is allowed for a block of so many tokens."""

    found: Distance
    largest: float
    typical: float

    @property
    def excess(self) -> float:
        """Larger than 1 where the distance is not allowed; infinite for NaN."""
        if self.found.distance <= self.largest:
            return self.found.distance / self.largest if self.largest else 0.0
        excess = self.found.distance / self.largest if self.largest else math.inf
        return math.inf if math.isnan(excess) else excess


def _compared(
    found: Sequence[Distance], limits_for: Callable[[Distance], DistanceLimits | None], margin: float
) -> list[_Compared]:
    limits = [limits_for(each) for each in found]
    return [
        _Compared(each, margin * limit.largest, margin * limit.typical)
        for each, limit in zip(found, limits, strict=True)
        if limit is not None
    ]


def _can_judge(fingerprint: Fingerprint, rule: FingerprintRule, dtype: Dtype) -> bool:
    """Whether there are limits for its blocks; a last one that is too short for any is left out."""
    if fingerprint.method == "toploc":
        return dtype in TOPLOC_LIMITS
    settings, longest = settings_of(fingerprint), max(1, min(fingerprint.block, fingerprint.tokens))
    return all(rule.limits_for(settings, dtype, layer, longest) is not None for layer in settings.layers)


def _largest(compared: Sequence[_Compared], name: str, detail: str) -> Finding:
    worst = max(compared, key=lambda each: each.excess)
    return Finding(worst.found.distance, worst.largest, name, _where(worst.found), detail)


def _typical(compared: Sequence[_Compared], block: int, name: str) -> Iterator[Finding]:
    """The median of the full blocks of each class of layers, and of each layer, that has enough of them.

    Of layers together alone, right ones that a receipt adds would cover for one that is not.
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


def _median(alike: Sequence[_Compared], allowed: float, name: str, which: str = "") -> Iterator[Finding]:
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


def _part_distance(place: Place, distance: float, statement: StatesCommitment) -> Distance:
    first = place[0] * statement.block
    return Distance(place[1], first, min(statement.block, statement.rows - first), distance)


def _own_rows(place: Place, opened: Rows, statement: StatesCommitment, hidden: Hidden) -> Rows:
    block, layer = place
    if layer not in hidden or len(hidden[layer]) != statement.rows:
        raise MalformedError(f"states.rows: {statement.rows} rows are not those of the tokens fed")
    own = np.asarray(hidden[layer])[block * statement.block : (block + 1) * statement.block].astype(np.float64)
    if own.shape != opened.shape:
        raise MalformedError(f"states opening: layer {layer} is {opened.shape[1]} wide; the model is {own.shape[1]}")
    if not np.isfinite(own).all():
        raise UnavailableError(f"layer {layer}: a hidden state is not finite")
    return own


def _relative(difference: Rows, own: Rows) -> float:
    gap, size = float(np.linalg.norm(difference)), float(np.linalg.norm(own))
    return gap / size if size else (np.inf if gap else 0.0)


def _projected(gap: Rows, layer: int, seed: str) -> Rows:
    """The gap under fresh directions, scaled so that its norm is on average the gap's."""
    settings = FingerprintSettings(layers=(layer,), block=BLOCK_MAX, width=NONCE_WIDTH, bits=32, seed=seed)
    with np.errstate(invalid="ignore"):
        return summarise(gap, layer, settings) / math.sqrt(NONCE_WIDTH)


__all__ = [
    "DistanceLimits",
    "FingerprintCalibration",
    "FingerprintLimits",
    "FingerprintRule",
    "MeasuredModels",
    "judge_fingerprint",
    "judge_fingerprints",
    "judge_states",
    "shipped_calibration",
    "unjudged_fingerprints",
]
