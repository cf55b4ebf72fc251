"""Replays steps and whole segments of a loop while it runs, as an exact audit will."""

from __future__ import annotations

import ctypes
import random
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final, TypeAlias

import numpy as np
import torch

from tallystick.core.digests import Digest
from tallystick.core.errors import UnavailableError
from tallystick.core.safetensors import StateFile, read_state, write_state
from tallystick.core.tensors import State, Tensor
from tallystick.engines.torch.engine import PreparedGraph, TorchEngine
from tallystick.engines.torch.tensors import from_tensor, to_tensor
from tallystick.engines.torch.training.trainer import Sketcher
from tallystick.engines.torch.training.verifier_stack import without_gradients
from tallystick.formats.data.step_program import StepProgram, projection_seed
from tallystick.formats.records import StepRecord, batch_file
from tallystick.formats.spec import Spec
from tallystick.formats.store.run import Anchors, RunDirectory
from tallystick.programs.step_names import BATCH
from tallystick.recording.loop.step_graph import StepGraph
from tallystick.recording.loop.watchers import StepSeen
from tallystick.verdicts.distances import Projection
from tallystick.verdicts.exact import LossBand, Quantised, quantise


def trim_heap() -> None:
    """Return the memory of freed arrays to the system: what a check took for a moment, the loop must not keep.

    Nothing happens without glibc, which else keeps small ones. It takes milliseconds, so it belongs behind work that is
    done seldom.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


# A state that is spilled to a file, so that it takes no memory until it is needed.
#
# The check of a step needs the state before it until the step is over. For a model that is trained as a whole that is
# three times the weights, while the loop itself needs the most memory.

IN_MEMORY_BYTES_MAX: Final = 64 << 20
"""A smaller state is copied: that takes less time than a file."""
FILE: Final = ".spilled.safetensors"


class SpilledState(Mapping[str, Tensor]):
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

    def copied(self, name: str) -> torch.Tensor:
        """A copy of a tensor, whose pages are given back; it can be read again."""
        copied = from_tensor(self[name])
        if copied.nbytes:
            self._file.release(name, 0, copied.nbytes)
        return copied


def spill(folder: Path, state: State) -> State:
    """The same state, whatever is written into its tensors later: a file in `folder`, or copies if it is small."""
    if sum(tensor.nbytes for tensor in state.values()) > IN_MEMORY_BYTES_MAX:
        try:
            return SpilledState(folder, state)
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


class SelfCheck:
    """Selects the steps to check, holds the state before them (`before`), and replays steps on `device`."""

    def __init__(self, device: str, loss_decimals: int, stride: int) -> None:
        self.device, self._band = device, LossBand(loss_decimals)
        self._compiled: dict[Digest, PreparedGraph] = {}
        self._next, self._stage, self._stride = 1, 0, stride
        self._random = random.SystemRandom()  # does not touch the generators of the loop
        self.before: State | None = None

    def is_due(self, index: int) -> bool:
        """Whether step `index` is one to check: those that are drawn, and the last one before each anchor."""
        return index >= self._next or index % self._stride == 0

    def done(self, index: int) -> None:
        """Drop the state, and draw the step of the next check if step `index` was one that had been drawn."""
        self.before = None
        if index >= self._next:
            largest = GAPS[min(self._stage, len(GAPS) - 1)]
            self._stage, self._next = self._stage + 1, index + self._random.randint(largest // 2 + 1, largest)

    def forget(self, graph: StepGraph) -> None:
        """Drop what was prepared for a graph that is not used."""
        self._compiled.pop(graph.root, None)

    def replay(
        self, graph: StepGraph, step: StepSeen, before: State, live: Mapping[str, torch.Tensor] = NOTHING
    ) -> dict[str, torch.Tensor]:
        """The results of the graph for the step; raises `MalformedError` if it cannot read the state `before`.

        Tensors of that state that are `live` are overwritten; of the others copies are taken.
        """
        prepared = self._compiled.pop(graph.root, None)
        if prepared is None:
            whole = without_gradients(graph.captured.graph)
            prepared = TorchEngine(self.device).compile(whole, consumed=graph.captured.state)
        self._compiled[graph.root] = prepared
        if len(self._compiled) > PREPARED_MAX:
            del self._compiled[next(iter(self._compiled))]
        return prepared(inputs_of(graph, self.device, step, before, live))

    def difference(self, step: StepSeen, before: State, after: State, replayed: Mapping[str, torch.Tensor]) -> str:
        """The first of loss, gradient norm and state in which the graph differs from the loop; empty if none does."""
        if other := self.other_number(step.loss, step.gradient_norm, replayed):
            return other
        ours = {name: to_tensor(value) for name, value in replayed.items() if name in after}
        names = sorted(before.keys() | after.keys())
        return next((name for name in names if not is_same(ours.get(name), after.get(name))), "")

    def other_number(self, loss: Quantised, norm: Quantised | None, replayed: Mapping[str, torch.Tensor]) -> str:
        """The first of loss and gradient norm that is not that of the graph; empty if both are, or no norm is given."""
        if not self.has_loss(loss, float(replayed["loss"])):
            return "loss"
        if norm is None or "gradient_norm" not in replayed:
            return ""
        return "" if rounded(norm, 12) == quantise(float(replayed["gradient_norm"]), 12) else "gradient_norm"

    def has_loss(self, loss: Quantised, replayed: float) -> bool:
        """Whether a loss, as it was given or recorded, is the replayed one."""
        return self._band.compare(rounded(loss, self._band.decimals), replayed).agrees


def rounded(number: Quantised, decimals: int) -> Quantised:
    """A number as it is recorded; one that was recorded stays as it is."""
    return number if isinstance(number, str) else quantise(number, decimals)


def inputs_of(
    graph: StepGraph, device: str, step: StepSeen, before: State, live: Mapping[str, torch.Tensor] = NOTHING
) -> dict[str, torch.Tensor]:
    """All inputs of the graph at the step, on `device`: those `live`, and copies of the others.

    Raises `MalformedError` if one does not fit.
    """
    captured, named = graph.captured, {f"{BATCH}{name}": value for name, value in step.named.items()}
    program = StepProgram(
        captured.graph, captured.constants, captured.rules, lambda _: named, lambda _: step.rates, graph.loop.seed
    )
    inputs = dict[str, torch.Tensor]()
    for name, tensor in program.bindings(graph.empty_slots() | {**before}, step.index).items():
        if name in live:
            value = live[name]
        else:
            value = before.copied(name) if isinstance(before, SpilledState) and name in before else from_tensor(tensor)
        inputs[name] = value.to(device)
    return inputs


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
Recorded: TypeAlias = tuple[StepRecord, StepGraph | None]
"""The record of a step with its graph; one without a graph cannot be replayed."""


class SelfAudit:
    """Segments of a run in the run directory; `share` of the loop's time goes into their replays."""

    def __init__(self, run: RunDirectory, spec: Spec, share: float) -> None:
        self._run, self._spec, self._share = run, spec, share
        self._steps: list[Recorded] = []
        self._began, self._seconds = time.monotonic(), 0.0
        self.unseen: list[list[Recorded]] = []
        self.forgotten: tuple[int, int] | None = None
        """The first and the last of the steps that were not replayed and are not remembered."""

    def add(self, record: StepRecord, graph: StepGraph | None) -> None:
        """Note a step that was recorded."""
        self._steps.append((record, graph))

    def end_segment(self) -> list[Recorded]:
        """The steps since the last anchor; the next one begins a segment."""
        steps, self._steps = self._steps, []
        return steps

    @property
    def is_affordable(self) -> bool:
        """Whether there is time for another replay."""
        loop = time.monotonic() - self._began - self._seconds
        return self._seconds <= max(FREE_SECONDS, self._share * loop)

    def leave(self, segment: list[Recorded]) -> None:
        """Leave a segment unseen for now."""
        self.unseen.append(segment)
        if len(self.unseen) > UNSEEN_MAX:
            oldest = self.unseen.pop(0)
            first = oldest[0][0].index if self.forgotten is None else self.forgotten[0]
            self.forgotten = first, oldest[-1][0].index

    def replay(self, check: SelfCheck, segment: list[Recorded], end: int) -> tuple[int, str] | None:
        """The first of the steps before step `end` that departs from its graph, and how; `None` if none does.

        Raises `UnavailableError` where that takes too long.
        """
        began = time.monotonic()
        try:
            return self._replay(check, segment, end, began)
        finally:
            self._seconds += time.monotonic() - began

    def _replay(self, check: SelfCheck, segment: list[Recorded], end: int, began: float) -> tuple[int, str] | None:
        anchors, recorded = Anchors(self._run.path), self._spec.recorded
        first, last = segment[0][0].index, segment[-1][0].index
        read = anchors.read(first - 1)
        live = {name: from_tensor(read.pop(name)) for name in sorted(read)}
        weights = {name: value.clone() for name, value in live.items() if name.startswith("weights.")}
        sketcher = None
        if "projection" in recorded.summaries:
            sketcher = Sketcher(Projection(projection_seed(self._spec), recorded.projection_width), weights)
        begin = first
        for record, graph in segment:
            if graph is None or record.index >= end:
                return None
            if time.monotonic() - began > SEGMENT_SECONDS_MAX and self._share != float("inf"):
                raise UnavailableError("the replay takes too long")
            assert record.batch.digest is not None  # the batches of a run with a graph are kept
            named = read_state(self._run.path / batch_file(record.batch.digest), canonical=True)
            rates = record.learning_rates or (record.learning_rate,) * len(graph.rules)
            step = StepSeen(record.index, named=named, rates=rates)
            replayed = check.replay(graph, step, {name: to_tensor(value) for name, value in live.items()}, live)
            if other := check.other_number(record.loss, record.gradient_norm, replayed):
                return begin, LASTING.format(record.index, other)
            live |= {name: replayed[name] for name in graph.captured.state}
            if sketcher is not None and record.post.projection is not None:
                for name, value in weights.items():
                    value.copy_(live[name])
                if sketcher.sketch() != record.post.projection:
                    return record.index, LASTING.format(record.index, "state")
                begin = record.index + 1  # the weights are right up to here; what moments hold is seen at the anchor
        final = anchors.read(last)
        ours = {name: to_tensor(value) for name, value in live.items()}
        changed = next((name for name in sorted(final) if not is_same(ours.get(name), final[name])), "")
        return (first, LASTING.format(last, changed)) if changed else None
