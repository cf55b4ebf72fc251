"""Replays the calls of a model from what was written of them, as an exact audit will, before they are claimed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import torch

from tallystick.errors import UnavailableError
from tallystick.frameworks.torch.capture.model import CapturedModel
from tallystick.graphs.engine import Engine
from tallystick.graphs.execution import execute
from tallystick.graphs.graph import Graph
from tallystick.recorders.written import Marks, marks_of, parameters_of, written
from tallystick.store.inference import InferenceDirectory
from tallystick.tensors.safetensors import read_state
from tallystick.tensors.tensor import State
from tallystick.tolerances.exact import describe_difference
from tallystick.transcripts.inference import call_file
from tallystick.workloads.names import BATCH

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


class CallAudit:
    """Notes what may keep calls of a model from being one program, and replays them."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._device = next((value.device.type for value in model.parameters()), "cpu")
        self._dtype: torch.dtype | None = None
        self._first: tuple[tuple[Any, ...], dict[str, Any]] = (), {}
        self._marks: Marks = {}
        self._numbers: dict[int, Mapping[str, str]] = {}

    def begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note the first call: its arguments, and the weights."""
        self._first, self._marks = (args, kwargs), marks_of(parameters_of(self._model))

    def note(self, index: int, fits: bool, numbers: Mapping[str, str]) -> None:
        """Note a call and its arguments that are no tensors; one that does not fit the first is not replayed."""
        if torch.is_autocast_enabled(self._device):
            self._dtype = torch.get_autocast_dtype(self._device)
        if fits:
            self._numbers[index] = dict(numbers)

    def require_plain(self) -> None:
        """Raise `UnavailableError` for calls under autocast, whose casts no exported program has."""
        if self._dtype is not None:
            name = str(self._dtype).removeprefix("torch.")
            raise UnavailableError(AUTOCAST.format(name, self._dtype))

    def check(self, captured: CapturedModel, run: InferenceDirectory, engine: Engine) -> None:
        """Raise `UnavailableError` with the likely cause if a call is not what the graph gives."""
        for index in self._numbers:
            inputs = read_state(run.path / call_file(index, "inputs"), canonical=True)
            claimed = read_state(run.path / call_file(index, "outputs"), canonical=True)
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
        args, kwargs = self._first
        with torch.no_grad():
            one, two = (_leaves(self._model(*args, **kwargs)) for _ in range(2))
        return len(one) == len(two) and all(map(torch.equal, one, two))


def _leaves(output: Any) -> list[torch.Tensor]:
    from torch.utils import _pytree

    return [each for each in _pytree.tree_leaves(output) if isinstance(each, torch.Tensor)]


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
