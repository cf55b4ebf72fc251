"""Reads the settings of an optimizer at the moment of its step, because schedules and callbacks change them later."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from tallystick.core.errors import UnavailableError
from tallystick.engines.torch.capture.step import NO_EDITS
from tallystick.engines.torch.environment import switches_now
from tallystick.engines.torch.optimizers import rules_of
from tallystick.formats.optimizers import GroupRule
from tallystick.recording.boundary import sheltered
from tallystick.recording.inference import Marks, buffers_of, marks_of, parameters_of, slots_of, writes, written
from tallystick.recording.loop.step_graph import StepGraph

if TYPE_CHECKING:
    from tallystick.recording.run_recorder import RunRecorder


KEEP_SETTINGS = (
    "leave the optimizer as it is while it is recorded (OneCycleLR: cycle_momentum=False), or record a run of its own "
    "from there"
)
KEEP_STATE = (
    "do that in every step, in place, between `optimizer.step()` and `recorder.step()`, where it is a part of it; "
    "what is done once begins a run of its own"
)
RECORD_FIRST = "do that in every step from the first one on, or call `recorder.step` right after `optimizer.step()`"
RATE_MOVES = (
    "a hook changes the learning rate inside `optimizer.step()`, and no record shows which one counts; "
    "step the schedule after it"
)
SET_BEFORE = "other settings give other bits: set them before the recording, and put back what a validation changes"
UNEVEN = (
    "was written to more or less often in this step than in the first one (model.train() or model.eval() called, or a "
    "validation in training mode); call model.eval() before a validation and model.train() after it, and write into it "
    "in every step if the loop itself does"
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
    rules: tuple[GroupRule, ...] = ()
    """The settings of the optimizer at its last step."""
    trained: frozenset[str] = frozenset()
    """The parameters that had a gradient then."""


class StepWatch:
    """Watches the steps of one optimizer until it is closed; with a `graph`, also for departures from it.

    `sketched` knows sketches of the weights. It is asked if they were written to, because a loop may put averaged
    weights into the model for a validation and restore the others after it; and before each step, because a write
    through `.data` is not counted.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        graph: StepGraph | None,
        sketched: RunRecorder | None,
    ) -> None:
        self.keeps_gradients = False
        self._model, self._optimizer, self._graph, self._sketched = model, optimizer, graph, sketched
        self._parameters = dict(model.named_parameters())
        self._seen = Stepped()
        self._hooks: list[Any] = [optimizer.register_step_post_hook(self._stepped)]
        self._at_step: Marks = {}
        self._at_record: Marks = {}
        self._accumulated: Marks = {}
        self._buffer_writes: dict[str, int] | None = None
        self._rates_before: tuple[float | None, ...] = ()
        self._switches = switches()
        if graph is not None:
            self._at_step, self._at_record = self._learned(), self._buffers()
            self._hooks.append(optimizer.register_step_pre_hook(self._steps))
            self._watch_gradients(graph)

    def take(self, is_anchored: bool = False) -> Stepped:
        """What was seen since the last call; without an optimizer step, only the current rates.

        Where an anchor follows, the weights are read once more: it holds what they are now.
        """
        seen, self._seen = self._seen, Stepped()
        if not seen.count:
            return Stepped(rates=rates_of(self._optimizer))
        if self._graph is None:
            return seen
        uneven = self._uneven()  # counted anew from here, whatever else has changed
        change = seen.change or self._written(RECORD_FIRST) or uneven
        if self._graph.edits.weights is not None:
            self._at_step = self._learned()
            self._note_weights()
        elif not change and is_anchored and (change := self._unseen(RECORD_FIRST)):
            self._note_weights()
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
            self._rates_before = rates_of(self._optimizer)
            if change := self._seen.change or self._written() or self._unseen(KEEP_STATE):
                self._changed_between(change)

    def _stepped(self, optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        with sheltered(self._unreadable):
            change = self._seen.change or ("" if self._graph is None else self._departure())
            gradients = self._gradients() if self.keeps_gradients else None
            is_touched = self._seen.is_touched or self._has_touched()
            taken = self._seen.count + 1, rates_of(optimizer), change, gradients, is_touched
            self._seen = Stepped(*taken, self._rules(), frozenset(self._gradients()))
            if self._graph is not None:
                self._at_step = self._learned()
                if self._graph.edits.weights is None:  # else they are those of the record
                    self._note_weights()

    def _note_weights(self) -> None:
        if self._sketched is not None:
            self._sketched.note_weights()

    def _unseen(self, mends: str) -> str:
        """Whether weights were written to where no counter shows it, since the last step; empty if not."""
        if self._graph is None or self._sketched is None or not self._sketched.has_other_weights():
            return ""
        return f"weights were changed outside of `optimizer.step()`, through `.data` or NumPy; {mends}"

    def _rules(self) -> tuple[GroupRule, ...]:
        """The settings of the optimizer; none where no graph can hold them."""
        try:
            return rules_of(self._optimizer)
        except UnavailableError:
            if self._graph is not None:
                raise
            return ()

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
        now, is_recorded = self._learned(), bool(mends)
        names = written(self._at_step, now)
        if is_recorded and self._graph is not None and self._graph.edits.weights is not None:
            counts = writes({name: self._at_step[name] for name in now if name in self._at_step}, now)
            wanted = {f"weights.{name}": count for name, count in self._graph.edits.weight_writes.items()}
            names = [name for name in now if counts.get(name) != wanted.get(name, 0)]
        if names and all(name.startswith("weights.") for name in names) and self._is_held():
            self._at_step, names = now, []
        return f"{names[0]} was changed outside of `optimizer.step()`; {mends or KEEP_STATE}" if names else ""

    def _is_held(self) -> bool:
        return self._sketched is not None and self._sketched.has_sketch and not self._sketched.has_other_weights()

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
        edits = NO_EDITS if self._graph is None else self._graph.edits
        wanted, default = edits.gradient_writes, edits.default_writes or int(clips)
        return any(count != wanted.get(name, default) for name, count in counts.items())

    def _gradients(self) -> dict[str, torch.Tensor]:
        return {name: value.grad for name, value in self._parameters.items() if value.grad is not None}

    def _departure(self) -> str:
        """Names what keeps any graph from being that of the step; empty if nothing does."""
        if self._rates_before != rates_of(self._optimizer):
            return RATE_MOVES
        if turned := [name for name, now in switches().items() if now != self._switches[name]]:
            return f"{turned[0]} of PyTorch was changed while the loop ran; {SET_BEFORE}"
        return ""


def switches() -> dict[str, str]:
    """The settings of PyTorch that decide bits, as they are now."""
    return switches_now() | {"the number of threads": str(torch.get_num_threads())}


def rates_of(optimizer: torch.optim.Optimizer) -> tuple[float | None, ...]:
    """The learning rate of each group of parameters."""
    rates = (group.get("lr") for group in optimizer.param_groups)
    return tuple(None if rate is None else float(rate) for rate in rates)
