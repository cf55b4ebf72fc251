"""Screens: what the anchors of a run show without a replay."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

import numpy as np

from tallystick.audits.checked_run import CheckedRun
from tallystick.audits.first_state import NOTHING_KNOWN, FirstState
from tallystick.audits.replay import as_float
from tallystick.core.digests import digest
from tallystick.core.errors import MalformedError, ProofError
from tallystick.core.tensors import Tensor
from tallystick.formats.data.step_program import projection_seed
from tallystick.formats.optimizers import AdamRule
from tallystick.formats.recipe import Recipe, RecordRecipe, learning_rate
from tallystick.formats.records import BucketSummary, StateSummary, decode_sketch
from tallystick.programs.step_names import UPDATED, WEIGHTS, parameter_of
from tallystick.verdicts.buckets import Bucket
from tallystick.verdicts.distances import Projection
from tallystick.verdicts.exact import difference_norm, element_count, norm, not_finite, side_by_side
from tallystick.verdicts.reach import moment_cosine, reach_adamw, reach_sgd, second_moment_floor, update_profile
from tallystick.verdicts.tolerance import Finding, euclidean, is_float
from tallystick.verdicts.verdict import DIFFERS, Findings, require

# The tensors of a state that screens look at.

SCREENED = frozenset({"F32", "F64", "BF16"})
"""Weights in F16 are left out: their second moments underflow, and no bound on a step follows."""

State = Mapping[str, Tensor]


def weights_of(state: State) -> dict[str, Tensor]:
    """The trainable tensors of a state."""
    return {name: tensor for name, tensor in state.items() if name.startswith("weights.")}


def moments_of(state: State) -> Iterator[str]:
    """The names of the second moments."""
    return (name for name in state if name.endswith(".exp_avg_sq") and state[name].dtype in SCREENED)


def screened_weights(state: State) -> Iterator[str]:
    """The names of the weights that may be held to a bound."""
    return (name for name, tensor in weights_of(state).items() if tensor.dtype in SCREENED)


# Screens of a run that was recorded around a custom training loop.

MOMENTS = ("exp_avg", "exp_avg_sq")


def loop_screens(
    evidence: CheckedRun, before: State, after: State, steps: range, memory: Mapping[str, float], unexplained: Set[str]
) -> Iterator[Finding]:
    """The screens of AdamW for a custom training loop: its spec states the rules, its records the learning rates.

    No record says which parameter belongs to which group, so each may have moved as far as one of the groups allows.
    Nothing is screened where a group uses another optimizer, nor from the first step on that has no graph or other
    settings. `memory` is `memory_of` the first anchor. A weight is not screened if its memory is `unexplained`: the
    prover's moments would set its bound.
    """
    rules = _rules_of_adam(evidence)
    withdrawn = [part.first for part in evidence.claim.withdrawn or ()]
    irregular = evidence.records.varying.first_irregular_step
    ends = min([*withdrawn, *([] if irregular is None else [irregular])], default=steps.stop)
    if not rules or len(rules) < len(evidence.optimizer) or ends < steps.stop:
        return
    rates = [evidence.rates(step) for step in steps]
    decay = min(rule.betas[1] for rule in rules)
    for name in moments_of(before):
        yield second_moment_floor(before[name], after[name], decay, len(steps), where=name)
    edited = _edited_weights(evidence)
    for name in screened_weights(before):
        moments = {f"optimizer.{parameter_of(name)}.{slot}" for slot in MOMENTS}
        if name in edited or unexplained & moments:
            continue
        kept = memory.get(name, 0.0), steps.start - 1
        reaches = _reach_of_groups(rules, rates, before[name], after[name], kept, name)
        yield min(reaches, key=lambda finding: finding.distance)


def _edited_weights(evidence: CheckedRun) -> set[str]:
    """The weights into which the step graph writes after the optimizer's update: no rate says how far they move."""
    outputs = (
        {} if evidence.program is None else {output.name: output.value for output in evidence.program.graph.outputs}
    )
    names = {f"{WEIGHTS}{name.removeprefix(UPDATED)}": name for name in outputs if name.startswith(UPDATED)}
    edited = {weight for weight, name in names.items() if outputs.get(weight) != outputs[name]}
    line = (
        f"how far {len(edited)} weights moved ({min(edited, default='')}): the step writes into them after its update"
    )
    if edited and line not in evidence.findings.not_checked:
        evidence.findings.not_checked.append(line)
    return edited


def memory_of(evidence: CheckedRun, state: State) -> dict[str, float]:
    """The largest |m| / (√v + ε) of each weight in a state: a loop may begin with moments that it did not make."""
    eps = min((rule.eps for rule in _rules_of_adam(evidence)), default=0.0)
    return {name: _memory(state, name, eps) for name in screened_weights(state)}


def _rules_of_adam(evidence: CheckedRun) -> list[AdamRule]:
    return [rule for rule in evidence.optimizer if isinstance(rule, AdamRule)]


def _memory(state: State, name: str, eps: float) -> float:
    slots = [f"optimizer.{parameter_of(name)}.{slot}" for slot in MOMENTS]
    if any(slot not in state for slot in slots):
        return 0.0
    largest = 0.0
    for mean, square in side_by_side(*(state[slot] for slot in slots)):
        with np.errstate(all="ignore"):
            shares = np.abs(mean) / (np.sqrt(square) + eps)
        largest = max(largest, float(np.max(np.nan_to_num(shares, nan=0.0, posinf=np.inf), initial=0.0)))
    return largest


def _reach_of_groups(
    rules: Sequence[AdamRule],
    rates: Sequence[tuple[float, ...]],
    before: Tensor,
    after: Tensor,
    kept: tuple[float, int],
    name: str,
) -> Iterator[Finding]:
    for group, rule in enumerate(rules):
        decay = rule.weight_decay if rule.kind == "adamw" else 0.0
        taken = [step[group] for step in rates]
        yield reach_adamw(before, after, taken, rule.betas, decay, memory=kept, where=name)


# Screens: what the anchors of a run show without a replay.
#
# No honest run of the declared recipe fails an invariant or a bound: these decide. The profile of the updates and their
# direction are statistics: they advise.

LEAST_NORM = 1e-30
Weights: TypeAlias = Mapping[str, np.ndarray[Any, np.dtype[Any]]]


@dataclass
class AnchorScreens:
    """Screens anchors one after the other, in order; keeps the state before.

    Anchor by anchor: finite values, its sketch, its buckets. Pair by pair: second moments, how far weights moved and
    in which direction.
    """

    evidence: CheckedRun
    findings: Findings
    is_complete: bool = True
    """Whether the weights of every anchor have a precision for which bounds on a step follow."""
    _previous: tuple[int, State] | None = None
    _moves: list[float] = field(default_factory=list)
    _memory: dict[str, float] = field(default_factory=dict)
    _is_stopped: bool = False
    _has_gaps: bool = False

    def follow(self, mark: int, state: State | None, first: FirstState = NOTHING_KNOWN) -> None:
        """Screen the state after step `mark`; nothing is screened from an anchor on that is not the recorded one.

        `first` is what is known of the first state, once anchor 0 was read.
        """
        self._is_stopped |= state is None
        if state is None or self._is_stopped:
            return
        try:
            self._screen(mark, state, first)
        except (KeyError, MalformedError, ValueError) as error:
            self.findings.note(DIFFERS, "anchor", f"step {mark}", f"not a state of this run ({error})")
            self._is_stopped = True

    def _screen(self, mark: int, state: State, first: FirstState) -> None:
        evidence, findings = self.evidence, self.findings
        floats = (tensor.dtype for tensor in weights_of(state).values() if is_float(tensor))
        self.is_complete &= all(dtype in SCREENED for dtype in floats)
        bad = not_finite(state)
        findings.note(Finding(float(len(bad)), 0.0), "finite state", f"step {mark}" + (f", {bad[0]}" if bad else ""))
        _screen_continuity(evidence, findings, state, mark)
        _screen_summary(evidence, findings, state, mark)
        if self._previous is not None:
            self._screen_pair(*self._previous, mark, state, first)
        self._previous = mark, state

    def leave_out(self) -> None:
        """The anchors that come next are not read: the one behind them is not compared with the one before them."""
        self._previous, self._has_gaps = None, True

    def finish(self) -> None:
        """Compare the moves of all segments with each other, where every anchor was screened."""
        if self._is_stopped or self._has_gaps or len(self._moves) < 3:
            return
        finding = update_profile(self._moves)
        named = replace(finding, where=f"segment {finding.where}" if finding.where else "")
        self.findings.note(named, "update profile", advisory=True)

    def _screen_pair(self, start: int, before: State, end: int, after: State, first: FirstState) -> None:
        recipe = self.evidence.spec.recipe
        if recipe is not None:
            rates = [learning_rate(recipe, step) for step in range(start + 1, end + 1)]
            self._note(_recipe_screens(self.evidence, recipe, before, after, rates, start), start, end)
            old, new = weights_of(before), weights_of(after)
            moved = difference_norm([new[name] for name in old], list(old.values()))
            self._moves.append(moved / sum(rates) if sum(rates) else float("nan"))
            return

        if start == 0:
            self._memory = memory_of(self.evidence, before)
        steps = range(start + 1, end + 1)
        self._note(loop_screens(self.evidence, before, after, steps, self._memory, first.unexplained), start, end)

    def _note(self, screens: Iterator[Finding], start: int, end: int) -> None:
        for finding in list(screens):
            self.findings.note(finding, finding.name.replace("-", " "), f"steps {start + 1}–{end}")


def screen_anchors(evidence: CheckedRun) -> None:
    """Read and screen all anchors of a run into its findings, up to one that is not the recorded one."""
    screens = AnchorScreens(evidence, evidence.findings)
    for mark in sorted(evidence.anchors):
        try:
            screens.follow(mark, evidence.state(mark))
        except ProofError:
            return
    screens.finish()


def _recipe_screens(
    evidence: CheckedRun, recipe: Recipe, before: State, after: State, rates: Sequence[float], start: int
) -> Iterator[Finding]:
    settings = recipe.optimizer
    if settings.kind == "sgd":
        yield _reach_of_sgd(evidence, recipe, before, after, rates, start)
        return
    yield worst(
        second_moment_floor(before[name], after[name], settings.betas[1], len(rates), where=name)
        for name in moments_of(before)
    )
    yield worst(
        reach_adamw(
            *(before[name], after[name], rates, settings.betas, settings.weight_decay),
            first_step=start + 1,
            where=name,
        )
        for name in screened_weights(before)
    )
    if len(rates) <= 0.5 / (1 - settings.betas[0]):
        yield replace(worst(_directions(before, after)), advisory=True)


def _reach_of_sgd(
    evidence: CheckedRun, recipe: Recipe, before: State, after: State, rates: Sequence[float], start: int
) -> Finding:
    settings, limit = recipe.optimizer, recipe.optimizer.clip_norm or np.inf
    recorded = [evidence.step(step).gradient_norm for step in range(start + 1, start + len(rates) + 1)]
    momenta = [tensor for name, tensor in before.items() if name.endswith(".momentum_buffer")]
    return reach_sgd(
        weights_of(before),
        weights_of(after),
        rates,
        [min(limit, np.inf if stated is None else as_float(stated)) for stated in recorded],
        settings.momentum,
        settings.weight_decay,
        momentum_norm=norm(momenta),
    )


def _directions(before: State, after: State) -> Iterator[Finding]:
    for name in weights_of(before):
        moment = f"optimizer.{name.removeprefix('weights.')}.exp_avg"
        yield moment_cosine(before[name], after[name], after[moment], where=name)


def _screen_continuity(evidence: CheckedRun, findings: Findings, state: State, mark: int) -> None:
    """Compare the sketch recorded with step `mark` with that of the anchor behind it."""
    step = evidence.step(mark).post.projection if mark else evidence.anchors[mark].summary.projection
    if step is None:
        return

    projection = Projection(projection_seed(evidence.spec), evidence.spec.recorded.projection_width)
    weights = {name: tensor for name, tensor in weights_of(state).items() if is_float(tensor)}
    sketch, claimed = projection.sketch(weights), projection.decode(decode_sketch(step))
    with np.errstate(all="ignore"):
        distance = euclidean(sketch - claimed) / max(norm(weights.values()), LEAST_NORM)
    allowed = projection.rounding(element_count(weights.values()))
    findings.note(Finding(distance, allowed), "anchor continuity", f"step {mark}")


def _screen_summary(evidence: CheckedRun, findings: Findings, state: State, mark: int) -> None:
    """Compare the buckets recorded with an anchor with those of its weights: every stack rounds them alike."""
    recorded, summary = evidence.spec.recorded, evidence.anchors[mark].summary
    projection = evidence.step(mark).post.projection if mark else summary.projection
    weights = {name: tensor.values().astype(np.float32, copy=False) for name, tensor in weights_of(state).items()}
    buckets = {mode: _bucket(recorded, mode, weights) for mode in recorded.bucket_modes}
    wanted = StateSummary(projection=projection, fp16_rne=buckets.get("fp16_rne"), grid=buckets.get("grid"))
    with findings.check("anchor summary", f"step {mark}"):
        require(summary == wanted, f"anchor {mark} records other summaries than those of its weights")


def _bucket(recorded: RecordRecipe, mode: Literal["fp16_rne", "grid"], weights: Weights) -> BucketSummary:
    claim = Bucket(mode, recorded.grid_eps, recorded.hint_margin).claim(weights)
    return BucketSummary(digest=claim.digest, hints=digest("blob", claim.hints) if claim.hints else None)


def worst(findings: Iterator[Finding]) -> Finding:
    """The finding that lies furthest beyond what is allowed."""
    seen = list(findings)
    disagreeing = [finding for finding in seen if not finding.agrees]
    return max(disagreeing or seen, key=lambda finding: finding.distance / (finding.allowed or 1.0))
