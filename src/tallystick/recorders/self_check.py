"""Replays steps that the loop has just taken, to find early if its step graph does something else.

An audit would reject a loop that departs from its graph, although nobody lied. So the first two steps are checked, and
later ones at random. The comparison is that of an exact audit.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import torch

from tallystick.commitments.digests import Digest
from tallystick.frameworks.torch.engine import TorchEngine
from tallystick.frameworks.torch.prepared_graph import PreparedGraph
from tallystick.frameworks.torch.tensors import from_tensor, to_tensor
from tallystick.frameworks.torch.training.graph_replayer import without_gradients
from tallystick.recorders.set_aside import SetAside
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
PREPARED_MAX: Final = 16
"""How many graphs are held prepared: a run may have some hundred of them, for batches of as many lengths."""
NOTHING: Final[Mapping[str, torch.Tensor]] = MappingProxyType({})


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

    def __init__(self, device: str, loss_decimals: int, stride: int) -> None:
        self._device, self._band = device, LossBand(loss_decimals)
        self._compiled: dict[Digest, PreparedGraph] = {}
        self._next, self._stage, self._stride = 1, 0, stride
        self._random = random.SystemRandom()  # does not touch the generators of the loop
        self.before: State | None = None

    def is_due(self, index: int) -> bool:
        """Whether step `index` is one to check: those that are drawn, and the last one before each anchor."""
        return index >= self._next or index % self._stride == 0

    def keep(self, state: State) -> None:
        """Keep the state before a step that is due; nothing else writes to its tensors."""
        self.before = state

    def done(self, index: int) -> None:
        """Drop the kept state, and draw the step of the next check if step `index` was one that had been drawn."""
        self.before = None
        if index >= self._next:
            largest = GAPS[min(self._stage, len(GAPS) - 1)]
            self._stage, self._next = self._stage + 1, index + self._random.randint(largest // 2 + 1, largest)

    def forget(self, graph: StepGraph) -> None:
        """Drop what was prepared for a graph that is not used."""
        self._compiled.pop(graph.root, None)

    def replay(
        self, graph: StepGraph, step: TakenStep, held: Mapping[str, torch.Tensor] = NOTHING
    ) -> dict[str, torch.Tensor]:
        """The results of the graph for the step; raises `MalformedError` if it cannot read the state.

        Tensors of the state before it that are `held` are overwritten; of the others copies are taken.
        """
        prepared = self._compiled.pop(graph.root, None)
        if prepared is None:
            whole = without_gradients(graph.captured.graph)
            prepared = TorchEngine(self._device).compile(whole, consumed=graph.captured.state)
        self._compiled[graph.root] = prepared
        if len(self._compiled) > PREPARED_MAX:
            del self._compiled[next(iter(self._compiled))]
        return prepared(inputs_of(graph, self._device, step, held))

    def difference(self, step: TakenStep, replayed: Mapping[str, torch.Tensor]) -> str:
        """The first of loss, gradient norm and state in which the graph differs from the loop; empty if none does."""
        if not self._band.compare(quantise(step.loss, self._band.decimals), float(replayed["loss"])).agrees:
            return "loss"
        if not self.has_norm(step, replayed):
            return "gradient_norm"
        ours = {name: to_tensor(value) for name, value in replayed.items() if name in step.after}
        names = sorted(step.before.keys() | step.after.keys())
        return next((name for name in names if not is_same(ours.get(name), step.after.get(name))), "")

    def has_norm(self, step: TakenStep, replayed: Mapping[str, torch.Tensor]) -> bool:
        """Whether the norm that the loop gave, if it gave one, is that of the graph."""
        if step.gradient_norm is None or "gradient_norm" not in replayed:
            return True
        return quantise(step.gradient_norm, 12) == quantise(float(replayed["gradient_norm"]), 12)


def inputs_of(
    graph: StepGraph, device: str, step: TakenStep, held: Mapping[str, torch.Tensor] = NOTHING
) -> dict[str, torch.Tensor]:
    """All inputs of the graph at the step, on `device`: those `held`, and copies of the others.

    Raises `MalformedError` if one does not fit.
    """
    captured, named = graph.captured, {f"{BATCH}{name}": value for name, value in step.batch.items()}
    program = StepProgram(
        captured.graph, captured.constants, captured.rules, lambda _: named, lambda _: step.rates, graph.seed
    )
    given = program.bindings(graph.empty_slots() | {**step.before}, step.index)
    return {
        name: held[name].to(device) if name in held else _copied(name, tensor, step.before).to(device)
        for name, tensor in given.items()
    }


def _copied(name: str, tensor: Tensor, before: State) -> torch.Tensor:
    """A copy of a tensor; one that was set aside gives its own memory back."""
    copied = from_tensor(tensor)
    if isinstance(before, SetAside) and name in before:
        before.release(name)
    return copied


def is_same(ours: Tensor | None, theirs: Tensor | None) -> bool:
    """Whether two tensors are there and have the same bytes."""
    if ours is None or theirs is None:
        return False
    left, right = (np.frombuffer(each.data, np.uint8) for each in (ours, theirs))
    return (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape) and np.array_equal(left, right)
