"""Watches the first step of a loop, and finds out what its loss is, how it clips and how often it accumulates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from tallystick.errors import UnavailableError
from tallystick.frameworks.torch.capture.updates import rule_of
from tallystick.frameworks.torch.watching.clipping import clip_norm_of
from tallystick.frameworks.torch.watching.live_calls import EqualValues
from tallystick.frameworks.torch.watching.operator_log import OperatorLog
from tallystick.frameworks.torch.watching.watched_loss import WatchedLoss
from tallystick.recorders.boundary import sheltered
from tallystick.recorders.step_graph import StepGraph, as_mapping, capture_loop, parts_of
from tallystick.recorders.step_watch import changed_setting
from tallystick.recorders.watched_backward import WatchedBackward
from tallystick.workloads.optimizer import UpdateRule

NO_BACKWARD: Final = "no backward() was seen before the first record; begin the recording before the first forward pass"
BATCH_OF_MANY: Final = (
    "backward() was called {} times in the step; give batch= as a list of as many micro-batches, and record the mean "
    "of their losses"
)
FUNCTION: Final = (
    "the loss goes through the autograd.Function {}, whose backward pass is code of the loop; write it with operators "
    "of PyTorch"
)
OTHERS: Final = "{} steps weights that the loss depends on too, and a graph holds one optimizer; put all into one"
NO_TENSORS: Final = (
    "batch= is left out or holds no tensors; give batch=(inputs, targets), the tensors that the loss reads"
)


@dataclass(frozen=True)
class WatchedStep:
    """What the first step of a loop was found to do: `loss` is that of one micro-batch."""

    loss: WatchedLoss
    accumulation: int
    clip_norm: float | None

    def __call__(self, model: Any, batch: Any) -> torch.Tensor:
        """The loss of a micro-batch in the form of the loop."""
        return self.loss(model, as_mapping(batch))


class FirstStep:
    """Watches from `start` to `stop`; then `graph` is the step as a graph."""

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._model, self._optimizer = model, optimizer
        self._log = OperatorLog(model, lambda: sheltered(self._give_up))
        self._gradients = frozenset[int]()
        self._stepped_at = 0
        self._rules: list[UpdateRule] = []
        self._passes: set[int] = set()
        self._others: list[tuple[str, frozenset[int]]] = []
        self._hooks: list[Any] = []

    def start(self) -> None:
        """Watch the calling thread."""
        self._hooks = [register_optimizer_step_pre_hook(self._steps)]
        for group in self._optimizer.param_groups:
            for each in group["params"]:
                if each.requires_grad:
                    self._hooks.append(each.register_post_accumulate_grad_hook(self._accumulated))
        self._log.start()

    def stop(self) -> None:
        """Watch no longer."""
        self._log.stop()
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def graph(self, batch: Any) -> StepGraph:
        """The graph of the step that was taken with `batch`, asked for once.

        Raises `UnavailableError` with the reason why there is none.
        """
        try:
            watched = self._watched(batch)
        finally:
            self._log.forget()
        graph = capture_loop(
            self._model,
            watched,
            self._optimizer,
            batch,
            clip_norm=watched.clip_norm,
            accumulation=watched.accumulation,
            fixed=watched.loss.fixed,
        )
        if changed := changed_setting(graph.captured.rules, self._rules):  # a schedule stepped since
            raise UnavailableError(changed)
        return graph

    def _watched(self, batch: Any) -> WatchedStep:
        log = self._log
        if log.trouble:
            raise UnavailableError(f"the first step cannot be watched: {log.trouble}")
        if not self._ends:
            raise UnavailableError(NO_BACKWARD)
        for name in sorted(log.functions):
            raise UnavailableError(FUNCTION.format(name))
        clip_norm = clip_norm_of(log.calls[self._ends[-1] : self._stepped_at], self._gradients)
        losses = [*self._losses(self._parts(batch))]
        if any(loss.form != losses[0].form for loss in losses[1:]):
            raise UnavailableError("the micro-batches of a step are not computed alike")
        return WatchedStep(losses[0], len(losses), clip_norm)

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
        if count > 1 and (not isinstance(batch, Sequence) or len(batch) != count):
            raise UnavailableError(BATCH_OF_MANY.format(count))
        parts = [as_mapping(part) for part in parts_of(batch, count)]
        if not all(parts):
            raise UnavailableError(NO_TENSORS)
        return parts

    def _accumulated(self, _parameter: torch.Tensor) -> None:
        self._passes.add(len(self._log.backwards) - 1)

    def _give_up(self, reason: str) -> None:
        self._log.trouble = self._log.trouble or reason

    def _steps(self, optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        with sheltered(self._give_up):
            parameters = [each for group in optimizer.param_groups for each in group["params"]]
            if optimizer is not self._optimizer:
                self._others.append((type(optimizer).__name__, frozenset(self._numbers(parameters))))
                return
            gradients = self._numbers(each.grad for each in parameters if each.grad is not None)
            self._gradients = frozenset(self._log.seen[number].storage for number in gradients)
            self._stepped_at = len(self._log.calls)
            self._rules = [rule_of(optimizer, group) for group in optimizer.param_groups]

    def _numbers(self, tensors: Iterable[torch.Tensor]) -> Iterator[int]:
        numbers = (self._log.number_of(each) for each in tensors)
        return (number for number in numbers if number is not None)
