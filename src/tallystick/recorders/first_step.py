"""Watches the first step of a loop, and finds out what its loss is, how it clips and how often it accumulates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from tallystick.errors import UnavailableError
from tallystick.frameworks.torch.capture.edits import GRADIENTS, NO_EDITS, Edits
from tallystick.frameworks.torch.ema import Ema
from tallystick.frameworks.torch.optimizers.catalogue import each_of, rules_of
from tallystick.frameworks.torch.watching.calls import LoopCall, places
from tallystick.frameworks.torch.watching.clipping import clip_norm_of
from tallystick.frameworks.torch.watching.edits import edit_of
from tallystick.frameworks.torch.watching.live_calls import EqualValues
from tallystick.frameworks.torch.watching.operator_log import OperatorLog
from tallystick.frameworks.torch.watching.watched_loss import WatchedLoss
from tallystick.recorders.boundary import sheltered
from tallystick.recorders.step_graph import LossOfBatch, StepGraph, as_mapping, capture_loop, parts_of
from tallystick.recorders.step_watch import KEEP_SETTINGS
from tallystick.recorders.watched_backward import WatchedBackward
from tallystick.recorders.written import Marks, marks_of, writes
from tallystick.transcripts.rule import GroupRule, changed_setting

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
