"""Screens of a run that was recorded around a custom training loop."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tallystick.audits.checked_run import CheckedRun
from tallystick.audits.screened import State, moments_of, screened_weights
from tallystick.tensors.tensor import Tensor
from tallystick.tolerances.reach import reach_adamw
from tallystick.tolerances.screens import second_moment_floor
from tallystick.tolerances.tolerance import Finding
from tallystick.workloads.optimizer import UpdateRule


def loop_screens(evidence: CheckedRun, before: State, after: State, start: int, end: int) -> Iterator[Finding]:
    """The screens of AdamW for a custom training loop: its spec states the rules, its records the learning rates.

    No record says which parameter belongs to which group, so each may have moved as far as one of the groups allows.
    Nothing is screened where a group uses another optimizer.
    """
    rules = [UpdateRule.of_group(group) for group in evidence.optimizer]
    if not rules or any(rule.kind == "sgd" for rule in rules):
        return
    steps = range(start + 1, end + 1)
    rates = [evidence.rates(step) for step in steps]
    decay = min(rule.betas[1] for rule in rules)
    for name in moments_of(before):
        yield second_moment_floor(before[name], after[name], decay, len(steps), where=name)
    for name in screened_weights(before):
        yield min(_reach_of_groups(rules, rates, before[name], after[name], name), key=lambda found: found.distance)


def _reach_of_groups(
    rules: Sequence[UpdateRule], rates: Sequence[tuple[float, ...]], before: Tensor, after: Tensor, name: str
) -> Iterator[Finding]:
    for group, rule in enumerate(rules):
        decay = rule.weight_decay if rule.kind == "adamw" else 0.0
        yield reach_adamw(before, after, [each[group] for each in rates], rule.betas, decay, where=name)
