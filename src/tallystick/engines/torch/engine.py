"""Graphs executed by PyTorch's own kernels: node by node, prepared, or marked for a profiler."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from tallystick.core.errors import MalformedError, UnavailableError
from tallystick.core.tensors import Tensor
from tallystick.engines.torch.kernels import CRASHES, in_place_nodes, overload_of, prepared, refusal, results_of
from tallystick.engines.torch.tensors import DTYPES, from_tensor, to_tensor
from tallystick.programs.admission import last_readers
from tallystick.programs.execution import Arguments, execute
from tallystick.programs.graph import Graph, Node, Operand, Ref, Role
from tallystick.programs.operators.definition import operator

# A graph as a list of prepared calls; a whole training step is replayed this way.
#
# Values are kept in numbered slots and freed after their last reader. Elementwise operators write into an operand that
# nothing reads any more, as `torch.optim` does.

Run: TypeAlias = Callable[[list[Any]], None]
"""One prepared call: reads operands from slots, writes results into slots, and empties slots read for the last time."""


@dataclass(frozen=True)
class PreparedGraph:
    """A graph ready to be run many times on tensors of one device."""

    graph: Graph
    slots: Mapping[Ref, int]
    steps: Sequence[tuple[Run, Node]]

    @classmethod
    def of(cls, graph: Graph, device: str, consumed: Collection[Ref]) -> PreparedGraph:
        """Prepare every node for `device`; a run may overwrite the inputs `consumed`."""
        slots = {name: index for index, name in enumerate(graph.specs())}
        last, written = last_readers(graph), in_place_nodes(graph, consumed)
        steps = []
        for node in graph.nodes:
            call = prepared(node, device, node.number in written)
            freed = tuple(slots[ref] for ref in last.get(node.number, ()))
            steps.append((_run(node, call, slots, freed), node))
        return cls(graph, slots, steps)

    @torch.inference_mode()
    def __call__(self, values: Mapping[Ref, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The outputs by name; `values` gives every input and constant.

        Weights require gradients, as those of a module do: PyTorch's matrix products use this to choose between one
        product and many, which round differently on some processors.

        Raises `UnavailableError` if a kernel refuses its operands, `MalformedError` if a value is missing.
        """
        held: list[Any] = [None] * (len(self.slots) + 1)  # the last slot stands for an absent operand
        for name in [value.name for value in self.graph.inputs] + [value.name for value in self.graph.constants]:
            if name not in values:
                raise MalformedError(f"{name} is not bound")
            held[self.slots[name]] = values[name]
        for weight in (given for given in self.graph.inputs if given.role is Role.WEIGHT and given.spec.is_float):
            held[self.slots[weight.name]] = held[self.slots[weight.name]].detach().requires_grad_()
        at = None
        try:
            for run, at in self.steps:  # noqa: B007
                run(held)
        except CRASHES as error:
            raise refusal(at, error) from error
        return {output.name: held[self.slots[output.value]] for output in self.graph.outputs}


def _run(node: Node, call: Callable[..., Any], slots: Mapping[Ref, int], freed: tuple[int, ...]) -> Run:
    operands = [_slots(operand, slots) for operand in node.operands.values()]
    results = [None if ref is None else slots[ref] for ref in node.outputs]
    returned = overload_of(node.operator)._schema.returns if node.operator.startswith("aten.") else ()
    returns_one = [str(value.type) for value in returned] == ["Tensor"]
    if not returns_one or any(isinstance(slot, tuple) for slot in operands):
        return _general_run(node, call, operands, results, freed)
    return _single_run(call, operands, results[0], freed)  # type: ignore[arg-type]


def _single_run(call: Callable[..., Any], operands: Sequence[int], result: int, freed: tuple[int, ...]) -> Run:
    if len(operands) == 1:
        (only,) = operands

        def run_one(held: list[Any]) -> None:
            held[result] = call(held[only])
            for slot in freed:
                held[slot] = None

        return run_one
    if len(operands) == 2:
        left, right = operands

        def run_two(held: list[Any]) -> None:
            held[result] = call(held[left], held[right])
            for slot in freed:
                held[slot] = None

        return run_two

    def run(held: list[Any]) -> None:
        held[result] = call(*[held[slot] for slot in operands])
        for slot in freed:
            held[slot] = None

    return run


def _general_run(
    node: Node,
    call: Callable[..., Any],
    operands: Sequence[int | tuple[int, ...]],
    results: Sequence[int | None],
    freed: tuple[int, ...],
) -> Run:
    def run(held: list[Any]) -> None:
        fetched = [[held[i] for i in slot] if isinstance(slot, tuple) else held[slot] for slot in operands]
        for slot, value in zip(results, results_of(node, call(*fetched)), strict=True):
            if slot is not None:
                held[slot] = value
        for slot in freed:
            held[slot] = None

    return run


def _slots(operand: Operand, slots: Mapping[Ref, int]) -> int | tuple[int, ...]:
    if operand is None or isinstance(operand, str):
        return len(slots) if operand is None else slots[operand]
    return tuple(len(slots) if ref is None else slots[ref] for ref in operand)


# Graphs of ATen operators executed by PyTorch's own kernels, operator by operator.
#
# An operator's name is looked up on the allow-list first; only then is the overload of that name taken from PyTorch.


class TorchEngine:
    """PyTorch in eager mode on one device; implements `graphs.Engine`.

    Raises `UnavailableError` if the device is missing or a kernel does not run.
    """

    def __init__(self, device: str = "cpu") -> None:
        if device.startswith("cuda") and not torch.cuda.is_available():
            raise UnavailableError("there is no CUDA device here")
        self.device = device

    @property
    def name(self) -> str:
        """`torch-nnpack` on CPUs without oneDNN, where NNPACK may compute convolutions by transforms of tiles."""
        has_nnpack = torch.backends.nnpack.is_available()  # type: ignore[no-untyped-call]
        transforms = has_nnpack and torch._C._get_nnpack_enabled() and not torch.backends.mkldnn.enabled
        return "torch-nnpack" if self.device == "cpu" and transforms else "torch"

    def load(self, tensor: Tensor) -> torch.Tensor:
        """A new tensor on the device of the engine."""
        return from_tensor(tensor).to(self.device)

    def unload(self, array: torch.Tensor, dtype: str) -> Tensor:
        """The canonical bytes of a tensor."""
        assert array.dtype == DTYPES[dtype]
        return to_tensor(array)

    def place(self, array: torch.Tensor) -> int | None:
        """The address of an array whose canonical bytes lie in memory as they are; `None` for other strides."""
        return array.data_ptr() if array.is_contiguous() else None

    def prepare(self, node: Node, differentiable: bool = False) -> Callable[[Arguments], tuple[Any, ...]]:
        """A function from operands to results; raises `MalformedError` for an operator not on the allow-list."""
        call = prepared(node, self.device)
        names = [parameter.name for parameter in operator(node.operator).parameters if parameter.is_operand]

        def run(arguments: Arguments) -> tuple[Any, ...]:
            try:
                with torch.inference_mode(not differentiable):
                    return results_of(node, call(*(arguments[name] for name in names)))
            except CRASHES as error:
                raise refusal(node, error) from error

        return run

    def compile(self, graph: Graph, consumed: Collection[Ref] = ()) -> PreparedGraph:
        """`graph` as prepared calls; a run may overwrite the tensors of the inputs `consumed`."""
        return PreparedGraph.of(graph, self.device, consumed)


# An engine that says to torch.profiler which node of the graph it computes.


class MarkedEngine(TorchEngine):
    """`TorchEngine` whose nodes stand in spans `tally:node N`."""

    def prepare(self, node: Node, differentiable: bool = False) -> Callable[[Arguments], tuple[Any, ...]]:
        """What `TorchEngine` prepares, in a span."""
        run = super().prepare(node, differentiable)

        def marked(arguments: Arguments) -> tuple[Any, ...]:
            with record_function(f"tally:node {node.number} {node.operator}"):
                return run(arguments)

        return marked


def profile_graph(graph: Graph, bindings: Mapping[str, Tensor], step: int, file: Path, device: str = "cpu") -> None:
    """Execute a graph as step `step` under torch.profiler, and write what it saw to `file`.

    Raises `UnavailableError` where a kernel refuses its operands, or the device is not here.
    """
    engine = MarkedEngine(device)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device == "cuda" else [])]
    execute(graph, bindings, engine)  # the first time, kernels are chosen and memory is taken
    with profile(activities=activities, record_shapes=True) as seen, record_function(f"tally:step {step}"):
        execute(graph, bindings, engine)
        if device == "cuda":
            torch.cuda.synchronize()
    seen.export_chrome_trace(str(file))
