"""Opened hidden states and the tokens they belong to, against the verifier's own pass."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt

from tallystick.audits.answers.fingerprints import Hidden, HiddenRows, compared, together, worst
from tallystick.audits.answers.limits import FingerprintRule
from tallystick.audits.answers.power import other_form, unmeasured_limits
from tallystick.audits.answers.subject import Ids, StatesChallenge, Verification
from tallystick.core.errors import MalformedError, ProofError, UnavailableError
from tallystick.formats.claims import ModelCard
from tallystick.formats.fingerprints import BLOCK_MAX, Distance, FingerprintSettings
from tallystick.formats.hidden_states import Place, check_states_opening, direction_seed, judged_layers
from tallystick.formats.receipt import EngineStatement, StatesCommitment, Tokens, tokens_digest
from tallystick.verdicts.fingerprints import summarise
from tallystick.verdicts.language_model import LanguageModel, Rows
from tallystick.verdicts.tolerance import Finding, euclidean

# The tokens that a verifier computes with: they match the digests in the receipt.


def known_tokens(case: Verification, own_prompt: Ids | None) -> tuple[Ids | None, Ids | None]:
    """The tokens of prompt and answer to compute with, from receipt, response and request; None if unknown.

    Tokens with another digest than the receipt states are ignored.
    """
    receipt, response = case.receipt, case.context.response
    prompt = _matching(receipt.request.prompt, (response.prompt_token_ids, own_prompt))
    answer = _matching(receipt.answer.tokens, (response.choice.token_ids,))
    for name, ids in (("prompt", prompt), ("tokens", answer)):
        if ids is None:
            line = "the receipt holds their digest alone, and nothing else at hand belongs to it"
            case.findings.leave_open(name, line)
    return prompt, answer


def _matching(stated: Tokens, candidates: tuple[Ids | None, ...]) -> Ids | None:
    if stated.ids is not None or stated.over is not None:
        return stated.ids
    known = (ids for ids in candidates if ids is not None)
    return next((ids for ids in known if (len(ids), tokens_digest(ids)) == (stated.count, stated.digest)), None)


# Compares the hidden states that a provider opened after a challenge with the verifier's own pass over the tokens.

NONCE_WIDTH: Final = 16
"""The number of fresh directions for each opened part."""
ROW: Final = 1.5
"""One row may lie so many limits off: of 24 honest answers one row lay 1.1 off; that of another word of a prompt lies
1.9 and more off."""
FRESH: Final = 2.0
"""Under 16 fresh directions a gap looks twice as large less than once in 10⁶ times: P(χ² > 64) = 1.1e-7."""


def opened_layers(challenge: StatesChallenge, statement: StatesCommitment) -> dict[int, npt.NDArray[np.float32]]:
    """The layers whose rows are all opened, each [rows, width]; raises `ProofError` for a wrong opening."""
    parts = check_states_opening(challenge.opening, statement, challenge.nonce, challenge.count, challenge.layer)
    blocks = range(-(-statement.rows // statement.block))
    whole = [layer for layer in sorted(statement.layers) if all((block, layer) in parts for block in blocks)]
    blocks_of = {layer: [parts[block, layer] for block in blocks] for layer in whole}
    return {layer: np.concatenate(rows) for layer, rows in blocks_of.items() if len({r.shape[1] for r in rows}) == 1}


def judge_challenge(case: Verification, challenge: StatesChallenge, hidden: Hidden) -> None:
    """Compare the opening with the states of the verifier's own pass; raises as `judge_states`."""
    findings, statement, card = case.findings, case.receipt.states, case.model.card
    if statement is None:
        findings.leave_open("states", "the receipt commits to no hidden states")
        return
    rounded = other_form(statement.dtype, card)
    with findings.timing("states", challenge.size):
        compared = judge_states(challenge, statement, hidden, case.policy.fingerprints, card, bool(rounded))
    findings.seen += compared
    if rounded:
        findings.leave_open("states", rounded)
    findings.assumptions.append("the nonce of the challenge was drawn by the verifier after it had the receipt")


def judge_states(
    challenge: StatesChallenge,
    statement: StatesCommitment,
    hidden: Hidden,
    rule: FingerprintRule,
    card: ModelCard,
    advisory: bool = False,
) -> tuple[Finding, ...]:
    """Compare opened hidden states with the verifier's rows [committed rows, d] of the committed layers.

    Each opened part, and all parts of a layer together, are compared with the own rows of the promised model directly,
    and each under directions drawn from the nonce. With `advisory`, distances decide nothing; an opening that does not
    match the commitment always rejects.

    Raises:
        MalformedError: the bytes of a part are not rows, or have another width or number than the verifier's rows.
        UnavailableError: own rows are not finite, or there are no limits for a layer.
    """
    try:
        parts = check_states_opening(challenge.opening, statement, challenge.nonce, challenge.count, challenge.layer)
    except ProofError as error:
        return (Finding(1.0, 0.0, "states", detail=str(error)),)
    lacking = [layer for _, layer in parts if rule.limits_for(card, layer, 1) is None]
    if lacking:
        reason = f"no limits were measured for layer {lacking[0]} of {card.layers} in {card.dtype}"
        raise UnavailableError(f"states: {unmeasured_limits(rule, 'states', card) or reason}")
    own = {place: _own_rows(place, rows, statement, hidden) for place, rows in parts.items()}
    with np.errstate(invalid="ignore"):  # NaN stays NaN, and a NaN distance is never allowed
        gaps = {place: rows - own[place] for place, rows in parts.items()}
    seed = direction_seed(challenge.nonce, statement)

    def distance(place: Place, gap: HiddenRows) -> Distance:
        first = place[0] * statement.block
        return Distance(place[1], first, min(statement.block, statement.rows - first), _relative(gap, own[place]))

    def allowed(each: Distance) -> float:
        limits = rule.limits_for(card, each.layer, each.tokens)
        assert limits is not None  # there are limits for one row
        return rule.margin * limits.largest

    direct = [distance(place, gap) for place, gap in gaps.items()]
    projected = [distance(place, _projected(gap, place[1], seed)) for place, gap in gaps.items()]
    rows = [_worst_row(place, gap, own[place], statement) for place, gap in gaps.items()]
    fresh = f"{NONCE_WIDTH} directions of the nonce"
    findings = [
        worst([compared(each, allowed(each), "states", "rows as they are") for each in direct]),
        worst([compared(each, ROW * allowed(each), "states", "one row") for each in rows]),
    ]
    for layer in sorted({each.layer for each in direct}):
        alike = [each for each in direct if each.layer == layer]
        whole = Distance(layer, 0, sum(each.tokens for each in alike), together(alike))
        where = f"layer {layer}, {whole.tokens} opened rows"
        findings.append(Finding(whole.distance, allowed(whole), "states", where, "rows as they are"))
    findings.append(worst([compared(each, FRESH * allowed(each), "states", fresh) for each in projected]))
    return tuple(replace(each, advisory=advisory) for each in findings)


def _worst_row(place: Place, gap: HiddenRows, own: HiddenRows, statement: StatesCommitment) -> Distance:
    """The one row that lies farthest off: one other word of a prompt moves its own row most."""
    shares = row_distances(gap.astype(np.float64), own.astype(np.float64))
    row = int(np.argmax(np.where(np.isnan(shares), np.inf, shares)))
    return Distance(place[1], place[0] * statement.block + row, 1, float(shares[row]))


def row_distances(gap: HiddenRows, own: HiddenRows) -> HiddenRows:
    """The norm of each row of a difference relative to that of the own row, F64[rows]; 0 where nothing differs."""
    away, size = (np.linalg.norm(rows, axis=1) for rows in (gap, own))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(away == 0.0, 0.0, away / size)


def _own_rows(place: Place, opened: HiddenRows, statement: StatesCommitment, hidden: Hidden) -> HiddenRows:
    block, layer = place
    if layer not in hidden or len(hidden[layer]) != statement.rows:
        raise MalformedError(f"states.rows: {statement.rows} rows are not those of the tokens fed")
    own = np.asarray(hidden[layer])[block * statement.block : (block + 1) * statement.block].astype(np.float64)
    if own.shape != opened.shape:
        raise MalformedError(f"states opening: layer {layer} is {opened.shape[1]} wide; the model is {own.shape[1]}")
    if not np.isfinite(own).all():
        raise UnavailableError(f"layer {layer}: a hidden state is not finite")
    return own


def _relative(difference: HiddenRows, own: HiddenRows) -> float:
    gap, size = (euclidean(each.astype(np.float64)) for each in (difference, own))
    return gap / size if size else (np.inf if gap else 0.0)


def _projected(gap: HiddenRows, layer: int, seed: str) -> HiddenRows:
    """The gap under fresh directions, scaled so that the expected square of its norm is that of the gap."""
    settings = FingerprintSettings(layers=(layer,), block=BLOCK_MAX, width=NONCE_WIDTH, bits=32, seed=seed)
    with np.errstate(invalid="ignore"):
        return summarise(gap, layer, settings) / math.sqrt(NONCE_WIDTH)


# Runs opened layers again from the opened states of the layer before, and asks whether they are as near as one stack.
#
# Over many layers, rounding adds up until it hides a few steps of training. In one layer from an exact input there is
# little of it, and most of that is the same on every stack: kernels differ in a few elements, other weights in most. So
# the claimed rows are compared with those of the verifier's own stacks, in units of how far these lie from a run in
# F32. An honest provider of the same library lies near one of them. Nobody knows how near a library with other kernels
# lies: there the distance decides nothing, and the report says what is not excluded.

RERUN: Final = "rerun"
MEASURED: Final = ("transformers", "cpu", "native")
"""Engine, device and cache of the providers on which the limit was measured."""


def judge_reruns(case: Verification, challenge: StatesChallenge, wide: LanguageModel) -> None:
    """Compare each layer opened in full together with the one before; `wide` is the promised model in F32.

    Raises `ProofError` for a wrong opening.
    """
    findings, card, states, rule = case.findings, case.model.card, case.receipt.states, case.policy.fingerprints
    allowed = rule.rounding_for(card).get("layer")
    if states is None or allowed is None:
        return
    judged = [layer for layer in judged_layers(states) if layer < card.layers]
    if reason := _unable_to_rerun(states, card, judged):
        # A provider whose weights are slightly changed would write this too, so it is no reason to accept.
        findings.leave_open(
            RERUN,
            f"small changes of weights: {reason}; a policy whose `fingerprints.rounding` has no limit for the place "
            "`layer` does without this check",
        )
        return
    if left := ", ".join(str(layer) for layer in range(card.layers) if layer not in judged):
        line = f"{RERUN}: layers {left}: the receipt does not commit to them and to the ones before"
        findings.not_checked.append(line)
    opened = opened_layers(challenge, states)
    whole = [layer for layer in judged if {layer, max(layer - 1, 0)} <= opened.keys()]
    if not whole:
        line = f"{RERUN}: no layer is opened in full together with the one before: challenge a layer"
        findings.not_checked.append(line)
        return
    given = {layer - 1: opened.get(layer - 1, opened[layer]) for layer in whole}
    near, true = [*case.model.reruns(case.fed, given)], next(wide.reruns(case.fed, given), {})
    engine = case.receipt.engine
    known = rule.rounding is not None or is_measured(engine)  # the verifier's own limits decide for all
    for layer in sorted(whole) if near and true else ():
        ratio = nearest(opened[layer], [each[layer] for each in near], true[layer])
        detail = f"of own rounding from the nearest of {len(near)} own stacks, run from the layer before"
        where = f"layer {layer}, {len(opened[layer])} rows"
        findings.note(Finding(ratio, allowed, RERUN, where, detail, advisory=not known))
        if not known and not ratio <= allowed:
            findings.leave_open(
                RERUN,
                f"small changes of weights: layer {layer} lies {ratio:.2f} of own rounding away, and how far "
                f"{engine.name} on {engine.device} does was not measured; a policy that states "
                "`fingerprints.rounding` decides",
                lasting=True,
            )


def _unable_to_rerun(states: StatesCommitment, card: ModelCard, judged: Sequence[int]) -> str:
    """Why no layer can be run again from what the receipt commits to, and what mends that; empty if one can."""
    if not states.prompt:
        return "the receipt commits to the answer's states alone, and a layer needs the prompt's too (`prompt`)"
    if states.dtype != card.dtype:
        return f"the states are kept in {states.dtype}, and the model computes in {card.dtype}: keep them as they are"
    return "" if judged else "the receipt commits to no layer together with the one before: commit to all"


def is_measured(engine: EngineStatement) -> bool:
    """Whether the limit was measured on providers like this one; a false word leaves the verdict inconclusive."""
    return (engine.name, engine.device, engine.kv_cache) == MEASURED


def nearest(claimed: Rows, near: Sequence[Rows], wide: Rows) -> float:
    """The least distance of claimed rows [tokens, width] from own ones, in units of how far these lie from F32.

    Rows count relative to their norm, so that no large row decides. NaN is infinite.
    """
    size = np.maximum(np.linalg.norm(wide.astype(np.float64), axis=1, keepdims=True), 1e-300)

    def ratio(own: Rows) -> float:
        if own.shape != claimed.shape:
            return math.inf
        away, rounding = ((each.astype(np.float64) - own) / size for each in (claimed, wide))
        found = euclidean(away) / max(euclidean(rounding), 1e-300)
        return math.inf if math.isnan(found) else found

    return min(map(ratio, near))
