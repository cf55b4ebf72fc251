"""What an optimizer steps with, read at the moment when it steps: schedules and callbacks run before and after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import nn

from tallystick.frameworks.torch.updates import rule_of
from tallystick.recorders.boundary import sheltered
from tallystick.recorders.step_graph import StepGraph
from tallystick.transcripts.optimizer import UpdateRule

KEEP_SETTINGS = "leave the optimizer as it is while it is recorded, or record a run of its own from there"


@dataclass(frozen=True)
class Stepped:
    """What was seen since the last record: steps of the optimizer, the rates of the last one, and what had changed.

    A rate is `None` where the optimizer states none, as `Adafactor(lr=None)`. `gradients` are there when asked for.
    """

    count: int = 0
    rates: tuple[float | None, ...] = ()
    change: str = ""
    gradients: Mapping[str, torch.Tensor] | None = None


class StepWatch:
    """Listens to the steps of one optimizer until it is closed; with a `graph`, also for what departs from it."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, graph: StepGraph | None) -> None:
        self.keeps_gradients = False
        self._optimizer, self._graph = optimizer, graph
        self._parameters = dict(model.named_parameters())
        self._groups = [len(group["params"]) for group in optimizer.param_groups]
        self._seen = Stepped()
        self._hook = optimizer.register_step_post_hook(self._stepped)

    def take(self) -> Stepped:
        """What was seen since the last call; the rates of now where the optimizer has not stepped."""
        seen, self._seen = self._seen, Stepped()
        return seen if seen.count else Stepped(rates=rates_of(self._optimizer))

    def close(self) -> None:
        """Listen no more."""
        self._hook.remove()

    def _stepped(self, optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        with sheltered(self._changed):
            change = self._seen.change or ("" if self._graph is None else self._departure(self._graph))
            gradients = self._gradients() if self.keeps_gradients else None
            self._seen = Stepped(self._seen.count + 1, rates_of(optimizer), change, gradients)

    def _changed(self, reason: str) -> None:
        """The settings themselves could not be read: whatever the optimizer is now, it is not the captured one."""
        self._seen = Stepped(self._seen.count + 1, self._seen.rates, reason)

    def _gradients(self) -> dict[str, torch.Tensor]:
        return {name: value.grad for name, value in self._parameters.items() if value.grad is not None}

    def _departure(self, graph: StepGraph) -> str:
        """What of the optimizer and its parameters is not as it was captured, or nothing."""
        groups = self._optimizer.param_groups
        if [len(group["params"]) for group in groups] != self._groups:
            return f"the groups of parameters have changed; {KEEP_SETTINGS}"
        rules = [rule_of(self._optimizer, group) for group in groups]
        return _changed_setting(graph.captured.rules, rules) or self._changed_gradient(graph)

    def _changed_gradient(self, graph: StepGraph) -> str:
        for name, parameter in self._parameters.items():
            if (parameter.grad is not None) != (name in graph.trained):
                found, wanted = ("no gradient", "one") if name in graph.trained else ("a gradient", "none")
                return (
                    f"{name} has {found} in this step, and {wanted} in the captured one "
                    "(requires_grad was changed, or a part of the model was not used); "
                    "record a run of its own from there"
                )
        return ""


def rates_of(optimizer: torch.optim.Optimizer) -> tuple[float | None, ...]:
    """The learning rate of each group of parameters."""
    rates = (group.get("lr") for group in optimizer.param_groups)
    return tuple(None if rate is None else float(rate) for rate in rates)


def _changed_setting(captured: Sequence[UpdateRule], found: Sequence[UpdateRule]) -> str:
    for number, (old, new) in enumerate(zip(captured, found, strict=True)):
        for setting in fields(UpdateRule):
            before, now = getattr(old, setting.name), getattr(new, setting.name)
            if before != now:
                where = f"{setting.name} of parameter group {number}"
                return f"{where} is {now}, and {before} in the captured step; {KEEP_SETTINGS}"
    return ""
