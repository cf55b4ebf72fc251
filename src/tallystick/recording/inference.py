"""Records the calls of a model, and replays them before they are claimed; writes to tensors are seen by version."""

from __future__ import annotations

import inspect
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeAlias

import torch

from tallystick.core.errors import UnavailableError, UsageError
from tallystick.core.files import write_atomically
from tallystick.core.safetensors import read_state, write_state
from tallystick.core.tensor_digests import state_digest
from tallystick.core.tensors import State, TensorSpec
from tallystick.engines.torch.capture.model import CapturedModel, capture
from tallystick.engines.torch.engine import TorchEngine
from tallystick.engines.torch.environment import describe_environment
from tallystick.engines.torch.tensors import to_tensor
from tallystick.formats.claims import InferenceClaim, call_file
from tallystick.formats.records import CallRecord
from tallystick.formats.spec import Environment
from tallystick.formats.store.directories import InferenceDirectory
from tallystick.formats.store.log import LogWriter
from tallystick.programs.encoding import graph_root
from tallystick.programs.execution import Engine, execute
from tallystick.programs.files import ModulePaths, save_program
from tallystick.programs.graph import Graph, Role
from tallystick.programs.step_names import BATCH
from tallystick.verdicts.exact import describe_difference

# Finds writes to tensors by PyTorch's version counters, without reading values.
#
# A write through `.data` is not counted. Replays of random steps find it, and so does the summary of the weights.

Marks: TypeAlias = dict[str, tuple[torch.Tensor, int, int]]
"""By name in the state: a tensor, the address of its memory, and its version counter."""


def marks_of(tensors: Mapping[str, torch.Tensor]) -> Marks:
    """The current marks of tensors. They keep the tensors alive, so no other tensor can reuse an address unseen."""
    return {name: (value, value.data_ptr(), value._version) for name, value in tensors.items()}


def written(before: Marks, now: Marks) -> list[str]:
    """The sorted names of tensors that were written to, exchanged, added or removed between two marks."""
    return [name for name in sorted(before.keys() | now.keys()) if not _is_same(before, now, name)]


def writes(before: Marks, now: Marks) -> dict[str, int]:
    """How often each tensor was written to between two marks; -1 if it is new or was exchanged."""
    return {
        name: now[name][2] - before[name][2] if name in before and now[name][0] is before[name][0] else -1
        for name in now
    }


def parameters_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The parameters of a model by their names in the state."""
    return {f"weights.{name}": value for name, value in model.named_parameters()}


def buffers_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The buffers of a model by their names in the state."""
    return {f"buffers.{name}": value for name, value in model.named_buffers()}


def slots_of(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """The tensors that an optimizer keeps for the parameters of a model, by their names in the state."""
    return {
        f"optimizer.{name}.{slot}": value
        for name, parameter in model.named_parameters()
        for slot, value in optimizer.state.get(parameter, {}).items()
        if isinstance(value, torch.Tensor)
    }


def _is_same(before: Marks, now: Marks, name: str) -> bool:
    if name not in before or name not in now:
        return False
    (old, *was), (new, *is_now) = before[name], now[name]
    return old is new and was == is_now


# Replays the calls of a model from what was written of them, as an exact audit will, before they are claimed.

OUTPUTS: Final = "outputs."
AUTOCAST: Final = "a call ran under autocast in {}, which is not captured; convert the model instead: model.to({})"
OTHER: Final = "call {} is not what the captured graph gives ({}): {}; the calls are written, and not claimed"
NUMBER: Final = "{} is {} in it, and {} in the first call, where it is a constant; record a run of its own for each"
CHANGED: Final = "{} was changed after the first call; record the calls before and after that in runs of their own"
MOVES: Final = "the model gives other bits when it is called again; use torch.use_deterministic_algorithms(True)"
BRANCHES: Final = (
    "the model or a library computes otherwise while it is exported, or it ran with hooks or settings that are gone"
)


def answering(graph: Graph) -> Graph:
    """The graph of a call without the buffers that the model writes meanwhile: only its answers are recorded."""
    outputs, nodes = tuple(each for each in graph.outputs if each.name.startswith(OUTPUTS)), []
    if len(outputs) == len(graph.outputs):
        return graph
    needed = {output.value for output in outputs}
    for node in reversed(graph.nodes):
        if not needed.isdisjoint(filter(None, node.outputs)):
            nodes.append(node)
            needed.update(node.refs)
    inputs = tuple(each for each in graph.inputs if each.name in needed or each.name.startswith(BATCH))
    return replace(graph, inputs=inputs, nodes=tuple(reversed(nodes)), outputs=outputs)


def _difference(claimed: State, replayed: State) -> str:
    """The first output that differs, and how; empty if none does."""
    for name in sorted(claimed.keys() | replayed.keys()):
        ours, theirs = replayed.get(name), claimed.get(name)
        if ours is None or theirs is None:
            return f"{name} is only on one side"
        if (ours.dtype, ours.shape) != (theirs.dtype, theirs.shape):
            return f"{name} has another form"
        if bytes(ours.data) != bytes(theirs.data):
            return f"{name}: {describe_difference(theirs, ours)}"
    return ""


# Records the calls of a model: inputs and outputs. Kernels, order and precision are not changed.
#
#     with record_inference(model, "run") as recorder:
#         model(tokens)
#
# When the recording ends, the model is captured as a graph with the inputs of its first call. The calls are replayed
# from what was written: where one is not what the graph gives, no claim is written.

INPUTS: Final = "inputs."


class CallRecorder:
    """Appends calls to an inference directory, and writes the claim at the end."""

    def __init__(self, run: InferenceDirectory) -> None:
        self.run, self.calls = run, 0
        self._log = LogWriter(run.transcript_path)

    def call(self, inputs: State, outputs: State) -> None:
        """Record one call: tensors by the names of the graph's inputs, without their prefix, and of its outputs."""
        self.calls += 1
        write_state(self.run.path / call_file(self.calls, "inputs"), inputs, durable=False)
        write_state(self.run.path / call_file(self.calls, "outputs"), outputs, durable=False)
        record = CallRecord(index=self.calls, inputs=state_digest(inputs), outputs=state_digest(outputs))
        self._log.append(record.to_bytes())

    def close(self) -> None:
        """Close the log without a claim."""
        with suppress(OSError):
            self._log.close()

    def finish(
        self, graph: Graph, constants: State, weights: State, environment: Environment, modules: ModulePaths
    ) -> InferenceClaim:
        """Save graph and weights, flush every call to the disk, and write the claim."""
        save_program(self.run.graph_path, graph, constants, modules)
        write_state(self.run.weights_path, weights)
        os.sync()
        write_atomically(self.run.environment_path, environment.to_bytes())
        claim = InferenceClaim(
            graph=graph_root(graph),
            weights=state_digest(weights),
            environment=environment.digest_as("environment"),
            transcript=self._log.close(),
        )
        write_atomically(self.run.claim_path, claim.to_bytes())
        return claim


@contextmanager
def record_inference(model: torch.nn.Module, out: str | Path, *, self_audit: bool = True) -> Iterator[CallRecorder]:
    """Record every call of `model` inside the block into the directory `out`.

    Args:
        model: in the mode in which it is called.
        out: a directory that is empty or not there.
        self_audit: replay every call before the claim is written. Without it an audit may reject what was recorded.

    Raises:
        UsageError: `out` is not empty, or the model was not called.
        UnavailableError: the model cannot be captured as a graph, or a call is not what the graph gives; the calls
            stay, without a claim.
    """
    watcher = _Watcher(model, new_directory(out), self_audit)
    try:
        with watcher.watching():
            yield watcher.recorder
        watcher.finish()
    finally:
        watcher.recorder.close()


def record_graph_inference(
    graph: Graph,
    constants: State,
    weights: State,
    calls: Sequence[State],
    engine: Engine,
    out: Path,
    device: str = "cpu",
    modules: ModulePaths | None = None,
) -> InferenceClaim:
    """Run a graph on each of `calls` with the given engine, and record inputs and outputs.

    `modules` are the module paths of the graph's nodes, to be kept beside it.
    Raises `MalformedError` if inputs or weights do not fit the graph, `UsageError` if `out` is not empty.
    """
    run = new_directory(out)
    held = {**constants, **{name: tensor for name, tensor in weights.items() if name in _held_names(graph)}}
    answers = [execute(graph, held | {f"{INPUTS}{n}": t for n, t in call.items()}, engine) for call in calls]
    recorder = CallRecorder(run)
    for call, answer in zip(calls, answers, strict=True):
        recorder.call(call, answer)
    kept = {name: held[name] for name in _held_names(graph)}
    environment = describe_environment("cuda" if device == "cuda" else "cpu")
    return recorder.finish(graph, constants, kept, environment, modules or {})


def new_directory(out: str | Path) -> InferenceDirectory:
    """A directory to write into; raises `UsageError` if it is not empty."""
    run = InferenceDirectory(Path(out))
    if run.path.exists() and any(run.path.iterdir()):
        raise UsageError(f"{out}: not empty; choose another directory")
    return run


class _Watcher:
    """Records every call of a model by a hook, notes what may keep the calls from being one program, and replays them.

    The arguments of the first call are kept for the capture. A call that does not fit the first is not replayed.
    """

    def __init__(self, model: torch.nn.Module, run: InferenceDirectory, self_audit: bool) -> None:
        self.recorder = CallRecorder(run)
        self._model, self._self_audit = model, self_audit
        self._signature = inspect.signature(model.forward)
        self._device = next((value.device.type for value in model.parameters()), "cpu")
        self._autocast: torch.dtype | None = None
        self._first: tuple[tuple[Any, ...], dict[str, Any]] | None = None
        self._specs: dict[str, TensorSpec] = {}
        self._marks: Marks = {}
        self._numbers: dict[int, Mapping[str, str]] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        handle = self._model.register_forward_hook(self._called, with_kwargs=True)
        try:
            yield
        finally:
            handle.remove()

    def finish(self) -> None:
        if self._first is None:
            raise UsageError("record_inference: the model was not called")
        if self._autocast is not None:  # its casts are in no exported program
            name = str(self._autocast).removeprefix("torch.")
            raise UnavailableError(AUTOCAST.format(name, self._autocast))
        captured = capture(self._model, *self._first)
        is_on_cuda = any(value.is_cuda for value in self._model.parameters())
        environment = describe_environment("cuda" if is_on_cuda else "cpu")
        wanted = {each.name.removeprefix(INPUTS) for each in captured.graph.inputs if each.role is Role.INPUT}
        if wanted - self._specs.keys():
            raise UsageError(f"record_inference: {min(wanted - self._specs.keys())} is no argument by name")
        graph = answering(captured.graph)
        kept = {name: captured.weights[name] for name in _held_names(graph) if name in captured.weights}
        captured = replace(captured, graph=graph, weights=kept)
        if self._self_audit:
            self._check(captured, TorchEngine("cuda" if is_on_cuda else "cpu"))
        self.recorder.finish(captured.graph, captured.constants, captured.weights, environment, captured.modules)

    def _called(self, _: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        bound = self._signature.bind(*args, **kwargs).arguments
        arguments = {**bound, **bound.get("kwargs", {})}
        tensors = {name: value for name, value in arguments.items() if isinstance(value, torch.Tensor)}
        inputs = {name: to_tensor(value) for name, value in tensors.items()}
        outputs = {f"{OUTPUTS}{name}": to_tensor(value) for name, value in _tensors(output, ())}
        specs = {name: TensorSpec.of(tensor) for name, tensor in inputs.items()}
        if self._first is None:
            self._first, self._specs = (args, kwargs), specs
            self._marks = marks_of(parameters_of(self._model))
        elif specs != self._specs:
            line = f"call {self.recorder.calls + 1} has inputs of other shapes than the first and cannot be replayed"
            warnings.warn(line, RuntimeWarning, stacklevel=2)
        self.recorder.call(inputs, outputs)
        if torch.is_autocast_enabled(self._device):
            self._autocast = torch.get_autocast_dtype(self._device)
        if specs == self._specs:
            others = {name: value for name, value in arguments.items() if isinstance(value, bool | int | float | str)}
            self._numbers[self.recorder.calls] = {name: repr(value) for name, value in others.items()}

    def _check(self, captured: CapturedModel, engine: Engine) -> None:
        """Raise `UnavailableError` with the likely cause if a call is not what the graph gives."""
        for index in self._numbers:
            inputs = read_state(self.recorder.run.path / call_file(index, "inputs"), canonical=True)
            claimed = read_state(self.recorder.run.path / call_file(index, "outputs"), canonical=True)
            given = {f"{BATCH}{name}": tensor for name, tensor in inputs.items()}
            replayed = execute(captured.graph, {**captured.bindings, **given}, engine)
            if difference := _difference(claimed, replayed):
                raise UnavailableError(OTHER.format(index, difference, self._cause(index)))

    def _cause(self, index: int) -> str:
        first, here = self._numbers[min(self._numbers)], self._numbers[index]
        for name in sorted(first.keys() | here.keys()):
            if first.get(name) != here.get(name):
                return NUMBER.format(name, here.get(name, "not there"), first.get(name, "not there"))
        if names := written(self._marks, marks_of(parameters_of(self._model))):
            return CHANGED.format(names[0])
        return BRANCHES if self._repeats() else MOVES

    def _repeats(self) -> bool:
        """Whether the model gives the same bits when it is called twice."""
        assert self._first is not None
        args, kwargs = self._first
        with torch.no_grad():
            one, two = (_leaves(self._model(*args, **kwargs)) for _ in range(2))
        return len(one) == len(two) and all(map(torch.equal, one, two))


def _leaves(output: Any) -> list[torch.Tensor]:
    from torch.utils import _pytree

    return [each for each in _pytree.tree_leaves(output) if isinstance(each, torch.Tensor)]


def _held_names(graph: Graph) -> list[str]:
    return [each.name for each in graph.inputs if each.role is not Role.INPUT]


def _tensors(value: Any, path: tuple[str, ...]) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors in a model's output, named by the path of fields, keys and positions; a lone tensor is `0`."""
    if isinstance(value, torch.Tensor):
        yield ".".join(path) or "0", value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _tensors(item, (*path, str(key)))
    elif isinstance(value, list | tuple):
        for name, item in zip(getattr(value, "_fields", range(len(value))), value, strict=True):
            yield from _tensors(item, (*path, str(name)))
    elif is_dataclass(value):
        for part in fields(value):
            yield from _tensors(getattr(value, part.name), (*path, part.name))
