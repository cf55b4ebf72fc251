"""One step of a loop as it was seen, and the watchers that see it by hooks on the optimizer and the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Final, NamedTuple

import torch

from tallystick.core.tensors import State, Tensor
from tallystick.engines.torch.environment import switches_now
from tallystick.engines.torch.optimizers import rules_of
from tallystick.engines.torch.tensors import to_tensor
from tallystick.formats.optimizers import GroupRule
from tallystick.programs.step_names import full_masks
from tallystick.recording.boundary import contain_errors
from tallystick.recording.inference import Marks, buffers_of, marks_of, parameters_of, slots_of, writes, written
from tallystick.recording.loop.replaced import EagerHook
from tallystick.recording.loop.step_graph import StepGraph, numbers_of
from tallystick.recording.run_recorder import RunRecorder

KEEP_SETTINGS: Final = (
    "leave the optimizer as it is while it is recorded (OneCycleLR: cycle_momentum=False), or record a run of its own "
    "from there"
)
KEEP_STATE: Final = (
    "do that in every step, in place, between `optimizer.step()` and `recorder.step()`, where it is a part of it; "
    "what is done once begins a run of its own"
)
RECORD_FIRST: Final = (
    "do that in every step from the first one on, or call `recorder.step` right after `optimizer.step()`"
)
RATE_MOVES: Final = (
    "a hook changes the learning rate inside `optimizer.step()`, and no record shows which one counts; "
    "step the schedule after it"
)
SET_BEFORE: Final = (
    "other settings give other bits: set them before the recording, and put back what a validation changes"
)
UNEVEN: Final = (
    "was written to more or less often in this step than in the first one (model.train() or model.eval() called, or a "
    "validation in training mode); call model.eval() before a validation and model.train() after it, and write into it "
    "in every step if the loop itself does"
)
KINDS_MAX: Final = 4096
"""How many kinds of calls are told apart; steps of later ones are checked as steps of old ones are."""


class Settings(NamedTuple):
    """The rules of the optimizer in a step, and the parameters that had a gradient; other settings, another graph."""

    rules: tuple[GroupRule, ...]
    trained: frozenset[str]


NO_SETTINGS: Final = Settings((), frozenset())


@dataclass(frozen=True)
class StepSeen:
    """One step of a loop: what its author passed to the recorder, and what the watchers observed since the last record.

    Gradients and settings are those of the last optimizer step, and so are the rates: a loop that has stepped its
    schedule knows the rates of the next step only, and would be taken for a fraud.
    """

    index: int
    loss: float = 0.0
    gradient_norm: float | None = None
    parts: Sequence[Any] = ()
    """The micro-batches in the loop's own form. Until the first graph says how many there are, it is one."""
    named: State = field(default_factory=dict)
    """Copies of the tensors of the batch, by the names of a graph without `inputs.`."""
    optimizer_steps: int = 0
    rates: tuple[float, ...] = ()
    settings: Settings = NO_SETTINGS
    change: str = ""
    """What keeps any graph from being that of the step; empty if nothing does."""
    is_touched: bool = False
    """Whether gradients were written to between the backward pass and the optimizer step, other than by clipping."""
    gradients: Mapping[str, torch.Tensor] = field(default_factory=dict)
    words: int | None = None
    """How many random words were drawn, where draws are followed."""

    @property
    def batch(self) -> Any:
        """The batch in the loop's own form: a list if it has several micro-batches."""
        return self.parts[0] if len(self.parts) == 1 else self.parts

    @cached_property
    def numbers(self) -> dict[str, float]:
        """The numbers of the batch that are no tensors, by name."""
        return numbers_of(self.parts)


class Watcher:
    """Sees a part of every step of a loop until it is closed, and raises nothing into the loop."""

    def begin(self, index: int) -> None:
        """Step `index` begins; most watchers have nothing to prepare."""

    def end(self, step: StepSeen) -> StepSeen:
        """The step is over; returns it with what was seen of it."""
        return step

    def close(self) -> None:
        """Remove all hooks."""


class OptimizerWatch(Watcher):
    """Counts optimizer steps and reads the settings at each, because schedules and callbacks change them later."""

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._parameters, self._optimizer = dict(model.named_parameters()), optimizer
        self._seen, self._stated = StepSeen(0), tuple[float | None, ...]()
        self._hook = optimizer.register_step_post_hook(self._stepped)

    def end(self, step: StepSeen) -> StepSeen:
        """The step with its settings, gradients and rates: those that the loop gave where the optimizer states none."""
        seen, self._seen = self._seen, StepSeen(0)
        stated = self._stated if seen.optimizer_steps else rates_of(self._optimizer)
        known = tuple(rate for rate in stated if rate is not None)
        return replace(
            step,
            optimizer_steps=seen.optimizer_steps,
            rates=known if len(known) == len(stated) else step.rates or tuple(rate or 0.0 for rate in stated),
            settings=seen.settings,
            change=seen.change,
            gradients=seen.gradients,
        )

    def close(self) -> None:
        """Remove the hook."""
        self._hook.remove()

    def _stepped(self, *_: Any) -> None:
        self._seen, self._stated = replace(self._seen, optimizer_steps=self._seen.optimizer_steps + 1), ()
        with contain_errors(self._change_to):
            self._stated = rates_of(self._optimizer)
            gradients = {name: value.grad for name, value in self._parameters.items() if value.grad is not None}
            self._seen = replace(self._seen, gradients=gradients, settings=Settings((), frozenset(gradients)))
            self._seen = replace(self._seen, settings=Settings(rules_of(self._optimizer), frozenset(gradients)))

    def _change_to(self, reason: str) -> None:
        self._seen = replace(self._seen, change=reason)  # no graph can hold settings that cannot be read


class DepartureWatch(Watcher):
    """Names what keeps a step from being that of any graph, such as a weight that is written to outside of the step.

    The `recorder` knows sketches of the weights. It is asked if they were written to, because a loop may put averaged
    weights into the model for a validation and restore the others after it; and before each step, because a write
    through `.data` is not counted.
    """

    def __init__(self, graph: StepGraph, recorder: RunRecorder) -> None:
        self._graph, self._recorder, self._edits = graph, recorder, graph.loop.edits
        self._model, self._optimizer = graph.loop.model, graph.loop.optimizer
        self._stride = recorder.spec.recorded.anchor_stride
        self._change, self._is_touched = "", False
        self._accumulated: Marks = {}
        self._buffer_writes: dict[str, int] | None = None
        self._rates_before: tuple[float | None, ...] = ()
        self._switches = switches()
        self._at_step, self._at_record = self._learned(), marks_of(buffers_of(self._model))
        self._parameters = dict(self._model.named_parameters())
        self._hooks: list[Any] = [
            self._optimizer.register_step_pre_hook(self._steps),
            self._optimizer.register_step_post_hook(self._stepped),
        ]
        if not (torch.distributed.is_available() and torch.distributed.is_initialized()):  # else processes average them
            for name in graph.trained:
                hook = partial(self._accumulates, name)
                self._hooks.append(self._parameters[name].register_post_accumulate_grad_hook(hook))  # type: ignore[no-untyped-call]

    def end(self, step: StepSeen) -> StepSeen:
        """The step with what departs from its graph. Where an anchor follows, the weights are read once more."""
        change, self._change = self._change, ""
        is_touched, self._is_touched = self._is_touched, False
        if not step.optimizer_steps:
            return step
        uneven = self._uneven()  # counted anew from here, whatever else has changed
        change = step.change or change or self._written(is_recorded=True) or uneven
        if self._edits.weights is not None:
            self._at_step = self._learned()
            self._recorder.note_weights()
        elif not change and step.index % self._stride == 0 and (change := self._unseen(RECORD_FIRST)):
            self._recorder.note_weights()
        return replace(step, change=change, is_touched=is_touched)

    def close(self) -> None:
        """Remove the hooks from the optimizer and the parameters."""
        for hook in self._hooks:
            hook.remove()
        self._at_step, self._at_record, self._accumulated = {}, {}, {}

    def written_at_end(self) -> str:
        """Names a tensor that was changed after the last record; empty if none was."""
        buffers = written(self._at_record, marks_of(buffers_of(self._model)))
        return f"{buffers[0]} was changed after the last record; {KEEP_STATE}" if buffers else self._written()

    def turned(self) -> str:
        """Names a setting of PyTorch that decides bits and was changed; empty if none was."""
        return next((name for name, now in switches().items() if now != self._switches[name]), "")

    def _steps(self, *_: Any) -> None:
        with contain_errors(self._changes):
            self._rates_before = rates_of(self._optimizer)
            self._change = self._change or self._written() or self._unseen(KEEP_STATE)

    def _stepped(self, *_: Any) -> None:
        with contain_errors(self._changes):
            if not self._change and self._rates_before != rates_of(self._optimizer):
                self._change = RATE_MOVES
            if not self._change and (turned := self.turned()):
                self._change = f"{turned} of PyTorch was changed while the loop ran; {SET_BEFORE}"
            self._is_touched = self._is_touched or self._has_touched()
            self._at_step = self._learned()
            if self._edits.weights is None:  # else they are those of the record
                self._recorder.note_weights()

    def _changes(self, reason: str) -> None:
        self._change = reason

    def _learned(self) -> Marks:
        return marks_of(parameters_of(self._model) | slots_of(self._model, self._optimizer))

    def _unseen(self, mends: str) -> str:
        """Whether weights were written to where no counter shows it, since the last step; empty if not."""
        if not self._recorder.has_other_weights():
            return ""
        return f"weights were changed outside of `optimizer.step()`, through `.data` or NumPy; {mends}"

    def _written(self, is_recorded: bool = False) -> str:
        """Names a weight or slot that was written to outside of the optimizer since its last step; empty if none."""
        now = self._learned()
        names = written(self._at_step, now)
        if is_recorded and self._edits.weights is not None:
            counts = writes({name: self._at_step[name] for name in now if name in self._at_step}, now)
            wanted = {f"weights.{name}": count for name, count in self._edits.weight_writes.items()}
            names = [name for name in now if counts.get(name) != wanted.get(name, 0)]
        is_sketched = all(name.startswith("weights.") for name in names) and self._recorder.has_sketch
        if names and is_sketched and not self._recorder.has_other_weights():  # they were put back
            self._at_step, names = now, []
        mends = RECORD_FIRST if is_recorded else KEEP_STATE
        return f"{names[0]} was changed outside of `optimizer.step()`; {mends}" if names else ""

    def _uneven(self) -> str:
        """Names a buffer written to more or less often in this step than in the first one; empty if none."""
        now = marks_of(buffers_of(self._model))
        counts, self._at_record = writes(self._at_record, now), now
        wanted = self._buffer_writes = counts if self._buffer_writes is None else self._buffer_writes
        uneven = [name for name in sorted(wanted.keys() | counts.keys()) if wanted.get(name) != counts.get(name)]
        return f"{uneven[0]} {UNEVEN}" if uneven else ""

    def _accumulates(self, name: str, parameter: torch.Tensor) -> None:
        with contain_errors(self._changes):
            if parameter.grad is not None:
                self._accumulated |= marks_of({name: parameter.grad})

    def _has_touched(self) -> bool:
        """Whether gradients were written to more or less often than clipping does, which multiplies each once."""
        gradients = {name: self._parameters[name].grad for name in self._accumulated}
        now = marks_of({name: gradient for name, gradient in gradients.items() if gradient is not None})
        counts = writes({name: self._accumulated[name] for name in now}, now)
        default = self._edits.default_writes or int(self._graph.loop.clip_norm is not None)
        return any(count != self._edits.gradient_writes.get(name, default) for name, count in counts.items())


class NewBatchWatch(Watcher):
    """Calls `comes` before a call of `model` that trains and is the first of its kind.

    A recorder is told of a batch when its step is over. The check of a step needs the state before it, and to keep that
    of every step costs too much. So the shapes in the calls of the model are noted, and whether their masks are full. A
    step may call the model several times: the kind of a call is its own shapes after those of the calls before it.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        comes: Callable[[], None],
        contain_errors: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._comes, self._contained = comes, contain_errors
        self._kinds, self._step = set[int](), list[object]()
        self._hook = model.register_forward_pre_hook(EagerHook(self._called), with_kwargs=True)

    def begin(self, index: int) -> None:
        """Expect the calls of another step."""
        self._step = []

    def close(self) -> None:
        """Remove the hook."""
        self._hook.remove()

    def enter(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Note a call of the model; hooks that were added inside of a hook miss that."""
        given = {**kwargs, **{f"x{number}": value for number, value in enumerate(args)}}
        tensors = {name: value for name, value in sorted(given.items()) if isinstance(value, torch.Tensor)}
        shapes = tuple((name, value.dtype, tuple(value.shape)) for name, value in tensors.items())
        masks: dict[str, Tensor] = {
            name: to_tensor(value)
            for name, value in tensors.items()
            if value.ndim == 2 and not value.is_floating_point()
        }
        self._step.append((shapes, full_masks(masks)))
        kind = hash(tuple(self._step))
        if kind not in self._kinds and len(self._kinds) < KINDS_MAX:
            self._kinds.add(kind)
            self._comes()

    def _called(self, _model: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        if torch.is_grad_enabled():
            with self._contained():
                self.enter(args, kwargs)


def switches() -> dict[str, str]:
    """The settings of PyTorch that decide bits, as they are now."""
    return switches_now() | {"the number of threads": str(torch.get_num_threads())}


def rates_of(optimizer: torch.optim.Optimizer) -> tuple[float | None, ...]:
    """The learning rate of each group of parameters."""
    rates = (group.get("lr") for group in optimizer.param_groups)
    return tuple(None if rate is None else float(rate) for rate in rates)
