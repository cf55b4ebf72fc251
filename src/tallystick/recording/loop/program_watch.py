"""Watches a step of a loop, and finds out what its loss is, how it clips and how often it accumulates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from tallystick.core.errors import UnavailableError
from tallystick.engines.torch.capture.step import GRADIENTS, NO_EDITS, Edits
from tallystick.engines.torch.optimizers import each_of, rules_of
from tallystick.engines.torch.watching.operator_log import LoopCall, OperatorLog, places
from tallystick.engines.torch.watching.program import (
    EqualValues,
    WatchedLoss,
    clip_norm_of,
    edit_of,
    live_calls,
    sources_of,
)
from tallystick.engines.torch.wrappers import Ema
from tallystick.formats.optimizers import GroupRule, changed_setting
from tallystick.recording.boundary import contain_errors
from tallystick.recording.inference import Marks, marks_of, writes
from tallystick.recording.loop.step_graph import LoopStep, LossOfBatch, StepGraph, as_mapping, parts_of
from tallystick.recording.loop.watchers import KEEP_SETTINGS, StepSeen, Watcher

# One backward pass of a watched step: the loss behind it, as a function of model and batch.

OWN_GRADIENT: Final = "backward() was not called on one number; call it on the loss"
NOT_IN_BATCH: Final = (
    "the loss depends on {} that is not in batch=; give batch=(inputs, targets), all that the loss reads"
)
RANDOM: Final = (
    "the loss depends on random numbers ({}); turn dropout off (p=0) or give the recorder a seed (`seed=1`), and "
    "give in batch= what the loop itself draws, just as the loss reads it"
)
CHANGED: Final = "{} of the batch was changed after the loss had read it; give the recorder a copy from before"
OF_GRADIENTS: Final = "the loss depends on gradients of the same step (create_graph=True), which is not captured"
UNSCALED: Final = (
    "backward() is called {0} times in the step; divide each loss by {0}, so that their mean is minimised, or add up "
    "losses of the same batch and call it once"
)


@dataclass(frozen=True)
class _WatchedBackward:
    """The calls before a backward pass, those in `span` since the pass before it, and the micro-batch of this pass.

    `buffers` are the storages of the model's buffers, and `count` backward passes make a step.
    """

    log: OperatorLog
    equal: EqualValues
    span: range
    batch: Mapping[str, torch.Tensor]
    buffers: Set[int]
    count: int

    def loss(self) -> WatchedLoss:
        """The loss; raises `UnavailableError` with the reason why it is no function of model and batch."""
        log, root, live = self.log, self._root, self._live
        sources = sources_of(live, root)
        if names := sorted({call.name for call in live if call.is_random and not call.is_seeded}):
            raise UnavailableError(RANDOM.format(names[0]))
        given = {number: name for number in sources if (name := self._name(number))}
        reading = {id(call) for call in live if any(place.number in given for place in call.operands)}
        first = next((index for index, call in enumerate(log.calls) if id(call) in reading), 0)
        written = frozenset[int]().union(*(call.written for call in log.calls[first:]))
        for number, name in given.items():
            if log.seen[number].storage in written:
                raise UnavailableError(CHANGED.format(name))
        held = {number: log.held[number] for number in sources if number in log.held}
        constants = {number: self._constant(number) for number in sources if number not in given.keys() | held.keys()}
        fixed = [
            f"the number {value.item()}" if value.numel() == 1 else f"a tensor of shape {tuple(value.shape)}"
            for value in constants.values()
            if value.numel()
        ]
        return WatchedLoss(live, held, given, constants, root, tuple(fixed))

    @property
    def reads(self) -> set[int]:
        """The tensors that the loss depends on, those of the batch left out."""
        return {place.number for call in self._live for place in call.operands} - self._given.keys()

    @cached_property
    def _live(self) -> list[LoopCall]:
        log = self.log
        return live_calls(log.calls, log.seen, self._root, self.buffers, self._given.keys(), self.span)

    @cached_property
    def _root(self) -> int:
        """The loss; with several backward passes in a step, the number that is divided by their count."""
        last = self.log.calls[self.span.stop - 1] if self.span else None
        if last is None or last.name != "aten.ones_like.default":  # how `backward()` makes the first gradient
            raise UnavailableError(OWN_GRADIENT)
        root = next(last.operands).number
        if self.count == 1:
            return root
        calls = self.log.calls[self.span.start : self.span.stop]
        scaling = next(call for call in calls[::-1] if root in {place.number for place in places(call.results)})
        scales: dict[str, float] = {"aten.div.Tensor": self.count}
        if not self.count & (self.count - 1):  # a product has the bits of a quotient for powers of 2
            scales["aten.mul.Tensor"] = 1 / self.count
        if scaling.name in scales and scaling.args[1] == scales[scaling.name]:
            return next(scaling.operands).number
        raise UnavailableError(UNSCALED.format(self.count))

    @cached_property
    def _given(self) -> dict[int, str]:
        """The tensors that hold the values of the batch, by number."""
        named = {
            same: name
            for name, value in self.batch.items()
            if (number := self.log.number_of(value)) is not None
            for same in self.equal.same_as(number)
        }
        every = range(len(self.log.seen))
        return {number: named[first] for number in every if (first := self.equal.first(number)) in named}

    def _name(self, number: int) -> str:
        """The name in the batch of a tensor that nothing in the step makes; empty if it is not there."""
        value = self.log.seen[number].value
        if number in self._given or value is None or value.numel() < 2:
            return self._given.get(number, "")
        for name, other in self.batch.items():
            if (value.dtype, value.device) == (other.dtype, other.device) and torch.equal(value, other):
                return name
        return ""

    def _constant(self, number: int) -> torch.Tensor:
        seen = self.log.seen[number]
        if not seen.from_elsewhere:
            raise UnavailableError(OF_GRADIENTS)
        if seen.value is None:
            raise UnavailableError(NOT_IN_BATCH.format(f"a tensor of shape {seen.shape}"))
        return seen.value


NO_BACKWARD: Final = "no backward() was seen before the first record; begin the recording before the first forward pass"
BATCH_OF_MANY: Final = (
    "backward() was called {} times in the step; give batch= as a list of as many micro-batches, and record the mean "
    "of their losses"
)
MOVED: Final = (
    "weights are moved between two backward passes of a step, as sharpness-aware minimisation does; no graph holds that"
)
FUNCTION: Final = (
    "the loss goes through the autograd.Function {}, whose backward pass is code of the loop; write it with operators "
    "of PyTorch"
)
OTHERS: Final = "{} steps weights that the loss depends on too, and was not given; give all optimizers as a list"
NO_TENSORS: Final = (
    "batch= is left out or holds no tensors; give batch=(inputs, targets), the tensors that the loss reads"
)


@dataclass(frozen=True)
class GivenLoss:
    """The loss of a loop as its author states it, an example of a batch, and how often and to what norm it steps."""

    loss: LossOfBatch
    example: Any
    clip_norm: float | None
    accumulation: int


class ProgramWatch(Watcher):
    """Watches a step from `start` to its end; then `graph` is the step as a graph, of the `given` loss if there is one.

    That is the first step, and later ones whose batches are the first of their kind.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        seed: int | None = None,
        given: GivenLoss | None = None,
        ema: Ema | None = None,
    ) -> None:
        self._model, self._optimizer, self._seed, self._given, self._ema = model, optimizer, seed, given, ema
        self._names = {id(value): name for name, value in model.named_parameters()}
        self._hooks: list[Any] = []
        self._clear()

    def _clear(self) -> None:
        self.has_step = False
        self.log = OperatorLog(self._model, lambda: contain_errors(self._give_up))
        self._summed, self._used, self._left = (Marks(), Marks(), Marks())
        self._made: dict[int, str] = {}
        self._gradients: dict[str, int] = {}
        self._weight_writes: dict[str, int] = {}
        self._stepped_at, self._left_at, self._ended_at = 0, 0, 0
        self._rules: tuple[GroupRule, ...] = ()
        self._passes: set[int] = set()
        self._others: list[tuple[str, frozenset[int]]] = []

    def start(self) -> None:
        """Watch the calling thread in the step that has begun, unless it is watched already."""
        if self.has_step:
            return
        self.log.stop()  # of an earlier step, where it could not leave
        self._clear()
        self.has_step = True
        self._hooks = [
            register_optimizer_step_pre_hook(self._other_steps),
            self._optimizer.register_step_pre_hook(self._steps),
            self._optimizer.register_step_post_hook(self._stepped),
        ]
        for group in self._optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.requires_grad:
                    self._hooks.append(parameter.register_post_accumulate_grad_hook(self._accumulated))
        self.log.start()

    def begin(self, index: int) -> None:
        """Drop what was watched before step `index`."""
        if self.has_step:
            self.has_step, self._summed, self._used, self._left = False, {}, {}, {}
            self.log.forget()

    def end(self, step: StepSeen) -> StepSeen:
        """Watch no longer."""
        if self.has_step:
            self.close()
        return step

    def close(self) -> None:
        """Remove all hooks."""
        self.log.stop()
        self._ended_at = len(self.log.calls)
        self._weight_writes = writes(self._left, marks_of(dict(self._model.named_parameters())))
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def graph(self, batch: Any, gives_step: Callable[[StepGraph], bool] = lambda _: True) -> StepGraph:
        """The graph of the step that was taken with `batch`, asked for once.

        Where `gives_step` says that the loss that was given does not give the step, as it does not where the loop runs
        under autocast, the loss that was watched is tried. Raises `UnavailableError` with the reason why there is none.
        """
        given, self._given = self._given, None
        try:
            graph = self._of_watched(batch) if given is None else self._of_given(given)
            if given is not None and not gives_step(graph):
                with suppress(UnavailableError):
                    other = self._of_watched(batch)
                    graph = other if gives_step(other) else graph
        finally:
            self.log.forget()
        if changed := changed_setting(graph.captured.rules, self._rules):  # a schedule stepped since
            raise UnavailableError(f"{changed}; {KEEP_SETTINGS}")
        return graph

    def _of_given(self, given: GivenLoss) -> StepGraph:
        """Clipped as was watched, and as was stated where the step could not be watched."""
        is_watched = not self.log.trouble and self._ends
        clip_norm, edits = self._changes() if is_watched else (given.clip_norm, NO_EDITS)
        step = replace(self._loop_step(given.loss, given.accumulation), clip_norm=clip_norm, edits=edits)
        return step.capture(parts_of(given.example, given.accumulation))

    def _of_watched(self, batch: Any) -> StepGraph:
        log = self.log
        if log.trouble:
            raise UnavailableError(f"the first step cannot be watched: {log.trouble}")
        if not self._ends:
            raise UnavailableError(NO_BACKWARD)
        for name in sorted(log.functions):
            raise UnavailableError(FUNCTION.format(name))
        parts = self._parts(batch)
        first, *others = self._losses([as_mapping(part) for part in parts])
        if any(loss.form != first.form for loss in others):
            raise UnavailableError("the micro-batches of a step are not computed alike")
        clip_norm, edits = self._changes()
        step = self._loop_step(lambda model, part: first(model, as_mapping(part)), len(parts))
        return replace(step, clip_norm=clip_norm, edits=edits, fixed=first.fixed).capture(parts)

    def _loop_step(self, loss: LossOfBatch, accumulation: int) -> LoopStep:
        # the model draws from PyTorch's generator where the log saw that and no seed is given
        is_native = self._seed is None and any(call.is_seeded for call in self.log.calls)
        return LoopStep(
            self._model,
            loss,
            self._optimizer,
            accumulation=accumulation,
            seed=self._seed,
            is_native=is_native,
            ema=self._ema,
        )

    def _changes(self) -> tuple[float | None, Edits]:
        """To what norm gradients are clipped, and what else is written into them, and into the weights."""
        log, calls = self.log, self.log.calls
        self._require_alone(log.held.keys())
        between = calls[self._ends[-1] : self._stepped_at]
        storages = {log.seen[number].storage for number in self._gradients.values()}
        clip_norm = clip_norm_of(between, log.seen, storages)
        held = {number: name for number, name in self._live.items() if number < len(log.seen)}
        gradients = None
        if clip_norm is None:
            gradients = edit_of(between, log.seen, held | self._made, self._gradients, "gradients")
        stepped = {number: name for name, number in self._gradients.items()}
        weights = {name: number for number, name in held.items() if name.startswith("weights.")}
        after = calls[self._left_at : self._ended_at]
        behind = edit_of(after, log.seen, held | stepped, weights, "weights")
        summed = {name: self._summed[name] for name in self._used if name in self._summed}
        counts = _writes(writes(summed, self._used), between, stepped)
        reads = any(each is not None and each.reads_back for each in (gradients, behind))
        return clip_norm, Edits(gradients, behind, counts, _writes(self._weight_writes, after, held), reads)

    @property
    def _live(self) -> dict[int, str]:
        """Parameters and buffers by number, as a state names them."""
        names = {name for name, _ in self._model.named_buffers()}
        return {number: f"{'buffers' if name in names else 'weights'}.{name}" for number, name in self.log.held.items()}

    @property
    def _ends(self) -> list[int]:
        """Where the backward passes begin that gave gradients to the optimizer's parameters."""
        return [self.log.backwards[index] for index in sorted(self._passes) if index >= 0]

    def _require_alone(self, weights: Set[int]) -> None:
        for name, numbers in self._others:
            if numbers & weights:
                raise UnavailableError(OTHERS.format(name))

    def _losses(self, parts: Sequence[Mapping[str, torch.Tensor]]) -> Iterator[WatchedLoss]:
        equal = EqualValues(self.log.calls, self.log.seen)
        names = dict(self._model.named_buffers())
        buffers = {self.log.seen[number].storage for number, name in self.log.held.items() if name in names}
        before = 0
        for end, part in zip(self._ends, parts, strict=True):
            backward = _WatchedBackward(self.log, equal, range(before, end), part, buffers, len(parts))
            self._require_alone(backward.reads | self.log.held.keys())
            yield backward.loss()
            before = end

    def _parts(self, batch: Any) -> list[Any]:
        """The micro-batches of the step, in the form of the loop."""
        count, log = len(self._ends), self.log
        weights = {log.seen[number].storage for number, name in self._live.items() if name.startswith("weights.")}
        if count > 1 and any(call.written & weights for call in log.calls[self._ends[0] : self._ends[-1]]):
            raise UnavailableError(MOVED)
        if count > 1 and (not isinstance(batch, Sequence) or len(batch) != count):
            raise UnavailableError(BATCH_OF_MANY.format(count))
        parts = parts_of(batch, count)
        if not all(as_mapping(part) for part in parts):
            raise UnavailableError(NO_TENSORS)
        return parts

    def _accumulated(self, parameter: torch.Tensor) -> None:
        self._passes.add(len(self.log.backwards) - 1)
        with contain_errors(self._give_up):
            name, gradient = self._names.get(id(parameter), ""), parameter.grad
            if name and gradient is not None:
                self._made = {number: each for number, each in self._made.items() if each != f"{GRADIENTS}{name}"}
                self._made[self.log.numbered(gradient)] = f"{GRADIENTS}{name}"
                self._summed |= marks_of({name: gradient})

    def _give_up(self, reason: str) -> None:
        self.log.trouble = self.log.trouble or reason

    def _other_steps(self, optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        with contain_errors(self._give_up):
            if not any(optimizer is each for each in each_of(self._optimizer)):
                parameters = [each for group in optimizer.param_groups for each in group["params"]]
                numbers = (self.log.number_of(parameter) for parameter in parameters)
                known = frozenset(number for number in numbers if number is not None)
                self._others.append((type(optimizer).__name__, known))

    def _steps(self, optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        with contain_errors(self._give_up):
            parameters = [each for group in optimizer.param_groups for each in group["params"]]
            given = {self._names[id(each)]: each.grad for each in parameters if each.grad is not None}
            self._gradients = {f"{GRADIENTS}{name}": self.log.numbered(value) for name, value in given.items()}
            self._used = marks_of(given)
            self._stepped_at = len(self.log.calls)
            self._rules = rules_of(optimizer)

    def _stepped(self, _optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        with contain_errors(self._give_up):
            self._left_at, self._left = len(self.log.calls), marks_of(dict(self._model.named_parameters()))


def _writes(counts: Mapping[str, int], calls: Iterable[LoopCall], named: Mapping[int, str]) -> dict[str, int]:
    """How often tensors are written to where nothing watches: a watch keeps operators on lists from counting theirs."""
    own = Counter(
        named[place.number].partition(".")[2]
        for call in calls
        if call.written
        for place in places(call.args[:1])
        if place.number in named
    )
    return {name: count if count < 0 else max(count, own[name]) for name, count in counts.items()}
