"""Replays what was recorded, from anchor to anchor, as an exact audit will.

A check of single steps leaves the others unseen, and a loop that departs in one of them would be rejected although
nobody lied. So each segment is replayed when its anchor is written: losses, the sketches of the weights, and the state
at the end. That takes a share of the loop's time; a segment that was not replayed is withdrawn when another one is
found not to be what was recorded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
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

FREE_SECONDS: Final = 20.0
"""How long replays may take in any loop, whatever share of its time that is."""
SEGMENT_SECONDS_MAX: Final = 20.0
"""A segment whose replay takes longer is left unseen, unless every one is to be replayed."""
UNSEEN_MAX: Final = 256
"""How many segments are remembered that were not replayed; of the ones before, only where they begin and end is."""
LASTING: Final = (
    "step {}: the captured step gives another {} than the loop; something in the loop differs between steps (a number "
    "in the loss, a branch, a write through `.data`); give numbers that change as tensors in batch="
)
UNSEEN: Final = "steps after it were not replayed, and others depart from their graph: {}"
Sketch = Callable[[Mapping[str, torch.Tensor]], Callable[[], str]]
"""Takes the weights by their names in the state, and returns a function that sketches what they hold then."""


@dataclass(frozen=True)
class RecordedStep:
    """What a replay needs of a recorded step; one without a graph cannot be replayed."""

    index: int
    graph: StepGraph | None
    batch: Batch
    rates: tuple[float, ...]
    loss: float
    gradient_norm: float | None = None
    sketch: str | None = None


@dataclass(frozen=True)
class Departure:
    """The first step that a replay does not give, and why."""

    first: int
    reason: str


class SelfAudit:
    """Segments of a run in the run directory; `share` of the loop's time goes into their replays."""

    def __init__(self, run: RunDirectory, decimals: int, sketch: Sketch | None, share: float) -> None:
        self._run, self._decimals, self._sketch, self._share = run, decimals, sketch, share
        self._steps: list[RecordedStep] = []
        self._began, self._seconds = time.monotonic(), 0.0
        self.unseen: list[list[RecordedStep]] = []
        self.forgotten: tuple[int, int] | None = None
        """The first and the last of the steps that were not replayed and are not remembered."""

    def add(self, step: RecordedStep) -> None:
        """Note a step that was recorded."""
        self._steps.append(step)

    def end_segment(self) -> list[RecordedStep]:
        """The steps since the last anchor; the next one begins a segment."""
        steps, self._steps = self._steps, []
        return steps

    @property
    def is_affordable(self) -> bool:
        """Whether there is time for another replay."""
        loop = time.monotonic() - self._began - self._seconds
        return self._seconds <= max(FREE_SECONDS, self._share * loop)

    def leave(self, segment: list[RecordedStep]) -> None:
        """Leave a segment unseen for now."""
        self.unseen.append(segment)
        if len(self.unseen) > UNSEEN_MAX:
            oldest = self.unseen.pop(0)
            first = oldest[0].index if self.forgotten is None else self.forgotten[0]
            self.forgotten = first, oldest[-1].index

    def replay(self, check: SelfCheck, segment: list[RecordedStep], before: int) -> Departure | bool | None:
        """Where the steps of a segment that precede step `before` depart from their graphs; `None` if nowhere.

        `False` where that takes too long.
        """
        began = time.monotonic()
        try:
            return self._replay(check, segment, before, began)
        finally:
            self._seconds += time.monotonic() - began

    def _replay(
        self, check: SelfCheck, segment: list[RecordedStep], before: int, began: float
    ) -> Departure | bool | None:
        band, anchors = LossBand(self._decimals), Anchors(self._run.path)
        read = anchors.read(segment[0].index - 1)
        held = {name: from_tensor(read.pop(name)) for name in sorted(read)}
        weights = {name: value.clone() for name, value in held.items() if name.startswith("weights.")}
        sketch = None if self._sketch is None else self._sketch(weights)
        first = segment[0].index
        for step in segment:
            if step.graph is None or step.index >= before:
                return None
            if time.monotonic() - began > SEGMENT_SECONDS_MAX and self._share != float("inf"):
                return False
            state, named = _tensors(held), self._batch(step.batch)
            taken = TakenStep(step.index, state, state, named, None, step.rates, step.loss, step.gradient_norm, {})
            replayed = check.replay(step.graph, taken, held)
            if not band.compare(quantise(step.loss, self._decimals), float(replayed["loss"])).agrees:
                return Departure(first, LASTING.format(step.index, "loss"))
            if not check.has_norm(taken, replayed):
                return Departure(first, LASTING.format(step.index, "gradient_norm"))
            held |= {name: replayed[name] for name in step.graph.captured.state}
            if sketch is not None and step.sketch is not None:
                for name, value in weights.items():
                    value.copy_(held[name])
                if sketch() != step.sketch:
                    return Departure(step.index, LASTING.format(step.index, "state"))
                first = step.index + 1  # the weights are right up to here; what moments hold is seen at the anchor
        state, final = _tensors(held), anchors.read(segment[-1].index)
        changed = [name for name in sorted(final) if not is_same(state.get(name), final[name])]
        return Departure(segment[0].index, LASTING.format(segment[-1].index, changed[0])) if changed else None

    def _batch(self, batch: Batch) -> State:
        assert batch.digest is not None  # the batches of a run with a graph are kept
        return read_state(self._run.path / batch_file(batch.digest), canonical=True)


def _tensors(held: Mapping[str, torch.Tensor]) -> State:
    return {name: to_tensor(value) for name, value in held.items()}
