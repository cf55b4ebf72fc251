"""Compares the hidden states that a provider opened after a challenge with the verifier's own pass over the tokens."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from tallystick.answers.distance_limits import FingerprintRule
from tallystick.answers.fingerprints import Compared, Hidden, Rows, largest, together
from tallystick.answers.measured import other_form, unmeasured_limits
from tallystick.answers.policy import ReceiptPolicy
from tallystick.answers.report import CheckLog
from tallystick.errors import MalformedError, ProofError, UnavailableError
from tallystick.tolerances.fingerprints.projection import summarise
from tallystick.tolerances.fingerprints.settings import BLOCK_MAX, Distance, FingerprintSettings
from tallystick.tolerances.sums import euclidean
from tallystick.tolerances.tolerance import Finding
from tallystick.transcripts.model_card import ModelCard
from tallystick.transcripts.receipt import StatesCommitment
from tallystick.transcripts.states_opening import StatesOpening
from tallystick.workloads.hidden_states import Place, check_states_opening, direction_seed

NONCE_WIDTH: Final = 16
"""The number of fresh directions for each opened part."""
ROW: Final = 1.5
"""One row may lie so many limits off: of 24 honest answers one row lay 1.1 off; that of another word of a prompt lies
1.9 and more off."""
FRESH: Final = 2.0
"""Under 16 fresh directions a gap looks twice as large less than once in 10⁶ times: P(χ² > 64) = 1.1e-7."""


@dataclass(frozen=True)
class StatesChallenge:
    """A challenge that the verifier drew after it had the receipt, and the provider's opening.

    It is for `count` parts that the nonce selects; with `layer`, for those of this layer and the one before.
    """

    nonce: bytes
    count: int
    opening: StatesOpening
    layer: int | None = None

    @property
    def size(self) -> int:
        """The size of the opened hidden states in bytes."""
        return sum(len(part.data) * 3 // 4 for part in self.opening.parts)


def opened_layers(challenge: StatesChallenge, statement: StatesCommitment) -> dict[int, npt.NDArray[np.float32]]:
    """The layers whose rows are all opened, each [rows, width]; raises `ProofError` for a wrong opening."""
    parts = check_states_opening(challenge.opening, statement, challenge.nonce, challenge.count, challenge.layer)
    blocks = range(-(-statement.rows // statement.block))
    whole = [layer for layer in sorted(statement.layers) if all((block, layer) in parts for block in blocks)]
    found = {layer: [parts[block, layer] for block in blocks] for layer in whole}
    return {layer: np.concatenate(rows) for layer, rows in found.items() if len({r.shape[1] for r in rows}) == 1}


def judge_challenge(
    log: CheckLog,
    statement: StatesCommitment | None,
    challenge: StatesChallenge,
    hidden: Hidden,
    card: ModelCard,
    policy: ReceiptPolicy,
) -> None:
    """Compare the opening with the states of the verifier's own pass; raises as `judge_states`."""
    if statement is None:
        log.unavailable("states", "the receipt commits to no hidden states")
        return
    rule = policy.fingerprints
    rounded = other_form(statement.dtype, card)
    with log.timing("states", challenge.size):
        found = judge_states(
            challenge.opening,
            statement,
            challenge.nonce,
            hidden,
            rule,
            card,
            count=challenge.count,
            layer=challenge.layer,
            advisory=bool(rounded),
        )
    for finding in found:
        log.add(finding)
    if rounded:
        log.unavailable("states", rounded)
    log.assumptions.append("the nonce of the challenge was drawn by the verifier after it had the receipt")


def judge_states(
    opening: StatesOpening,
    statement: StatesCommitment,
    nonce: bytes,
    hidden: Hidden,
    rule: FingerprintRule,
    card: ModelCard,
    *,
    count: int | None = None,
    layer: int | None = None,
    advisory: bool = False,
) -> tuple[Finding, ...]:
    """Compare opened hidden states with the verifier's rows [committed rows, d] of the committed layers.

    The opened parts must be the `count` that the nonce selects (default `rule.parts`), or those of `layer`. Each part,
    and all parts of a layer together, are compared with the own rows of the promised model directly, and each under
    directions drawn from the nonce. With `advisory`, distances decide nothing; an opening that does not match the
    commitment always rejects.

    Raises:
        MalformedError: the bytes of a part are not rows, or have another width or number than the verifier's rows.
        UnavailableError: own rows are not finite, or there are no limits for a layer.
    """
    try:
        parts = check_states_opening(opening, statement, nonce, rule.parts if count is None else count, layer)
    except ProofError as error:
        return (Finding(1.0, 0.0, "states", detail=str(error)),)
    lacking = [layer for _, layer in parts if rule.limits_for(card, layer, 1) is None]
    if lacking:
        reason = f"no limits were measured for layer {lacking[0]} of {card.layers} in {card.dtype}"
        raise UnavailableError(f"states: {unmeasured_limits(rule, 'states', card) or reason}")
    own = {place: _own_rows(place, rows, statement, hidden) for place, rows in parts.items()}
    with np.errstate(invalid="ignore"):  # NaN stays NaN, and a NaN distance is never allowed
        gaps = {place: rows - own[place] for place, rows in parts.items()}
    direct = [_part_distance(place, _relative(gaps[place], own[place]), statement) for place in parts]
    seed = direction_seed(nonce, statement)
    projected = [
        _part_distance(place, _relative(_projected(gaps[place], place[1], seed), own[place]), statement)
        for place in parts
    ]

    def compared(found: Sequence[Distance], factor: float) -> list[Compared]:
        return [Compared(each, factor * _largest(rule, card, each.layer, each.tokens)) for each in found]

    found = (
        largest(compared(direct, 1.0), "states", "rows as they are"),
        _worst_row(gaps, own, statement, rule, card),
        *_layers(direct, rule, card),
        largest(compared(projected, FRESH), "states", f"{NONCE_WIDTH} directions of the nonce"),
    )
    return tuple(replace(each, advisory=advisory) for each in found)


def _worst_row(
    gaps: Mapping[Place, Rows],
    own: Mapping[Place, Rows],
    statement: StatesCommitment,
    rule: FingerprintRule,
    card: ModelCard,
) -> Finding:
    """The one row that lies farthest off: one other word of a prompt moves its own row most."""
    rows = []
    for (block, layer), gap in gaps.items():
        away, size = (np.linalg.norm(each.astype(np.float64), axis=1) for each in (gap, own[block, layer]))
        with np.errstate(invalid="ignore", divide="ignore"):
            found = np.where(away == 0.0, 0.0, away / size)
        place = int(np.argmax(np.where(np.isnan(found), np.inf, found)))
        rows.append(Distance(layer, block * statement.block + place, 1, float(found[place])))
    return largest([Compared(each, ROW * _largest(rule, card, each.layer, 1)) for each in rows], "states", "one row")


def _layers(found: Sequence[Distance], rule: FingerprintRule, card: ModelCard) -> Iterator[Finding]:
    """All opened parts of each layer together."""
    for layer in sorted({each.layer for each in found}):
        alike = [each for each in found if each.layer == layer]
        tokens = sum(each.tokens for each in alike)
        where = f"layer {layer}, {tokens} opened rows"
        yield Finding(together(alike), _largest(rule, card, layer, tokens), "states", where, "rows as they are")


def _largest(rule: FingerprintRule, card: ModelCard, layer: int, tokens: int) -> float:
    limits = rule.limits_for(card, layer, tokens)
    assert limits is not None  # there are limits for one row
    return rule.margin * limits.largest


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
    gap, size = (euclidean(each.astype(np.float64)) for each in (difference, own))
    return gap / size if size else (np.inf if gap else 0.0)


def _projected(gap: Rows, layer: int, seed: str) -> Rows:
    """The gap under fresh directions, scaled so that the expected square of its norm is that of the gap."""
    settings = FingerprintSettings(layers=(layer,), block=BLOCK_MAX, width=NONCE_WIDTH, bits=32, seed=seed)
    with np.errstate(invalid="ignore"):
        return summarise(gap, layer, settings) / math.sqrt(NONCE_WIDTH)
