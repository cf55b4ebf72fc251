"""Compares a loop with its step graph while it runs, and withdraws the graph where they differ."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch

from tallystick.errors import UnavailableError
from tallystick.recorders.boundary import say, sheltered, unsaid
from tallystick.recorders.last_segment import LastSegment, RecordedStep
from tallystick.recorders.likely_cause import GraphMismatch
from tallystick.recorders.self_check import SelfCheck, TakenStep
from tallystick.recorders.step_graph import StepGraph
from tallystick.recorders.step_watch import Stepped
from tallystick.store.run import RunDirectory
from tallystick.tensors.tensor import State
from tallystick.transcripts.recipe import RecordRecipe

LINE_MAX: Final = 1024
STEPS_BETWEEN: Final = (
    "step {}: the optimizer stepped {} times since the last record, and has to once; with micro-batches, record after "
    "`optimizer.step()` and give batch= as a list of them (`accumulation=` beside `loss=`)"
)
TOUCHED: Final = (
    "step {}: gradients are changed between backward() and optimizer.step() otherwise than in the captured step; "
    "clip in every step (`clip_norm=` beside `loss=`), and scale the loss instead"
)


@dataclass(frozen=True)
class Observed:
    """A step as the recorder was told of it and as the watch saw it; `named` is the batch by the graph's names."""

    index: int
    seen: Stepped
    named: State
    batch: Any
    rates: tuple[float, ...]
    loss: float
    gradient_norm: float | None


class GraphGuard:
    """Holds the graph of a loop to its steps; `reason` says why it was withdrawn, and `None` that it stands."""

    def __init__(
        self,
        graph: StepGraph,
        model: torch.nn.Module,
        device: str,
        recorded: RecordRecipe,
        state: Callable[[], State],
        run: RunDirectory,
    ) -> None:
        decimals = recorded.loss_decimals
        self.reason: str | None = None
        self._last, self._checked = LastSegment(run, recorded.anchor_stride), 0
        self._graph, self._model, self._device, self._decimals, self._state = graph, model, device, decimals, state
        self._check: SelfCheck | None = SelfCheck(graph, device, decimals)
        self._said_misfit = False

    def examine(self, step: Observed) -> None:
        """Check that the step was the captured one; raises `UnavailableError` for a loss that nothing equals."""
        seen = step.seen
        departure = seen.change or ("" if seen.count == 1 else STEPS_BETWEEN.format(step.index, seen.count))
        if departure:
            self.withdraw(departure)
        elif misfit := self._graph.misfit(step.named):
            self._say_misfit(step.index, misfit)
        elif other := self._graph.other_number(step.batch):
            self.withdraw(f"step {step.index}: {other}")
        elif not math.isfinite(step.loss):
            raise UnavailableError(f"the loss of step {step.index} is {step.loss}, and no replay is compared with that")
        elif self._check is not None and self._check.before is not None:
            self._compare(self._check, step, self._check.before)
        if seen.is_touched and self.reason is None:  # after the comparison, which finds a more exact reason
            self.withdraw(TOUCHED.format(step.index))

    def is_due(self, index: int) -> bool:
        """Whether step `index` is one to replay."""
        return self._check is not None and self._check.is_due(index)

    def keep(self, state: State) -> None:
        """Keep the state before a step that is due."""
        if self._check is not None:
            self._check.keep(state)

    def add(self, step: RecordedStep) -> None:
        """Note a step that was recorded, for the replay at the end."""
        self._last.add(step)

    def finish(self) -> None:
        """Replay the steps since the last anchor, unless the last one was just replayed; withdraw if they differ."""
        steps = self._last.steps
        if self._check is None or not steps or steps[-1].index == self._checked:
            return
        with sheltered(unsaid):  # a file that cannot be read tells nothing about the loop
            if difference := self._last.difference(self._graph, self._check, self._decimals):
                self.withdraw(difference)

    def withdraw(self, reason: str) -> None:
        """Withdraw the graph for the whole run, and say why."""
        self.close()
        self.reason = printed(reason)
        say(f"the run cannot be replayed: {self.reason}")

    def close(self) -> None:
        """Replay no further step."""
        self._check = None

    def _compare(self, check: SelfCheck, step: Observed, before: State) -> None:
        """Replay the step that was just taken; withdraw the graph if the result differs."""
        gradients = step.seen.gradients or {}
        taken = TakenStep(
            step.index,
            before,
            self._state(),
            step.named,
            step.batch,
            step.rates,
            step.loss,
            step.gradient_norm,
            gradients,
        )
        self._checked = step.index
        with sheltered(self.withdraw):
            replayed = check.replay(taken)
            if where := check.difference(taken, replayed):
                doubt = GraphMismatch(self._graph, self._device, taken, where, self._decimals, self._model)
                self.withdraw(doubt.cause(check, replayed))
            check.done()

    def _say_misfit(self, index: int, misfit: str) -> None:
        if not self._said_misfit:
            self._said_misfit = True
            say(f"step {index} cannot be replayed, nor any other of its kind (drop_last=True): {misfit}")


def printed(line: str) -> str:
    """A text as one line of printable characters, cut to the length that a claim allows."""
    return "".join(character if character.isprintable() else " " for character in line)[:LINE_MAX]
