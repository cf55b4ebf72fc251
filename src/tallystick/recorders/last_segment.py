"""Replays the end of a run from the anchor before it, when the loop is done.

Steps are checked at random, and the steps after the last check would stay unseen. A change of the loop that lasts shows
in them: in a loss, or in the state at the end.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import torch

from tallystick.frameworks.torch.tensors import from_tensor, to_tensor
from tallystick.recorders.self_check import SelfCheck, TakenStep, is_same
from tallystick.recorders.step_graph import StepGraph
from tallystick.store.anchors import Anchors
from tallystick.store.run import RunDirectory
from tallystick.tensors.safetensors import read_state
from tallystick.tensors.tensor import State
from tallystick.tolerances.loss import LossBand, quantise
from tallystick.transcripts.record import Batch, batch_file

SECONDS_MAX: Final = 20.0
"""How long the replay may take; a longer segment is replayed as far as that, and its losses are compared."""
LASTING: Final = (
    "step {}: the captured step gives another {} than the loop; something in the loop has changed since the first "
    "steps (a number in the loss, a branch, a write through `.data`); give numbers that change as tensors in batch="
)


@dataclass(frozen=True)
class RecordedStep:
    """What a replay needs of a recorded step; one without a graph cannot be replayed."""

    index: int
    graph: StepGraph | None
    batch: Batch
    rates: tuple[float, ...]
    loss: float


@dataclass
class LastSegment:
    """The steps since the last anchor that lies before a step; the anchors are in the run directory."""

    run: RunDirectory
    stride: int
    steps: list[RecordedStep] = field(default_factory=list)

    def add(self, step: RecordedStep) -> None:
        """Note a step; those before its anchor are dropped."""
        if (step.index - 1) % self.stride == 0:
            self.steps.clear()
        self.steps.append(step)

    def difference(self, check: SelfCheck, decimals: int) -> str:
        """Where the graphs do not lead from the anchor to the one at the end; empty if they do, or take too long."""
        band, began = LossBand(decimals), time.monotonic()
        anchors = Anchors(self.run.path)
        read = anchors.read(self.steps[0].index - 1)
        held = {name: from_tensor(read.pop(name)) for name in sorted(read)}
        for step in self.steps:
            if step.graph is None or time.monotonic() - began > SECONDS_MAX:
                return ""
            named = self._batch(step.batch)
            state = _tensors(held)
            taken = TakenStep(step.index, state, state, named, None, step.rates, step.loss, None, {})
            replayed = check.replay(step.graph, taken, held)
            if not band.compare(quantise(step.loss, decimals), float(replayed["loss"])).agrees:
                return LASTING.format(step.index, "loss")
            held |= {name: replayed[name] for name in step.graph.captured.state}
        state, final = _tensors(held), anchors.read(self.steps[-1].index)
        changed = [name for name in sorted(final) if not is_same(state.get(name), final[name])]
        return LASTING.format(self.steps[-1].index, changed[0]) if changed else ""

    def _batch(self, batch: Batch) -> State:
        assert batch.digest is not None  # the batches of a run with a graph are kept
        return read_state(self.run.path / batch_file(batch.digest), canonical=True)


def _tensors(held: Mapping[str, torch.Tensor]) -> State:
    return {name: to_tensor(value) for name, value in held.items()}
