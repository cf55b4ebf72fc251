"""Converts a program traced by PyTorch to a graph: canonical, functional, only data.

Every parameter of every operator is written out. Nodes that no output needs are dropped; the others are numbered in the
order of execution.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import torch
from torch import fx

from tallystick.errors import MalformedError, UnavailableError
from tallystick.frameworks.torch.capture.arguments import parted
from tallystick.frameworks.torch.capture.calls import bound_arguments, only_moves_bytes, operator_name, refusal, why_not
from tallystick.frameworks.torch.capture.results import checked_results
from tallystick.frameworks.torch.tensors import to_tensor
from tallystick.graphs.graph import Constant, Graph, GraphForm, Input, Node, Output, Ref, result_ref
from tallystick.operators.definition import Operator
from tallystick.operators.registry import OPERATORS
from tallystick.tensors.digest import tensor_digest
from tallystick.tensors.spec import TensorSpec
from tallystick.tensors.tensor import Tensor

if TYPE_CHECKING:
    from tallystick.graphs.modules import ModulePaths

WITHOUT_RESULT: Final = frozenset({"aten._assert_tensor_metadata.default"})

Value: TypeAlias = "Ref | tuple[Ref | None, ...] | None"


@dataclass(frozen=True)
class LoweredTrace:
    """A graph, the bytes of its constants by name, and the modules of its nodes by number."""

    graph: Graph
    constants: Mapping[str, Tensor]
    modules: ModulePaths


def lower(
    traced: fx.Graph,
    inputs: Mapping[str, Input],
    lifted: Mapping[str, torch.Tensor],
    outputs: Sequence[tuple[str, fx.Node]],
    *,
    attributes: Callable[[str], torch.Tensor],
    place: Callable[[fx.Node], str],
    form: GraphForm = GraphForm.LOGICAL,
) -> LoweredTrace:
    """The graph of a traced program.

    Args:
        traced: nodes with their example values in `meta["val"]`.
        inputs: the input of the graph for each placeholder, by its name in `traced`.
        lifted: the constants by the names of their placeholders.
        outputs: the named results.
        attributes: returns a tensor of the traced module by its dotted name.
        place: returns the module that a traced node came from, or nothing.
        form: what the graph is for.

    Raises:
        UnavailableError: something in the program cannot be captured; the line names the operator.
    """
    reading = TraceLowering({name: value.name for name, value in inputs.items()} | dict(lifted), attributes)
    reading.specs |= {value.name: value.spec for value in inputs.values()}
    modules: dict[int, str] = {}
    for node in live_nodes(traced, [node for _, node in outputs]):
        count = len(reading.nodes)
        reading.read(node)
        if len(reading.nodes) > count and place(node):
            modules[count] = place(node)
    return LoweredTrace(_finished(reading, inputs, outputs, form), reading.constants, modules)


def live_nodes(traced: fx.Graph, wanted: Iterable[fx.Node]) -> list[fx.Node]:
    """The nodes that `wanted` depends on, in the order of execution."""
    needed, waiting = set[fx.Node](), list(wanted)
    while waiting:
        node = waiting.pop()
        if node not in needed:
            needed.add(node)
            waiting.extend(node.all_input_nodes)
    return [node for node in traced.nodes if node in needed]


@dataclass
class TraceLowering:
    """The nodes, constants and values read from a traced program so far."""

    sources: Mapping[str, Ref | torch.Tensor]
    attributes: Callable[[str], torch.Tensor]
    operators: Mapping[str, Operator] = field(default_factory=lambda: OPERATORS)
    constants: dict[str, Tensor] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    values: dict[fx.Node, Value] = field(default_factory=dict)
    specs: dict[Ref, TensorSpec] = field(default_factory=dict)

    def read(self, node: fx.Node) -> None:
        """Read one node of the traced program."""
        self.values[node] = _READERS[node.op](self, node)

    def ref(self, node: fx.Node) -> Ref:
        """The reference to the one tensor of a traced node."""
        value = self.values[node]
        assert isinstance(value, str)
        return value


def _finished(
    reading: TraceLowering, inputs: Mapping[str, Input], outputs: Sequence[tuple[str, fx.Node]], form: GraphForm
) -> Graph:
    constants = tuple(
        Constant(name, TensorSpec.of(tensor), tensor_digest(tensor))
        for name, tensor in sorted(reading.constants.items())
    )
    return Graph(
        dialect="aten",
        form=form,
        inputs=tuple(sorted(inputs.values(), key=lambda value: value.name)),
        constants=constants,
        nodes=tuple(reading.nodes),
        outputs=tuple(Output(name, reading.ref(node)) for name, node in sorted(outputs, key=lambda pair: pair[0])),
    )


def _read_placeholder(reading: TraceLowering, node: fx.Node) -> Value:
    source = reading.sources[node.name]
    return source if isinstance(source, str) else _constant(reading, source)


def _read_attribute(reading: TraceLowering, node: fx.Node) -> Value:
    return _constant(reading, reading.attributes(str(node.target)))


def _constant(reading: TraceLowering, value: torch.Tensor) -> Ref:
    name = f"constants.{len(reading.constants):04d}"
    reading.constants[name] = to_tensor(value).copy()
    reading.specs[name] = TensorSpec.of(reading.constants[name])
    return name


def _read_call(reading: TraceLowering, node: fx.Node) -> Value:
    if getattr(node.target, "__name__", "") == "getitem":
        return _picked(reading.values[node.args[0]], node.args[1])  # type: ignore[index]
    if not isinstance(node.target, torch._ops.OpOverload):
        raise UnavailableError(f"{node.target} cannot be captured: it is control flow or no tensor operator")
    if str(node.target) in WITHOUT_RESULT:
        return None
    if only_moves_bytes(node):
        return reading.values[node.args[0]]  # type: ignore[index]
    return _read_operator(reading, node, node.target)


def _picked(value: Value, index: Any) -> Value:
    assert isinstance(value, tuple)
    picked: Ref | None = value[index]
    return picked


def _read_operator(reading: TraceLowering, node: fx.Node, target: torch._ops.OpOverload) -> Value:
    given = bound_arguments(node)
    name = operator_name(target, given)
    operator = reading.operators.get(name)
    if operator is None:
        raise UnavailableError(refusal(name, why_not(target)))
    try:
        operands, attributes = parted(operator, given, reading.ref)
        results = checked_results(node, operator, operands, attributes, reading.specs)
    except (MalformedError, UnavailableError) as error:
        raise UnavailableError(refusal(name, error)) from None
    added = Node(len(reading.nodes), name, operands, attributes, results)
    reading.nodes.append(added)
    reading.specs |= {ref: spec for ref, spec in zip(added.outputs, results, strict=True) if ref and spec}
    return added.outputs if isinstance(node.meta["val"], tuple | list) else result_ref(added.number, 0)


_READERS: Final[Mapping[str, Callable[[TraceLowering, fx.Node], Value]]] = {
    "placeholder": _read_placeholder,
    "get_attr": _read_attribute,
    "call_function": _read_call,
}
