"""Graphs of ATen operators executed by PyTorch's own kernels, operator by operator.

An operator's name is looked up on the allow-list first; only then is the overload of that name taken from PyTorch.
`TorchEngine.compile` turns a graph into a list of prepared calls, which is how a whole training step is replayed:
values live in numbered slots, are let go after their last reader, and elementwise operators write into an operand that
nothing reads any more, as `torch.optim` does.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import torch

from tallystick.errors import MalformedError, UnavailableError
from tallystick.frameworks.torch.dtypes import DTYPES, dtype_name
from tallystick.frameworks.torch.randomness import dropout_mask, philox_uniform
from tallystick.frameworks.torch.reuse import IN_PLACE, in_place_nodes
from tallystick.frameworks.torch.state import from_tensor, to_tensor
from tallystick.graphs.costs import last_readers
from tallystick.graphs.engine import Arguments
from tallystick.graphs.graph import Graph, Node, Operand, Ref
from tallystick.operators.arrays import library
from tallystick.operators.operator import Operator
from tallystick.operators.registry import operator
from tallystick.operators.values import Value, Values
from tallystick.tensors import Tensor

CRASHES: Final = (ArithmeticError, AttributeError, LookupError, MemoryError, RuntimeError, TypeError, ValueError)
"""What a kernel raises for operands that it does not take."""
ZEROS: Final = {"aten.empty.memory_format": "aten.zeros.default", "aten.empty_like.default": "aten.zeros_like.default"}
"""Memory that nobody has written holds zeros: the definitions of graphs have no undefined values."""
DRAWS: Final = {"tally.philox_uniform": philox_uniform, "tally.dropout_mask": dropout_mask}
"""Operators that PyTorch has through this project, faster than from their definitions; a test holds them to those."""
VIEWS: Final = frozenset({"aten.view.default", "aten._unsafe_view.default"})


class TorchEngine:
    """PyTorch in eager mode on one device; implements `graphs.Engine`.

    Raises `UnavailableError` where the device is not there, or a kernel does not run.
    """

    name = "torch"

    def __init__(self, device: str = "cpu") -> None:
        if device.startswith("cuda") and not torch.cuda.is_available():
            raise UnavailableError("there is no CUDA device here")
        self.device = device

    def load(self, tensor: Tensor) -> torch.Tensor:
        """A new tensor on the device of the engine."""
        return from_tensor(tensor).to(self.device)

    def unload(self, array: torch.Tensor, dtype: str) -> Tensor:
        """The canonical bytes of a tensor."""
        assert array.dtype == DTYPES[dtype]
        return to_tensor(array)

    def prepare(self, node: Node, differentiable: bool = False) -> Callable[[Arguments], tuple[Any, ...]]:
        """A function from operands to results; raises `MalformedError` for an operator not on the allow-list."""
        call = _prepared(node, self.device)
        names = [parameter.name for parameter in operator(node.operator).parameters if parameter.is_operand]

        def run(arguments: Arguments) -> tuple[Any, ...]:
            try:
                with torch.inference_mode(not differentiable):
                    return _results(node, call(*(arguments[name] for name in names)))
            except CRASHES as error:
                raise _refusal(node, error) from error

        return run

    def compile(self, graph: Graph, consumed: Collection[Ref] = ()) -> Program:
        """`graph` as prepared calls; the tensors of the inputs `consumed` may be written over while it runs."""
        return Program.of(graph, self.device, consumed)


Run: TypeAlias = Callable[[list[Any]], None]
"""One prepared call: reads operands from their slots, writes results into theirs, and empties those read last."""


@dataclass(frozen=True)
class Program:
    """A graph ready to be run many times on tensors of one device."""

    graph: Graph
    slots: Mapping[Ref, int]
    steps: Sequence[tuple[Run, Node]]

    @classmethod
    def of(cls, graph: Graph, device: str, consumed: Collection[Ref]) -> Program:
        """Prepare every node."""
        slots = {name: index for index, name in enumerate(graph.specs())}
        last, written = last_readers(graph), in_place_nodes(graph, consumed)
        steps = []
        for node in graph.nodes:
            call = _prepared(node, device, node.number in written)
            freed = tuple(slots[ref] for ref in last.get(node.number, ()))
            steps.append((_run(node, call, slots, freed), node))
        return cls(graph, slots, steps)

    @torch.inference_mode()
    def __call__(self, values: Mapping[Ref, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The outputs by name; `values` gives every input and constant.

        Raises `UnavailableError` where a kernel refuses its operands, `MalformedError` where a value is missing.
        """
        held: list[Any] = [None] * (len(self.slots) + 1)  # the last slot stands for an absent operand
        for name in [value.name for value in self.graph.inputs] + [value.name for value in self.graph.constants]:
            if name not in values:
                raise MalformedError(f"{name} is not bound")
            held[self.slots[name]] = values[name]
        at = None
        try:
            for run, at in self.steps:  # noqa: B007
                run(held)
        except CRASHES as error:
            raise _refusal(at, error) from error
        return {output.name: held[self.slots[output.value]] for output in self.graph.outputs}


def _run(node: Node, call: Callable[..., Any], slots: Mapping[Ref, int], freed: tuple[int, ...]) -> Run:
    operands = [_slots(operand, slots) for operand in node.operands.values()]
    results = [None if ref is None else slots[ref] for ref in node.outputs]
    if not _returns_one_tensor(node) or any(isinstance(slot, tuple) for slot in operands):
        return _general_run(node, call, operands, results, freed)
    return _single_run(call, operands, results[0], freed)  # type: ignore[arg-type]


def _returns_one_tensor(node: Node) -> bool:
    if not node.operator.startswith("aten."):
        return False
    return [str(value.type) for value in _overload(node.operator)._schema.returns] == ["Tensor"]


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
        for slot, value in zip(results, _results(node, call(*fetched)), strict=True):
            if slot is not None:
                held[slot] = value
        for slot in freed:
            held[slot] = None

    return run


def _slots(operand: Operand, slots: Mapping[Ref, int]) -> int | tuple[int, ...]:
    if operand is None or isinstance(operand, str):
        return len(slots) if operand is None else slots[operand]
    return tuple(len(slots) if ref is None else slots[ref] for ref in operand)


def _prepared(node: Node, device: str, in_place: bool = False) -> Callable[..., Any]:
    """A call from the operands, in the order of the parameters, to what the kernel returns."""
    described = operator(node.operator)
    if described.dialect != "aten":
        return _drawn(described, node) if node.operator in DRAWS else _defined(described, node)
    name = IN_PLACE[node.operator] if in_place else ZEROS.get(node.operator, node.operator)
    overload = _overload(name)
    call = _bound(overload, described, node, device)
    return _viewing(call, described, node) if node.operator in VIEWS else call


def _drawn(described: Operator, node: Node) -> Callable[..., Any]:
    draw = DRAWS[node.operator]
    constants = {name: _constant(described, name, value) for name, value in node.attributes.items()}
    return lambda seed: draw(seed, **constants)


def _overload(name: str) -> torch._ops.OpOverload:
    """The overload of a name that stands on the allow-list."""
    _, packet, overload = name.split(".")
    return getattr(getattr(torch.ops.aten, packet), overload)  # type: ignore[no-any-return]


def _bound(overload: torch._ops.OpOverload, described: Operator, node: Node, device: str) -> Callable[..., Any]:
    """The kernel with its attributes filled in; an argument that has its default anyway is left out."""
    operands = [parameter.name for parameter in described.parameters if parameter.is_operand]
    constants = {name: _constant(described, name, value) for name, value in node.attributes.items()}
    constants |= _placement(overload, operands, device)
    positional = [argument for argument in overload._schema.arguments if not argument.kwarg_only]
    named = {a.name: constants[a.name] for a in overload._schema.arguments if a.kwarg_only and _is_set(a, constants)}
    while positional and positional[-1].name not in operands and not _is_set(positional[-1], constants):
        positional.pop()
    order = [argument.name for argument in positional]
    template = [constants.get(name, None) for name in order]
    kernel = overload._op
    if not set(operands) <= set(order):
        return _bound_by_name(kernel, operands, dict(zip(order, template, strict=True)) | named)
    if order[: len(operands)] == operands:
        rest = template[len(operands) :]
        if not rest and not named:
            return kernel
        return lambda *given: kernel(*given, *rest, **named)
    places = [order.index(name) for name in operands]

    def call(*given: Any) -> Any:
        arguments = template[:]
        for place, value in zip(places, given, strict=True):
            arguments[place] = value
        return kernel(*arguments, **named)

    return call


def _bound_by_name(
    kernel: Callable[..., Any], operands: Sequence[str], constants: Mapping[str, Any]
) -> Callable[..., Any]:
    """For kernels with operands that can be given by name only."""
    return lambda *given: kernel(**{**constants, **dict(zip(operands, given, strict=True))})


def _is_set(argument: Any, constants: Mapping[str, Any]) -> bool:
    if argument.name not in constants:
        return False
    value = constants[argument.name]
    return (
        not argument.has_default_value()
        or type(value) is not type(argument.default_value)
        or (value != argument.default_value)
    )


def _constant(described: Operator, name: str, value: Any) -> Any:
    kind = next(parameter.kind for parameter in described.parameters if parameter.name == name)
    if value is not None and kind.startswith("dtype"):
        return DTYPES[value]
    return list(value) if isinstance(value, tuple) else value


def _placement(overload: torch._ops.OpOverload, operands: Sequence[str], device: str) -> dict[str, Any]:
    """Where results lie: those made from nothing, and those that are moved, on the device of the engine."""
    arguments = {argument.name: argument for argument in overload._schema.arguments}
    if str(overload) == "aten.clone.default":
        return {"memory_format": torch.contiguous_format}
    if "device" in arguments and (not operands or not arguments["device"].has_default_value()):
        return {"device": torch.device(device)}
    return {}


def _viewing(call: Callable[..., Any], described: Operator, node: Node) -> Callable[..., Any]:
    """A view where strides allow one, else a copy: a slice of a graph may be given other strides."""
    size: Any = node.attributes["size"]

    def view(x: torch.Tensor) -> torch.Tensor:
        try:
            return call(x)  # type: ignore[no-any-return]
        except RuntimeError:
            return x.reshape(size)

    return view


def _defined(described: Operator, node: Node) -> Callable[..., Any]:
    """An operator of another dialect runs from its own definition, on PyTorch's arrays."""
    names = [parameter.name for parameter in described.parameters if parameter.is_operand]

    def run(*given: Any) -> tuple[Any, ...]:
        algebra = Values(library("torch"))
        operands = {name: _value(operand) for name, operand in zip(names, given, strict=True)}
        read = described.read(algebra, operands | dict(node.attributes))
        return tuple(None if value is None else value.array for value in read)

    return run


def _value(operand: Any) -> Any:
    if isinstance(operand, list | tuple):
        return tuple(_value(item) for item in operand)
    return None if operand is None else Value(operand, dtype_name(operand.dtype))


def _results(node: Node, returned: Any) -> tuple[Any, ...]:
    """One entry for each result of the node."""
    values = tuple(returned) if isinstance(returned, tuple | list) else (returned,)
    return tuple(None if spec is None else value for spec, value in zip(node.results, values, strict=True))


def _refusal(node: Node | None, error: BaseException) -> UnavailableError:
    assert node is not None
    reason = (str(error).strip().splitlines() or [""])[0]
    return UnavailableError(f"{node.operator} (node {node.number}) does not run here: {reason[:200]}")
