"""Screens of a run that was recorded around a custom training loop."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from tallystick.audits.checked_run import CheckedRun
from tallystick.audits.screened import State, moments_of, screened_weights
from tallystick.tensors.tensor import Tensor
from tallystick.tolerances.reach import reach_adamw
from tallystick.tolerances.screens import second_moment_floor
from tallystick.tolerances.streams import side_by_side
from tallystick.tolerances.tolerance import Finding
from tallystick.transcripts.optimizers.adam import AdamRule
from tallystick.workloads.names import UPDATED, WEIGHTS, parameter_of

MOMENTS = ("exp_avg", "exp_avg_sq")


def loop_screens(
    evidence: CheckedRun, before: State, after: State, start: int, end: int, memory: Mapping[str, float]
) -> Iterator[Finding]:
    """The screens of AdamW for a custom training loop: its spec states the rules, its records the learning rates.

    No record says which parameter belongs to which group, so each may have moved as far as one of the groups allows.
    Nothing is screened where a group uses another optimizer, nor from the first step on that has no graph or other
    settings. `memory` is `memory_of` the first anchor. A weight with a memory that nothing explains is not screened:
    the prover's moments would set its bound.
    """
    rules = _rules_of_adam(evidence)
    withdrawn = [each.first for each in evidence.claim.withdrawn or ()]
    irregular = evidence.varying.first_irregular_step
    ends = min([*withdrawn, *([] if irregular is None else [irregular])], default=end + 1)
    if not rules or len(rules) < len(evidence.optimizer) or ends <= end:
        return
    steps = range(start + 1, end + 1)
    rates = [evidence.rates(step) for step in steps]
    decay = min(rule.betas[1] for rule in rules)
    for name in moments_of(before):
        yield second_moment_floor(before[name], after[name], decay, len(steps), where=name)
    edited = _edited_weights(evidence)
    for name in screened_weights(before):
        moments = {f"optimizer.{parameter_of(name)}.{slot}" for slot in MOMENTS}
        if name in edited or evidence.unexplained & moments:
            continue
        kept = memory.get(name, 0.0), start
        found = _reach_of_groups(rules, rates, before[name], after[name], kept, name)
        yield min(found, key=lambda finding: finding.distance)


def _edited_weights(evidence: CheckedRun) -> set[str]:
    """The weights into which the step graph writes after the optimizer's update: no rate says how far they move."""
    outputs = {} if evidence.program is None else {each.name: each.value for each in evidence.program.graph.outputs}
    names = {f"{WEIGHTS}{name.removeprefix(UPDATED)}": name for name in outputs if name.startswith(UPDATED)}
    found = {weight for weight, name in names.items() if outputs.get(weight) != outputs[name]}
    line = f"how far {len(found)} weights moved ({min(found, default='')}): the step writes into them after its update"
    if found and line not in evidence.left_out:
        evidence.left_out.append(line)
    return found


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
    memory, age = kept
    for group, rule in enumerate(rules):
        decay = rule.weight_decay if rule.kind == "adamw" else 0.0
        taken = [each[group] for each in rates]
        yield reach_adamw(before, after, taken, rule.betas, decay, memory=memory, memory_age=age, where=name)
