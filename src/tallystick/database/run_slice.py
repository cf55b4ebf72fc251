"""Steps of a run, bound to what they read and replayed on an engine."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from tallystick.audits.checked_run import CheckedRun
from tallystick.audits.opening import gather_records, gather_segment, graph_replayer, replay_to
from tallystick.audits.replay import as_float
from tallystick.core.errors import UnavailableError, UsageError
from tallystick.core.lazy import load_name, require
from tallystick.core.tensor_digests import state_digest
from tallystick.core.tensors import Tensor
from tallystick.database.replayable import ANCHOR_MEND, STATE_AFTER, Discovery
from tallystick.formats.store.directories import SEGMENT, SegmentDirectory
from tallystick.formats.store.run import RunDirectory
from tallystick.programs.batching import separable, slice_batch
from tallystick.programs.execution import Engine, execute
from tallystick.programs.graph import Graph, Ref
from tallystick.programs.slicing import Binding, bind
from tallystick.programs.step_names import BATCH

ENGINES: Final = {
    "torch": ("tallystick.engines.torch.engine", "TorchEngine"),
    "reference": ("tallystick.programs.execution", "Reference"),
    "jax": ("tallystick.engines.jax.engine", "JaxEngine"),
    "iree": ("tallystick.engines.iree", "IreeEngine"),
}
"""Where each engine is; its libraries are loaded when it is named."""
MICRO_BATCH: Final = re.compile(rf"{re.escape(BATCH)}(\d+)\.")


@dataclass(frozen=True)
class SliceStep:
    """A replayed step: the recorded loss and ours, and the outputs of its graph by name.

    `state_agrees` says whether the state after it has the recorded digest; `None` where no state is recorded, or the
    engine is another one than PyTorch. The losses are `None` for a slice of single examples.
    """

    step: int
    claimed_loss: float | None
    replayed_loss: float | None
    state_agrees: bool | None
    outputs: Mapping[str, Tensor]


@dataclass(frozen=True)
class RunSlice:
    """The steps from `first` to `last` of a run, as they are replayed from the state after `anchor`.

    `missing` says what lacks; where it is not empty, nothing can be replayed. With `batch_element`, the part of one
    step that computes values of this example alone.
    """

    directory: Path
    first: int
    last: int
    anchor: int | None
    missing: tuple[str, ...]
    batch_element: int | None = None

    @cached_property
    def bound(self) -> Binding:
        """The graph of the first step with every tensor that it reads; with `batch_element`, cut down to the example.

        Raises:
            ProofError: the run is not consistent, or its anchor is not the recorded one.
            UnavailableError: something is missing.
            UsageError: examples mix before anything could be said of one, or there is no such example.
        """
        whole = next(self._bindings())[1]
        return whole if self.batch_element is None else _element_of(whole, self.batch_element)

    def run(self, engine: str = "torch") -> tuple[SliceStep, ...]:
        """Replay the steps on `torch`, `reference`, `jax` or `iree`.

        Each step starts from the state that PyTorch replayed, which is the recorded one on the same stack. Raises what
        `bound` raises, and `UsageError` for another engine.
        """
        runner = engine_named(engine)
        if self.batch_element is not None:
            outputs = execute(self.bound.graph, self.bound.values, runner)
            return (SliceStep(self.first, None, None, None, outputs),)
        return tuple(self._replayed(step, binding, runner) for step, binding in self._bindings())

    def _replayed(self, step: int, binding: Binding, engine: Engine) -> SliceStep:
        outputs = execute(binding.graph, binding.values, engine)
        agrees = None
        if step in self._evidence.anchors and engine.name.startswith("torch"):
            assert self._evidence.program is not None  # a graph was replayed
            names = self._evidence.program.at(step).state_names
            after = {**self._carried, **{name: outputs[name] for name in names}}
            agrees = state_digest(after) == self._evidence.anchors[step].digest
        claimed = as_float(self._evidence.step(step).loss)
        return SliceStep(step, claimed, float(outputs["loss"].values()), agrees, outputs)

    @cached_property
    def _evidence(self) -> CheckedRun:
        if self.missing:
            raise UnavailableError(f"{self.directory.name}: cannot be replayed: {'; '.join(self.missing)}")
        if (self.directory / SEGMENT).is_file():
            return gather_segment(SegmentDirectory(self.directory))
        return gather_records(RunDirectory(self.directory))

    @cached_property
    def _carried(self) -> dict[str, Tensor]:
        """The tensors of the state that no step reads or writes."""
        assert self.anchor is not None  # nothing is missing
        assert self._evidence.program is not None
        state = self._evidence.state(self.anchor)
        return {name: value for name, value in state.items() if name not in self._evidence.program.state_names}

    def _bindings(self) -> Iterator[tuple[int, Binding]]:
        """The graph of each step with what it reads, the state before it included."""
        replayer = graph_replayer(self._evidence)
        assert self._evidence.program is not None  # checked by `graph_replayer`
        replay_to(self._evidence, replayer, self.first - 1)
        for step in range(self.first, self.last + 1):
            graph = self._evidence.program.at(step).graph
            given = replayer.bindings(step)
            yield step, bind(graph, {each.name: given[each.name].copy() for each in graph.sources})
            if step < self.last:
                replayer.step(step)


def plan_slice(discovered: Discovery, wanted: range, batch_element: int | None, folder: Path) -> RunSlice:
    """The slice, from the nearest state before it, with all that lacks."""
    first, last = wanted[0], wanted[-1]
    discovered.of(last)
    anchor = max((mark for mark in discovered.anchors if mark < first), default=None)
    missing = list(_missing(discovered, (first if anchor is None else anchor + 1), last))
    if anchor is None:
        missing = missing or [f"a state before step {first}; {ANCHOR_MEND}"]
    return RunSlice(folder, first, last, anchor, tuple(missing), batch_element)


def _missing(discovered: Discovery, first: int, last: int) -> Iterator[str]:
    """What keeps the steps from `first` to `last` from being replayed, once for each range of steps."""
    for part in discovered.ranges:
        if part.first <= last and part.last >= first and part.missing not in {"", STATE_AFTER}:
            steps = f"step {part.first}" if part.first == part.last else f"steps {part.first} to {part.last}"
            yield f"{steps}: {part.missing}; {part.mend}"


def engine_named(name: str) -> Engine:
    """An engine; raises `UsageError` for one that is not known, `UnavailableError` for one that is not installed."""
    if name not in ENGINES:
        raise UsageError(f"no such engine {name}; there are {', '.join(ENGINES)}")
    if name in ("jax", "iree"):
        require(name)
    engine: Engine = load_name(*ENGINES[name])()
    return engine


def _element_of(whole: Binding, element: int) -> Binding:
    """The part of a step that computes values of one example, bound to this example."""
    names, start = _batched_inputs(whole.graph, element)
    forward = separable(whole.graph, names)
    part = slice_batch(forward, [each.name for each in forward.inputs if each.name in names])
    taken = part.take({each.name: whole.values[each.name] for each in part.graph.sources}, start)
    return bind(part.graph, taken)


def _batched_inputs(graph: Graph, element: int) -> tuple[tuple[Ref, ...], int]:
    """The inputs that hold a batch, or the micro-batch in which the example is; and its place in there."""
    sides = {each.name: each.spec.shape[0] for each in graph.inputs if each.name.startswith(BATCH) and each.spec.shape}
    if not sides:
        raise UsageError("the step reads no batch")
    size = max(sides.values())
    batched = [name for name, side in sides.items() if side == size]
    parts = sorted({int(found[1]) for name in batched if (found := MICRO_BATCH.match(name))})
    if not 0 <= element < size * max(1, len(parts)):
        raise UsageError(f"batch_element {element}: the batch has {size * max(1, len(parts))} examples, counted from 0")
    if not parts:
        return tuple(batched), element
    prefix = f"{BATCH}{parts[element // size]}."
    return tuple(name for name in batched if name.startswith(prefix)), element % size
