"""Replays steps and whole segments of a loop while it runs, as an exact audit will."""

from __future__ import annotations

import ctypes
import random
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import torch

from tallystick.core.digests import Digest
from tallystick.core.errors import UnavailableError
from tallystick.core.safetensors import StateFile, read_state, write_state
from tallystick.core.tensors import State, Tensor
from tallystick.engines.torch.engine import PreparedGraph, TorchEngine
from tallystick.engines.torch.tensors import from_tensor, to_tensor
from tallystick.engines.torch.training.verifier_stack import without_gradients
from tallystick.formats.records import Batch, batch_file
from tallystick.formats.step_program import StepProgram
from tallystick.formats.store.run import Anchors, RunDirectory
from tallystick.programs.step_names import BATCH
from tallystick.recording.loop.step_graph import StepGraph
from tallystick.verdicts.exact import LossBand, quantise

# Gives freed memory back to the system: what a check took for a moment, the loop must not keep.


def give_back() -> None:
    """Return the memory of freed arrays to the system; nothing happens without glibc, which else keeps small ones.

    It takes milliseconds, so it belongs behind work that is done seldom.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


# A state that is set aside in a file, so that it takes no memory until it is needed.
#
# The check of a step needs the state before it until the step is over. For a model that is trained as a whole that is
# three times the weights, while the loop itself needs the most memory.

IN_MEMORY_BYTES_MAX: Final = 64 << 20
"""A smaller state is copied: that takes less time than a file."""
FILE: Final = ".aside.safetensors"


class SetAside(Mapping[str, Tensor]):
    """The tensors of a state, read from a file that has no name any more; nothing of it is left behind.

    Raises `UnavailableError` if the file cannot be written.
    """

    def __init__(self, folder: Path, state: State) -> None:
        path = folder / FILE
        write_state(path, state, durable=False)
        self._file = StateFile(path)
        path.unlink()

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._file.specs:
            raise KeyError(name)
        return self._file.tensor(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._file.names)

    def __len__(self) -> int:
        return len(self._file.specs)

    def release(self, name: str) -> None:
        """Give back the memory of a tensor that was read; it can be read again."""
        if self[name].nbytes:
            self._file.release(name, 0, self[name].nbytes)


def set_aside(folder: Path, state: State) -> State:
    """The same state, whatever is written into its tensors later: a file in `folder`, or copies if it is small."""
    if sum(tensor.nbytes for tensor in state.values()) > IN_MEMORY_BYTES_MAX:
        try:
            return SetAside(folder, state)
        except UnavailableError:  # a disk that is full or cannot be written costs memory, not the recording
            pass
    return {name: tensor.copy() for name, tensor in state.items()}


# Replays steps that the loop has just taken, to find early if its step graph does something else.
#
# An audit would reject a loop that departs from its graph, although nobody lied. So the first two steps are checked,
# and later ones at random. The comparison is that of an exact audit.

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


# Replays what was recorded, from anchor to anchor, as an exact audit will.
#
# A check of single steps leaves the others unseen, and a loop that departs in one of them would be rejected although
# nobody lied. So each segment is replayed when its anchor is written: losses, the sketches of the weights, and the
# state at the end. That takes a share of the loop's time; a segment that was not replayed is withdrawn when another one
# is found not to be what was recorded.

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
