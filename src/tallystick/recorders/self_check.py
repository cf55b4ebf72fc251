"""Replays steps that the loop has just taken, to find early if its step graph does something else.

An audit would reject a loop that departs from its graph, although nobody lied. So the first two steps are checked, and
later ones at random. The comparison is that of an exact audit.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import torch

from tallystick.frameworks.torch.engine import TorchEngine
from tallystick.frameworks.torch.prepared_graph import PreparedGraph
from tallystick.frameworks.torch.tensors import from_tensor, to_tensor
from tallystick.frameworks.torch.training.graph_replayer import without_gradients
from tallystick.recorders.step_graph import StepGraph
from tallystick.tensors.tensor import State, Tensor
from tallystick.tolerances.loss import LossBand, quantise
from tallystick.workloads.names import BATCH
from tallystick.workloads.program import StepProgram

GAPS: Final = (1, 4, 16, 64, 256, 1024)
"""The largest number of steps between two checks, at each stage; a gap is drawn from the upper half.

A check took 1.2 to 6 times as long as a step (median of 20; 2 cores, multilayer perceptrons of 33,000 to 2 million
parameters, the larger ones nearer 1). At the last stage one step in 768 is checked: 0.2 to 0.8 % of the time.
"""


@dataclass(frozen=True)
class TakenStep:
    """A step of the loop: the states before and after it, and the values given to the recorder.

    `batch` uses the names of the graph without `inputs.`; `given` is the batch in the loop's own form. `gradients` are
    those that the optimizer used.
    """

    index: int
    before: State
    after: State
    batch: State
    given: Any
    rates: tuple[float, ...]
    loss: float
    gradient_norm: float | None
    gradients: Mapping[str, torch.Tensor]


class SelfCheck:
    """Selects the steps to check, keeps the state before them, and replays them."""

    def __init__(self, graph: StepGraph, device: str, loss_decimals: int) -> None:
        self._graph, self._device, self._band = graph, device, LossBand(loss_decimals)
        self._next, self._stage = 1, 0
        self._random = random.SystemRandom()  # does not touch the generators of the loop
        self.before: State | None = None

    def is_due(self, index: int) -> bool:
        """Whether step `index` is one to check."""
        return index >= self._next

    def keep(self, state: State) -> None:
        """Keep a copy of the state before a step that is due."""
        self.before = {name: tensor.copy() for name, tensor in state.items()}

    def done(self) -> None:
        """Drop the kept state, and draw the step of the next check."""
        largest = GAPS[min(self._stage, len(GAPS) - 1)]
        gap = self._random.randint(largest // 2 + 1, largest)
        self._stage, self._next, self.before = self._stage + 1, self._next + gap, None

    def replay(self, step: TakenStep) -> dict[str, torch.Tensor]:
        """The results of the graph for the step; raises `MalformedError` if it cannot read the state."""
        return self._compiled(inputs_of(self._graph, self._device, step))

    def difference(self, step: TakenStep, replayed: Mapping[str, torch.Tensor]) -> str:
        """The first of loss, gradient norm and state in which the graph differs from the loop; empty if none does."""
        if not self._band.compare(quantise(step.loss, self._band.decimals), float(replayed["loss"])).agrees:
            return "loss"
        if not self._has_norm(step, replayed):
            return "gradient_norm"
        ours = {name: to_tensor(value) for name, value in replayed.items() if name in step.before}
        names = sorted(step.before.keys() | step.after.keys())
        return next((name for name in names if not is_same(ours.get(name), step.after.get(name))), "")

    def _has_norm(self, step: TakenStep, replayed: Mapping[str, torch.Tensor]) -> bool:
        if step.gradient_norm is None or "gradient_norm" not in replayed:
            return True
        return quantise(step.gradient_norm, 12) == quantise(float(replayed["gradient_norm"]), 12)

    @cached_property
    def _compiled(self) -> PreparedGraph:
        graph = without_gradients(self._graph.captured.graph)
        names = self._graph.captured.state
        return TorchEngine(self._device).compile(graph, consumed=names)


def inputs_of(graph: StepGraph, device: str, step: TakenStep) -> dict[str, torch.Tensor]:
    """Copies of all inputs of the graph at the step, on `device`; raises `MalformedError` if one does not fit."""
    captured, named = graph.captured, {f"{BATCH}{name}": value for name, value in step.batch.items()}
    program = StepProgram(captured.graph, captured.constants, captured.rules, lambda _: named, lambda _: step.rates)
    given = program.bindings(step.before, step.index)
    return {name: from_tensor(tensor).to(device) for name, tensor in given.items()}


def is_same(ours: Tensor | None, theirs: Tensor | None) -> bool:
    """Whether two tensors are there and have the same bytes."""
    if ours is None or theirs is None:
        return False
    return (ours.dtype, ours.shape, bytes(ours.data)) == (theirs.dtype, theirs.shape, bytes(theirs.data))
