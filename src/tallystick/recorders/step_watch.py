"""Reads the settings of an optimizer at the moment of its step, because schedules and callbacks change them later."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import nn

from tallystick.frameworks.torch.capture.updates import rule_of
from tallystick.recorders.boundary import sheltered
from tallystick.recorders.step_graph import StepGraph
from tallystick.recorders.written import Marks, buffers_of, marks_of, parameters_of, slots_of, writes, written
from tallystick.workloads.optimizer import UpdateRule

KEEP_SETTINGS = (
    "leave the optimizer as it is while it is recorded (OneCycleLR: cycle_momentum=False), or record a run of its own "
    "from there"
)
KEEP_STATE = "put what does that into a run of its own, or leave `loss=` out"
RECORD_FIRST = "call `recorder.step` right after `optimizer.step()`, or leave `loss=` out"
UNEVEN = (
    "was written to more or less often in this step than in the first one (model.train() or model.eval() called, or a "
    "validation in training mode); call model.eval() before a validation and model.train() after it"
)


@dataclass(frozen=True)
class Stepped:
    """What was seen since the last record: optimizer steps, the rates of the last step, and what had changed.

    A rate is `None` if the optimizer states none, as `Adafactor(lr=None)`. `gradients` are kept only on request.
    `is_touched` means that gradients were written to between the backward pass and the optimizer step.
    """

    count: int = 0
    rates: tuple[float | None, ...] = ()
    change: str = ""
    gradients: Mapping[str, torch.Tensor] | None = None
    is_touched: bool = False


class StepWatch:
    """Watches the steps of one optimizer until it is closed; with a `graph`, also for departures from it.

    `holds_weights` returns whether the weights are those of the last record. It is called if they were written to,
    because a loop may put averaged weights into the model for a validation and restore the others after it.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        graph: StepGraph | None,
        holds_weights: Callable[[], bool],
    ) -> None:
        self.keeps_gradients = False
        self._model, self._optimizer, self._graph, self._holds_weights = model, optimizer, graph, holds_weights
        self._parameters = dict(model.named_parameters())
        self._groups = [len(group["params"]) for group in optimizer.param_groups]
        self._seen = Stepped()
        self._hooks: list[Any] = [optimizer.register_step_post_hook(self._stepped)]
        self._at_step: Marks = {}
        self._at_record: Marks = {}
        self._accumulated: Marks = {}
        self._buffer_writes: dict[str, int] | None = None
        if graph is not None:
            self._at_step, self._at_record = self._learned(), self._buffers()
            self._hooks.append(optimizer.register_step_pre_hook(self._steps))
            self._watch_gradients(graph)

    def take(self) -> Stepped:
        """What was seen since the last call; without an optimizer step, only the current rates."""
        seen, self._seen = self._seen, Stepped()
        if not seen.count:
            return Stepped(rates=rates_of(self._optimizer))
        change = seen.change or ("" if self._graph is None else self._written(RECORD_FIRST) or self._uneven())
        return replace(seen, change=change)

    def written_at_end(self) -> str:
        """Names a buffer that was changed after the last record; empty if none was."""
        if self._graph is None:
            return ""
        buffers = written(self._at_record, self._buffers())
        return f"{buffers[0]} was changed after the last record; {KEEP_STATE}" if buffers else self._written()

    def close(self) -> None:
        """Remove the hooks from the optimizer and the parameters."""
        for hook in self._hooks:
            hook.remove()
        self._at_step, self._at_record, self._accumulated = {}, {}, {}

    def _steps(self, _optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        with sheltered(self._changed_between):
            if change := self._seen.change or self._written():
                self._changed_between(change)

    def _stepped(self, optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        with sheltered(self._unreadable):
            change = self._seen.change or ("" if self._graph is None else self._departure(self._graph))
            gradients = self._gradients() if self.keeps_gradients else None
            is_touched = self._seen.is_touched or self._has_touched()
            self._seen = Stepped(self._seen.count + 1, rates_of(optimizer), change, gradients, is_touched)
            if self._graph is not None:
                self._at_step = self._learned()

    def _unreadable(self, reason: str) -> None:
        """Count a step whose settings could not be read as a departure from the captured step."""
        self._seen = Stepped(self._seen.count + 1, self._seen.rates, reason)

    def _changed_between(self, reason: str) -> None:
        self._seen = replace(self._seen, change=reason)

    def _learned(self) -> Marks:
        return marks_of(parameters_of(self._model) | slots_of(self._model, self._optimizer))

    def _buffers(self) -> Marks:
        return marks_of(buffers_of(self._model))

    def _written(self, mends: str = "") -> str:
        """Names a weight or slot that was written to outside of the optimizer since its last step; empty if none."""
        now = self._learned()
        names = written(self._at_step, now)
        if names and not mends and all(name.startswith("weights.") for name in names) and self._holds_weights():
            self._at_step, names = now, []
        return f"{names[0]} was changed outside of `optimizer.step()`; {mends or KEEP_STATE}" if names else ""

    def _uneven(self) -> str:
        """Names a buffer written to more or less often in this step than in the first one; empty if none."""
        now = self._buffers()
        counts, self._at_record = writes(self._at_record, now), now
        if self._buffer_writes is None:
            self._buffer_writes = counts
        wanted = self._buffer_writes
        uneven = [name for name in sorted(wanted.keys() | counts.keys()) if wanted.get(name) != counts.get(name)]
        return f"{uneven[0]} {UNEVEN}" if uneven else ""

    def _watch_gradients(self, graph: StepGraph) -> None:
        """Hook the gradients, unless processes average them."""
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            return
        for name in graph.trained:
            hook = self._parameters[name].register_post_accumulate_grad_hook(self._accumulating(name))  # type: ignore[no-untyped-call]
            self._hooks.append(hook)

    def _accumulating(self, name: str) -> Callable[[torch.Tensor], None]:
        def accumulated(parameter: torch.Tensor) -> None:
            with sheltered(self._changed_between):
                if parameter.grad is not None:
                    self._accumulated |= marks_of({name: parameter.grad})

        return accumulated

    def _has_touched(self) -> bool:
        """Whether gradients were written to more or less often than clipping does, which multiplies each once."""
        now = marks_of({name: grad for name, grad in self._gradients().items() if name in self._accumulated})
        counts = writes({name: self._accumulated[name] for name in now}, now)
        clips = self._graph is not None and self._graph.clip_norm is not None
        return any(count != int(clips) for count in counts.values())

    def _gradients(self) -> dict[str, torch.Tensor]:
        return {name: value.grad for name, value in self._parameters.items() if value.grad is not None}

    def _departure(self, graph: StepGraph) -> str:
        """Names a setting or parameter of the optimizer that differs from the captured step; empty if none does."""
        groups = self._optimizer.param_groups
        if [len(group["params"]) for group in groups] != self._groups:
            return f"the groups of parameters have changed; {KEEP_SETTINGS}"
        rules = [rule_of(self._optimizer, group) for group in groups]
        return changed_setting(graph.captured.rules, rules) or self._changed_gradient(graph)

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


def changed_setting(captured: Sequence[UpdateRule], found: Sequence[UpdateRule]) -> str:
    """Names the first setting of the optimizer that differs; empty if none does."""
    for number, (old, new) in enumerate(zip(captured, found, strict=True)):
        for setting in fields(UpdateRule):
            before, now = getattr(old, setting.name), getattr(new, setting.name)
            if before != now:
                where = f"{setting.name} of parameter group {number}"
                return f"{where} is {now}, and {before} in the captured step; {KEEP_SETTINGS}"
    return ""
