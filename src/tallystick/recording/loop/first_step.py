"""Watches the first step of a loop, and finds out what its loss is, how it clips and how often it accumulates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
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
from tallystick.recording.boundary import sheltered
from tallystick.recording.inference import Marks, marks_of, writes
from tallystick.recording.loop.step_graph import LossOfBatch, StepGraph, as_mapping, capture_loop, parts_of
from tallystick.recording.loop.step_watch import KEEP_SETTINGS

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
class WatchedBackward:
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
        self._require_unchanged(live, given)
        held = {number: log.held[number] for number in sources if number in log.held}
        constants = {number: self._constant(number) for number in sources if number not in given.keys() | held.keys()}
        fixed = [_described(value) for value in constants.values() if value.numel()]
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
        scaling = next(call for call in self._calls[::-1] if root in numbers(call.results))
        if scaling.name in {"aten.div.Tensor", "aten.mul.Tensor"} and scaling.args[1] in self._scales(scaling.name):
            return next(scaling.operands).number
        raise UnavailableError(UNSCALED.format(self.count))

    def _scales(self, name: str) -> tuple[float, ...]:
        """The numbers by which a loss may be scaled; a product has the bits of a quotient for powers of 2."""
        if name == "aten.div.Tensor":
            return (self.count,)
        return () if self.count & (self.count - 1) else (1 / self.count,)

    @property
    def _calls(self) -> Sequence[LoopCall]:
        return self.log.calls[self.span.start : self.span.stop]

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
        return next((name for name, other in self.batch.items() if _is_same(value, other)), "")

    def _require_unchanged(self, live: Iterable[LoopCall], given: Mapping[int, str]) -> None:
        reading = {id(call) for call in live if any(place.number in given for place in call.operands)}
        first = next((index for index, call in enumerate(self.log.calls) if id(call) in reading), 0)
        written = frozenset[int]().union(*(call.written for call in self.log.calls[first:]))
        for number, name in given.items():
            if self.log.seen[number].storage in written:
                raise UnavailableError(CHANGED.format(name))

    def _constant(self, number: int) -> torch.Tensor:
        seen = self.log.seen[number]
        if not seen.from_elsewhere:
            raise UnavailableError(OF_GRADIENTS)
        if seen.value is None:
            raise UnavailableError(NOT_IN_BATCH.format(f"a tensor of shape {seen.shape}"))
        return seen.value


def numbers(results: object) -> set[int]:
    """The tensors among the results of a call."""
    return {place.number for place in places(results)}


def _is_same(value: torch.Tensor, other: torch.Tensor) -> bool:
    return value.dtype == other.dtype and value.device == other.device and torch.equal(value, other)


def _described(value: torch.Tensor) -> str:
    return f"the number {value.item()}" if value.numel() == 1 else f"a tensor of shape {tuple(value.shape)}"


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
class WatchedStep:
    """What the first step of a loop was found to do: `loss` is that of one micro-batch."""

    loss: WatchedLoss
    accumulation: int
    clip_norm: float | None
    edits: Edits

    def __call__(self, model: Any, batch: Any) -> torch.Tensor:
        """The loss of a micro-batch in the form of the loop."""
        return self.loss(model, as_mapping(batch))


@dataclass(frozen=True)
class GivenLoss:
    """The loss of a loop as its author states it, an example of a batch, and how often and to what norm it steps."""

    loss: LossOfBatch
    example: Any
    clip_norm: float | None
    accumulation: int


class FirstStep:
    """Watches from `start` to `stop`; then `graph` is the step as a graph, of the loss that is `given` if one is."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        seed: int | None = None,
        given: GivenLoss | None = None,
        ema: Ema | None = None,
    ) -> None:
        self._ema = ema
        self._model, self._optimizer, self._seed, self._given = model, optimizer, seed, given
        self.log = self._log = OperatorLog(model, lambda: sheltered(self._give_up))
        self._names = {id(value): name for name, value in model.named_parameters()}
        self._summed, self._used, self._left = (Marks(), Marks(), Marks())
        self._made: dict[int, str] = {}
        self._gradients: dict[str, int] = {}
        self._weight_writes: dict[str, int] = {}
        self._stepped_at, self._left_at, self._ended_at = 0, 0, 0
        self._rules: tuple[GroupRule, ...] = ()
        self._passes: set[int] = set()
        self._others: list[tuple[str, frozenset[int]]] = []
        self._hooks: list[Any] = []

    def start(self) -> None:
        """Watch the calling thread."""
        self._hooks = [
            register_optimizer_step_pre_hook(self._other_steps),
            self._optimizer.register_step_pre_hook(self._steps),
            self._optimizer.register_step_post_hook(self._stepped),
        ]
        for group in self._optimizer.param_groups:
            for each in group["params"]:
                if each.requires_grad:
                    self._hooks.append(each.register_post_accumulate_grad_hook(self._accumulated))
        self._log.start()

    def stop(self) -> None:
        """Watch no longer."""
        self._log.stop()
        self._ended_at = len(self._log.calls)
        self._weight_writes = writes(self._left, self._parameters())
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def graph(self, batch: Any, gives_step: Callable[[StepGraph], bool]) -> StepGraph:
        """The graph of the step that was taken with `batch`, asked for once.

        Where `gives_step` says that the loss that was given does not give the step, as it does not where the loop runs
        under autocast, the loss that was watched is tried. Raises `UnavailableError` with the reason why there is none.
        """
        try:
            graph = self._of_watched(batch) if self._given is None else self._of_given(self._given)
            if self._given is not None and not gives_step(graph):
                with suppress(UnavailableError):
                    other = self._of_watched(batch)
                    graph = other if gives_step(other) else graph
        finally:
            self._log.forget()
        if changed := changed_setting(graph.captured.rules, self._rules):  # a schedule stepped since
            raise UnavailableError(f"{changed}; {KEEP_SETTINGS}")
        return graph

    def _of_watched(self, batch: Any) -> StepGraph:
        watched = self._watched(batch)
        return capture_loop(
            self._model,
            watched,
            self._optimizer,
            batch,
            clip_norm=watched.clip_norm,
            edits=watched.edits,
            accumulation=watched.accumulation,
            fixed=watched.loss.fixed,
            seed=self._seed,
            is_native=self._is_native,
            ema=self._ema,
        )

    def _of_given(self, given: GivenLoss) -> StepGraph:
        """Clipped as was watched, and as was stated where the step could not be watched."""
        clip_norm, edits = given.clip_norm, NO_EDITS
        if not self._log.trouble and self._ends:
            clip_norm, edits = self._changes()
        return capture_loop(
            self._model,
            given.loss,
            self._optimizer,
            given.example,
            clip_norm=clip_norm,
            edits=edits,
            accumulation=given.accumulation,
            seed=self._seed,
            is_native=self._is_native,
            ema=self._ema,
        )

    def _watched(self, batch: Any) -> WatchedStep:
        log = self._log
        if log.trouble:
            raise UnavailableError(f"the first step cannot be watched: {log.trouble}")
        if not self._ends:
            raise UnavailableError(NO_BACKWARD)
        for name in sorted(log.functions):
            raise UnavailableError(FUNCTION.format(name))
        losses = [*self._losses(self._parts(batch))]
        if any(loss.form != losses[0].form for loss in losses[1:]):
            raise UnavailableError("the micro-batches of a step are not computed alike")
        return WatchedStep(losses[0], len(losses), *self._changes())

    def _changes(self) -> tuple[float | None, Edits]:
        """To what norm gradients are clipped, and what else is written into them, and into the weights."""
        log, calls = self._log, self._log.calls
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
    def _is_native(self) -> bool:
        """Whether the model draws from PyTorch's generator."""
        return self._seed is None and any(call.is_seeded for call in self._log.calls)

    @property
    def _live(self) -> dict[int, str]:
        """Parameters and buffers by number, as a state names them."""
        names = {name for name, _ in self._model.named_buffers()}
        return {
            number: f"{'buffers' if name in names else 'weights'}.{name}" for number, name in self._log.held.items()
        }

    def _parameters(self) -> Marks:
        return marks_of(dict(self._model.named_parameters()))

    @property
    def _ends(self) -> list[int]:
        """Where the backward passes begin that gave gradients to the optimizer's parameters."""
        return [self._log.backwards[index] for index in sorted(self._passes) if index >= 0]

    def _require_alone(self, weights: Set[int]) -> None:
        for name, numbers in self._others:
            if numbers & weights:
                raise UnavailableError(OTHERS.format(name))

    def _losses(self, parts: Sequence[Mapping[str, torch.Tensor]]) -> Iterator[WatchedLoss]:
        equal = EqualValues(self._log.calls, self._log.seen)
        names = dict(self._model.named_buffers())
        buffers = {self._log.seen[number].storage for number, name in self._log.held.items() if name in names}
        before = 0
        for end, part in zip(self._ends, parts, strict=True):
            backward = WatchedBackward(self._log, equal, range(before, end), part, buffers, len(parts))
            self._require_alone(backward.reads | self._log.held.keys())
            yield backward.loss()
            before = end

    def _parts(self, batch: Any) -> list[dict[str, torch.Tensor]]:
        """The tensors of each micro-batch."""
        count = len(self._ends)
        if count > 1 and self._moves_between():
            raise UnavailableError(MOVED)
        if count > 1 and (not isinstance(batch, Sequence) or len(batch) != count):
            raise UnavailableError(BATCH_OF_MANY.format(count))
        parts = [as_mapping(part) for part in parts_of(batch, count)]
        if not all(parts):
            raise UnavailableError(NO_TENSORS)
        return parts

    def _moves_between(self) -> bool:
        """Whether weights are written to between two backward passes of the step."""
        weights = {self._log.seen[number].storage for number, name in self._live.items() if name.startswith("weights.")}
        return any(call.written & weights for call in self._log.calls[self._ends[0] : self._ends[-1]])

    def _accumulated(self, parameter: torch.Tensor) -> None:
        self._passes.add(len(self._log.backwards) - 1)
        with sheltered(self._give_up):
            name, gradient = self._names.get(id(parameter), ""), parameter.grad
            if name and gradient is not None:
                self._made = {number: each for number, each in self._made.items() if each != f"{GRADIENTS}{name}"}
                self._made[self._log.numbered(gradient)] = f"{GRADIENTS}{name}"
                self._summed |= marks_of({name: gradient})

    def _give_up(self, reason: str) -> None:
        self._log.trouble = self._log.trouble or reason

    def _other_steps(self, optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        with sheltered(self._give_up):
            if not any(optimizer is each for each in each_of(self._optimizer)):
                parameters = [each for group in optimizer.param_groups for each in group["params"]]
                self._others.append((type(optimizer).__name__, frozenset(self._numbers(parameters))))

    def _steps(self, optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        with sheltered(self._give_up):
            parameters = [each for group in optimizer.param_groups for each in group["params"]]
            given = {self._names[id(each)]: each.grad for each in parameters if each.grad is not None}
            self._gradients = {f"{GRADIENTS}{name}": self._log.numbered(value) for name, value in given.items()}
            self._used = marks_of(given)
            self._stepped_at = len(self._log.calls)
            self._rules = rules_of(optimizer)

    def _stepped(self, _optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        with sheltered(self._give_up):
            self._left_at, self._left = len(self._log.calls), self._parameters()

    def _numbers(self, tensors: Iterable[torch.Tensor]) -> Iterator[int]:
        numbers = (self._log.number_of(each) for each in tensors)
        return (number for number in numbers if number is not None)


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
