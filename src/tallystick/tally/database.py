"""`tallystick.open`: the workload database in Python, here or behind a URL, and steps of a run on an engine."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, Self

from tallystick.audits import checked_run, opening as openings, replay
from tallystick.core.errors import UnavailableError, UsageError
from tallystick.core.lazy import load_name, require
from tallystick.core.tensor_digests import state_digest
from tallystick.core.tensors import Tensor
from tallystick.database import remote, workload_database
from tallystick.database.indexing import discovery
from tallystick.database.query import DatabaseQueries
from tallystick.database.replayable import ANCHOR_MEND, STATE_AFTER, Discovery
from tallystick.formats.store.directories import SEGMENT, SegmentDirectory
from tallystick.formats.store.run import RunDirectory
from tallystick.programs import batching
from tallystick.programs.execution import Engine, execute
from tallystick.programs.graph import Graph, Ref
from tallystick.programs.slicing import Binding, bind
from tallystick.programs.step_names import BATCH

# `db.segment`: steps of a run, here or in a service, bound to what they read and replayed on an engine.

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
        claimed = replay.as_float(self._evidence.step(step).loss)
        return SliceStep(step, claimed, float(outputs["loss"].values()), agrees, outputs)

    @cached_property
    def _evidence(self) -> checked_run.CheckedRun:
        if self.missing:
            raise UnavailableError(f"{self.directory.name}: cannot be replayed: {'; '.join(self.missing)}")
        if (self.directory / SEGMENT).is_file():
            return openings.gather_segment(SegmentDirectory(self.directory))
        return openings.gather_records(RunDirectory(self.directory))

    @cached_property
    def _carried(self) -> dict[str, Tensor]:
        """The tensors of the state that no step reads or writes."""
        assert self.anchor is not None  # nothing is missing
        assert self._evidence.program is not None
        state = self._evidence.state(self.anchor)
        return {name: value for name, value in state.items() if name not in self._evidence.program.state_names}

    def _bindings(self) -> Iterator[tuple[int, Binding]]:
        """The graph of each step with what it reads, the state before it included."""
        replayer = openings.graph_replayer(self._evidence)
        assert self._evidence.program is not None  # checked by `graph_replayer`
        openings.replay_to(self._evidence, replayer, self.first - 1)
        for step in range(self.first, self.last + 1):
            graph = self._evidence.program.at(step).graph
            given = replayer.bindings(step)
            yield step, bind(graph, {each.name: given[each.name].copy() for each in graph.sources})
            if step < self.last:
                replayer.step(step)


def _planned(discovered: Discovery, wanted: range, batch_element: int | None, folder: Path) -> RunSlice:
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
    forward = batching.separable(whole.graph, names)
    part = batching.slice_batch(forward, [each.name for each in forward.inputs if each.name in names])
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


# `tallystick.open`: the workload database in Python, here or behind a URL.


class Database(DatabaseQueries):
    """What a database holds, one query for each noun, and steps of its runs; a context manager that closes it."""

    def __init__(self, source: workload_database.WorkloadDatabase | remote.ServiceAnswers) -> None:
        super().__init__(source)
        self._source: workload_database.WorkloadDatabase | remote.ServiceAnswers = source
        self._fetched = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections to it, and delete what was fetched."""
        self._fetched.close()
        self._source.close()

    def discover(self, run: str) -> Discovery:
        """What of a run can be replayed exactly, what only from outside, what is missing and where it could come from.

        A service is asked, and not believed: what it says is there shows itself when it is replayed.

        Raises `UnavailableError` where there is no such run, or its files are not where the database is.
        """
        if isinstance(self._source, workload_database.WorkloadDatabase):
            return discovery.discover(self._source, run)
        return self._source.discover(run)

    def segment(self, run: str, steps: int | range, batch_element: int | None = None) -> RunSlice:
        """Steps of a run as they can be replayed, from the nearest state before them.

        From a service, the files between two anchors are fetched into a temporary folder, which is deleted when the
        database is closed.

        Args:
            run: the name of the run in the database.
            steps: a step, or a range of them as Python counts: `range(10, 13)` for the steps 10, 11 and 12.
            batch_element: cut one step down to this example of its batch, counted from 0: the part of its graph for
                which it is proved that examples do not mix.

        Raises:
            UnavailableError: there is no such run or step, or its files are not where the database is.
            UsageError: several steps and one example, or no steps.
        """
        wanted = range(steps, steps + 1) if isinstance(steps, int) else steps
        if not wanted or wanted.step != 1 or wanted[0] < 1:
            raise UsageError("steps: a step from 1 on, or a range of them without gaps")
        if batch_element is not None and len(wanted) > 1:
            raise UsageError("batch_element: of one step at a time")
        discovered = self.discover(run)
        if isinstance(self._source, workload_database.WorkloadDatabase):
            directory = discovery.run_directory(self._source, run)
            return _planned(discovered, wanted, batch_element, directory.path)
        folder = Path(self._fetched.enter_context(TemporaryDirectory(prefix="tally-segment-"))) / "segment"
        planned = _planned(discovered, wanted, batch_element, folder)
        end = min((mark for mark in discovered.anchors if mark >= wanted[-1]), default=None)
        if planned.missing or planned.anchor is None:
            return planned
        if end is None:
            return replace(planned, missing=(f"a state behind step {wanted[-1]}; {ANCHOR_MEND}",))
        # Nothing that comes is believed: `RunSlice` compares records, graphs, batches and states with the claim.
        self._source.fetch_segment(run, planned.anchor, end, folder)
        return planned


def open(place: str | Path, *, token: str | None = None) -> Database:
    """Open a workload database to ask it: a file, `sqlite:///…`, `postgresql://…`, or a service at `https://…`.

    Args:
        place: where it is.
        token: the token that the operator of a service gave.

    Raises:
        UsageError: `place` is no path or URL of a database, or a token is given for one that is no service.
        UnavailableError: there is none, or it cannot be reached.
        MalformedError: it holds the tables of another program.
    """
    if isinstance(place, str) and place.startswith(("http://", "https://")):
        require("httpx", "fastapi")
        return Database(remote.ServiceAnswers(place, token))
    if token is not None:
        raise UsageError(f"{place}: a token is for a service")
    require("sqlalchemy", "alembic")
    return Database(workload_database.WorkloadDatabase(place))
