"""Records the calls of a model: inputs and outputs. Kernels, order and precision are not changed.

    with record_inference(model, "run") as recorder:
        model(tokens)

When the recording ends, the model is captured as a graph with the inputs of its first call. The calls are replayed from
what was written: where one is not what the graph gives, no claim is written.
"""

from __future__ import annotations

import inspect
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch

from tallystick.documents.files import write_atomically
from tallystick.errors import UsageError
from tallystick.frameworks.torch.capture.model import CapturedModel, capture
from tallystick.frameworks.torch.engine import TorchEngine
from tallystick.frameworks.torch.environment import describe_environment
from tallystick.frameworks.torch.tensors import to_tensor
from tallystick.graphs.engine import Engine
from tallystick.graphs.execution import execute
from tallystick.graphs.files import save_program
from tallystick.graphs.graph import Graph, Role
from tallystick.graphs.modules import ModulePaths
from tallystick.graphs.root import graph_root
from tallystick.recorders.call_audit import CallAudit, answering
from tallystick.store.inference import InferenceDirectory
from tallystick.store.log_writer import LogWriter
from tallystick.tensors.digest import state_digest
from tallystick.tensors.safetensors import write_state
from tallystick.tensors.spec import TensorSpec
from tallystick.tensors.tensor import State
from tallystick.transcripts.environment import Environment
from tallystick.transcripts.inference import InferenceClaim, call_file
from tallystick.transcripts.record import CallRecord

INPUTS: Final = "inputs."
OUTPUTS: Final = "outputs."


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
    """Records every call of a model by a hook, and keeps the arguments of the first for the capture."""

    def __init__(self, model: torch.nn.Module, run: InferenceDirectory, self_audit: bool) -> None:
        self.recorder = CallRecorder(run)
        self._model, self._self_audit = model, self_audit
        self._audit = CallAudit(model)
        self._signature = inspect.signature(model.forward)
        self._first: tuple[tuple[Any, ...], dict[str, Any]] | None = None
        self._specs: dict[str, TensorSpec] = {}

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
        self._audit.require_plain()
        captured = capture(self._model, *self._first)
        is_on_cuda = any(value.is_cuda for value in self._model.parameters())
        environment = describe_environment("cuda" if is_on_cuda else "cpu")
        self._check_names(captured)
        graph = answering(captured.graph)
        kept = {name: captured.weights[name] for name in _held_names(graph) if name in captured.weights}
        captured = replace(captured, graph=graph, weights=kept)
        if self._self_audit:
            self._audit.check(captured, self.recorder.run, TorchEngine("cuda" if is_on_cuda else "cpu"))
        self.recorder.finish(captured.graph, captured.constants, captured.weights, environment, captured.modules)

    def _called(self, _: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        inputs = {name: to_tensor(value) for name, value in _arguments(self._signature, args, kwargs).items()}
        outputs = {f"{OUTPUTS}{name}": to_tensor(value) for name, value in _tensors(output, ())}
        specs = {name: TensorSpec.of(tensor) for name, tensor in inputs.items()}
        if self._first is None:
            self._first, self._specs = (args, kwargs), specs
            self._audit.begin(args, kwargs)
        elif specs != self._specs:
            line = f"call {self.recorder.calls + 1} has inputs of other shapes than the first and cannot be replayed"
            warnings.warn(line, RuntimeWarning, stacklevel=2)
        self.recorder.call(inputs, outputs)
        self._audit.note(self.recorder.calls, specs == self._specs, self._numbers(args, kwargs))

    def _numbers(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, str]:
        """The arguments of a call that are no tensors, in words."""
        bound = self._signature.bind(*args, **kwargs).arguments
        flat = {**bound, **bound.get("kwargs", {})}
        return {name: repr(value) for name, value in flat.items() if isinstance(value, bool | int | float | str)}

    def _check_names(self, captured: CapturedModel) -> None:
        wanted = {each.name.removeprefix(INPUTS) for each in captured.graph.inputs if each.role is Role.INPUT}
        if wanted - self._specs.keys():
            raise UsageError(f"record_inference: {min(wanted - self._specs.keys())} is no argument by name")


def _held_names(graph: Graph) -> list[str]:
    return [each.name for each in graph.inputs if each.role is not Role.INPUT]


def _arguments(
    signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, torch.Tensor]:
    """The tensors among the arguments of a call, by the names of the parameters of `forward`."""
    bound = signature.bind(*args, **kwargs).arguments
    flat = dict(bound) | dict(bound.get("kwargs", {}))
    return {name: value for name, value in flat.items() if isinstance(value, torch.Tensor)}


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
