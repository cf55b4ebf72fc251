"""Replay-free screens over neighbouring anchors: what no honest run of the declared recipe can show.

Invariants and bounds are theorems and decide; profile and direction are statistics and advise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeAlias

import numpy as np

from tallystick.audits.checked_run import CheckedRun
from tallystick.audits.replay import as_float
from tallystick.commitments.digests import digest
from tallystick.errors import MalformedError, ProofError
from tallystick.judging.findings import Findings, require
from tallystick.tensors.tensor import Tensor
from tallystick.tolerances.bucket import Bucket
from tallystick.tolerances.projection import Projection
from tallystick.tolerances.reach import reach_adamw, reach_sgd
from tallystick.tolerances.screens import moment_cosine, second_moment_floor, update_profile
from tallystick.tolerances.streams import difference_norm, element_count, norm, not_finite
from tallystick.tolerances.tolerance import Finding, is_float
from tallystick.transcripts.recipe import Recipe, RecordRecipe
from tallystick.transcripts.summary import BucketSummary, StateSummary, decode_sketch
from tallystick.workloads.optimizer import UpdateRule
from tallystick.workloads.plan import projection_seed
from tallystick.workloads.schedule import learning_rate

LEAST_NORM = 1e-30
SCREENED = frozenset({"F32", "F64", "BF16"})
"""Weights in F16 are left out: their second moments underflow, and no bound on a step follows."""

State = Mapping[str, Tensor]
Weights: TypeAlias = Mapping[str, np.ndarray[Any, np.dtype[Any]]]


def screen_anchors(evidence: CheckedRun) -> None:
    """Run every screen over every pair of neighbouring anchors; holds two states at a time."""
    recipe = evidence.spec.recipe
    marks = sorted(evidence.anchors)
    previous: State | None = None
    moves: list[float] = []
    for start, mark in zip([*marks[:1], *marks], marks, strict=False):
        try:
            state = evidence.state(mark)
        except ProofError:
            return  # the anchor itself was rejected already
        evidence.is_screened &= all(
            tensor.dtype in SCREENED for tensor in weights_of(state).values() if is_float(tensor)
        )
        _screen_finite(evidence.findings, state, mark)
        _screen_continuity(evidence, state, mark)
        _screen_summary(evidence, state, mark)
        if previous is not None and recipe is not None:
            _screen_segment(evidence, recipe, previous, state, start, mark)
            moves.append(_move_per_rate(recipe, previous, state, start, mark))
        elif previous is not None and evidence.optimizer:
            rules = [UpdateRule.of_group(group) for group in evidence.optimizer]
            if all(rule.kind != "sgd" for rule in rules):
                _note(evidence, _loop_screens(evidence, rules, previous, state, start, mark), start, mark)
        previous = state
    if len(moves) >= 3:
        finding = update_profile(moves)
        named = replace(finding, where=f"segment {finding.where}" if finding.where else "")
        evidence.findings.note(named, "update profile", advisory=True)


def _screen_segment(evidence: CheckedRun, recipe: Recipe, before: State, after: State, start: int, end: int) -> None:
    _note(evidence, _screens(evidence, recipe, before, after, _rates(recipe, start, end), start, end), start, end)


def _note(evidence: CheckedRun, screens: Iterator[Finding], start: int, end: int) -> None:
    try:
        screened = list(screens)
    except (KeyError, MalformedError, ValueError) as error:
        raise MalformedError(f"anchor of step {end}: not a state of this run ({error})") from None
    for finding in screened:
        evidence.findings.note(finding, finding.name.replace("-", " "), f"steps {start + 1}–{end}")


def _loop_screens(
    evidence: CheckedRun, rules: Sequence[UpdateRule], before: State, after: State, start: int, end: int
) -> Iterator[Finding]:
    """The screens of AdamW for somebody's own loop: its spec states the rules, its records the learning rates.

    Which parameter belongs to which group stands nowhere, so each may have moved as far as one of the groups allows.
    """
    steps = range(start + 1, end + 1)
    rates = [evidence.rates(step) for step in steps]
    decay = min(rule.betas[1] for rule in rules)
    for name in _moments_of(before):
        yield second_moment_floor(before[name], after[name], decay, len(steps), where=name)
    for name in _screened_weights(before):
        yield min(_reach_of_groups(rules, rates, before[name], after[name], name), key=lambda found: found.distance)


def _reach_of_groups(
    rules: Sequence[UpdateRule], rates: Sequence[tuple[float, ...]], before: Tensor, after: Tensor, name: str
) -> Iterator[Finding]:
    for group, rule in enumerate(rules):
        decay = rule.weight_decay if rule.kind == "adamw" else 0.0
        yield reach_adamw(before, after, [each[group] for each in rates], rule.betas, decay, where=name)


def _screens(
    evidence: CheckedRun,
    recipe: Recipe,
    before: State,
    after: State,
    rates: Sequence[float],
    start: int,
    end: int,
) -> Iterator[Finding]:
    if recipe.optimizer.kind == "sgd":
        yield _reach_of_sgd(evidence, recipe, before, after, rates, start, end)
        return
    yield worst(_second_moments(recipe, before, after, end - start))
    yield worst(_reach_of_adamw(recipe, before, after, rates, start))
    if end - start <= 0.5 / (1 - recipe.optimizer.betas[0]):
        yield replace(worst(_directions(before, after)), advisory=True)


def _second_moments(recipe: Recipe, before: State, after: State, steps: int) -> Iterator[Finding]:
    for name in _moments_of(before):
        yield second_moment_floor(before[name], after[name], recipe.optimizer.betas[1], steps, where=name)


def _reach_of_adamw(
    recipe: Recipe, before: State, after: State, rates: Sequence[float], start: int
) -> Iterator[Finding]:
    settings = recipe.optimizer
    for name in _screened_weights(before):
        yield reach_adamw(
            before[name],
            after[name],
            rates,
            settings.betas,
            settings.weight_decay,
            first_step=start + 1,
            where=name,
        )


def _moments_of(state: State) -> Iterator[str]:
    return (name for name in state if name.endswith(".exp_avg_sq") and state[name].dtype in SCREENED)


def _screened_weights(state: State) -> Iterator[str]:
    return (name for name in state if name.startswith("weights.") and state[name].dtype in SCREENED)


def _reach_of_sgd(
    evidence: CheckedRun,
    recipe: Recipe,
    before: State,
    after: State,
    rates: Sequence[float],
    start: int,
    end: int,
) -> Finding:
    settings, limit = recipe.optimizer, recipe.optimizer.clip_norm or np.inf
    norms = [_gradient_norm(evidence, step) for step in range(start + 1, end + 1)]
    momenta = [tensor for name, tensor in before.items() if name.endswith(".momentum_buffer")]
    return reach_sgd(
        weights_of(before),
        weights_of(after),
        rates,
        [min(limit, each) for each in norms],
        settings.momentum,
        settings.weight_decay,
        momentum_norm=norm(momenta),
    )


def _gradient_norm(evidence: CheckedRun, step: int) -> float:
    recorded = evidence.step(step).gradient_norm
    return np.inf if recorded is None else as_float(recorded)


def _directions(before: State, after: State) -> Iterator[Finding]:
    for name in (name for name in before if name.startswith("weights.")):
        moment = f"optimizer.{name.removeprefix('weights.')}.exp_avg"
        yield moment_cosine(before[name], after[name], after[moment], where=name)


def _screen_finite(findings: Findings, state: State, mark: int) -> None:
    bad = not_finite(state)
    where = f"step {mark}" + (f", {bad[0]}" if bad else "")
    findings.note(Finding(float(len(bad)), 0.0), "finite state", where)


def _screen_continuity(evidence: CheckedRun, state: State, mark: int) -> None:
    """The sketch recorded with a step has to be that of the anchor that claims to follow it."""
    anchor = evidence.anchors[mark].summary.projection
    step = evidence.step(mark).post.projection if mark else anchor
    if step is None:
        return
    projection = Projection(projection_seed(evidence.spec), evidence.spec.recorded.projection_width)
    weights = {name: tensor for name, tensor in weights_of(state).items() if is_float(tensor)}
    found, claimed = projection.sketch(weights), projection.decode(decode_sketch(step))
    with np.errstate(all="ignore"):
        distance = float(np.linalg.norm(found - claimed)) / max(norm(weights.values()), LEAST_NORM)
    allowed = projection.rounding(element_count(weights.values()))
    evidence.findings.note(Finding(distance, allowed), "anchor continuity", f"step {mark}")


def _screen_summary(evidence: CheckedRun, state: State, mark: int) -> None:
    """The buckets recorded beside an anchor have to be those of its weights; rounding is the same everywhere."""
    recorded, summary = evidence.spec.recorded, evidence.anchors[mark].summary
    projection = evidence.step(mark).post.projection if mark else summary.projection
    weights = {name: tensor.values().astype(np.float32, copy=False) for name, tensor in weights_of(state).items()}
    buckets = {mode: _bucket(recorded, mode, weights) for mode in recorded.bucket_modes}
    wanted = StateSummary(projection=projection, fp16_rne=buckets.get("fp16_rne"), grid=buckets.get("grid"))
    with evidence.findings.check("anchor summary", f"step {mark}"):
        require(summary == wanted, f"anchor {mark} records other summaries than those of its weights")


def _bucket(recorded: RecordRecipe, mode: Literal["fp16_rne", "grid"], weights: Weights) -> BucketSummary:
    claim = Bucket(mode, recorded.grid_eps, recorded.hint_margin).claim(weights)
    return BucketSummary(digest=claim.digest, hints=digest("blob", claim.hints) if claim.hints else None)


def weights_of(state: State) -> dict[str, Tensor]:
    """The trainable tensors of a state."""
    return {name: tensor for name, tensor in state.items() if name.startswith("weights.")}


def worst(findings: Iterator[Finding]) -> Finding:
    """The finding that lies furthest beyond what is allowed."""
    seen = list(findings)
    disagreeing = [finding for finding in seen if not finding.agrees]
    return max(disagreeing or seen, key=lambda finding: finding.distance / (finding.allowed or 1.0))


def _rates(recipe: Recipe, start: int, end: int) -> list[float]:
    return [learning_rate(recipe, step) for step in range(start + 1, end + 1)]


def _move_per_rate(recipe: Recipe, before: State, after: State, start: int, end: int) -> float:
    old, new = weights_of(before), weights_of(after)
    moved = difference_norm([new[name] for name in old], list(old.values()))
    total = sum(_rates(recipe, start, end))
    return moved / total if total else float("nan")
