"""A program traced by PyTorch becomes a graph of this project: canonical, functional, data only.

Every parameter of every operator is written out. What only says where or how bytes lie (device, layout, memory
format, pinning) is dropped, and with it the operators that do nothing else; nodes that no output needs are left out,
and the rest is numbered in the order of execution.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import torch
from torch import fx

from tallystick.errors import MalformedError, UnavailableError
from tallystick.frameworks.torch.dtypes import dtype_name, spec_of, whole
from tallystick.frameworks.torch.state import to_tensor
from tallystick.graphs.graph import Constant, Form, Graph, Input, Node, Operand, Output, Ref, result_ref
from tallystick.operators.operator import Attribute, Operator, Parameter
from tallystick.operators.registry import OPERATORS
from tallystick.operators.types import Types
from tallystick.tensors import Tensor, TensorSpec, tensor_digest

PLACEMENT: Final = frozenset({"device", "layout", "pin_memory", "memory_format", "non_blocking"})
IDENTITIES: Final = frozenset(
    {
        "aten.alias.default",
        "aten.detach.default",
        "aten.lift.default",
        "aten.lift_fresh.default",
        "aten.lift_fresh_copy.default",
    }
)
DROPOUT: Final = "aten.dropout.default"
CLONE: Final = "aten.clone.default"
WITHOUT_RESULT: Final = frozenset({"aten._assert_tensor_metadata.default"})
SCALAR_OVERLOADS: Final = {"Tensor": "Scalar", "self": "ScalarOther", "Tensor_mode": "Scalar_mode"}
"""Overloads that take a Python number where the traced one took a tensor."""
USUAL_FORMATS: Final = (None, 0, 1, torch.contiguous_format, torch.preserve_format)
"""A schema's defaults are numbers, as PyTorch has them in `c10::MemoryFormat`: contiguous 0, preserve 1."""
TO_THE_END: Final = 2**63 - 1

Value: TypeAlias = "Ref | tuple[Ref | None, ...] | None"


@dataclass(frozen=True)
class Lowered:
    """A graph, and the bytes of its constants by name."""

    graph: Graph
    constants: Mapping[str, Tensor]


@dataclass
class Lowering:
    """What has been read of a traced program so far."""

    sources: Mapping[str, Ref | torch.Tensor]
    attributes: Callable[[str], torch.Tensor]
    operators: Mapping[str, Operator] = field(default_factory=lambda: OPERATORS)
    constants: dict[str, Tensor] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    values: dict[fx.Node, Value] = field(default_factory=dict)
    specs: dict[Ref, TensorSpec] = field(default_factory=dict)

    def read(self, node: fx.Node) -> None:
        """Take up one node of the traced program."""
        self.values[node] = _READERS[node.op](self, node)

    def ref(self, node: fx.Node) -> Ref:
        """The reference to a node that stands for one tensor."""
        value = self.values[node]
        assert isinstance(value, str)
        return value


def lower(
    traced: fx.Graph,
    inputs: Mapping[str, Input],
    lifted: Mapping[str, torch.Tensor],
    outputs: Sequence[tuple[str, fx.Node]],
    *,
    attributes: Callable[[str], torch.Tensor],
    form: Form = Form.LOGICAL,
) -> Lowered:
    """The graph of a traced program.

    Args:
        traced: nodes with their example values in `meta["val"]`.
        inputs: what each placeholder stands for, by its name in `traced`.
        lifted: the placeholders that stand for constants.
        outputs: the named results.
        attributes: finds a tensor of the traced module by its dotted name.
        form: what the graph is for.

    Raises:
        UnavailableError: something in the program cannot be captured; the line names the operator.
    """
    reading = Lowering({name: value.name for name, value in inputs.items()} | dict(lifted), attributes)
    reading.specs |= {value.name: value.spec for value in inputs.values()}
    for node in live_nodes(traced, [node for _, node in outputs]):
        reading.read(node)
    return _finished(reading, inputs, outputs, form)


def live_nodes(traced: fx.Graph, wanted: Iterable[fx.Node]) -> list[fx.Node]:
    """The nodes that the wanted ones need, in the order of execution."""
    needed, waiting = set[fx.Node](), list(wanted)
    while waiting:
        node = waiting.pop()
        if node not in needed:
            needed.add(node)
            waiting.extend(node.all_input_nodes)
    return [node for node in traced.nodes if node in needed]


def _finished(
    reading: Lowering, inputs: Mapping[str, Input], outputs: Sequence[tuple[str, fx.Node]], form: Form
) -> Lowered:
    constants = tuple(
        Constant(name, TensorSpec.of(tensor), tensor_digest(tensor))
        for name, tensor in sorted(reading.constants.items())
    )
    graph = Graph(
        dialect="aten",
        form=form,
        inputs=tuple(sorted(inputs.values(), key=lambda value: value.name)),
        constants=constants,
        nodes=tuple(reading.nodes),
        outputs=tuple(Output(name, reading.ref(node)) for name, node in sorted(outputs, key=lambda pair: pair[0])),
    )
    return Lowered(graph, reading.constants)


def _read_placeholder(reading: Lowering, node: fx.Node) -> Value:
    source = reading.sources[node.name]
    return source if isinstance(source, str) else _constant(reading, source)


def _read_attribute(reading: Lowering, node: fx.Node) -> Value:
    return _constant(reading, reading.attributes(str(node.target)))


def _constant(reading: Lowering, value: torch.Tensor) -> Ref:
    name = f"constants.{len(reading.constants):04d}"
    reading.constants[name] = to_tensor(value).copy()
    reading.specs[name] = TensorSpec.of(reading.constants[name])
    return name


def _read_call(reading: Lowering, node: fx.Node) -> Value:
    if getattr(node.target, "__name__", "") == "getitem":
        return _picked(reading.values[node.args[0]], node.args[1])  # type: ignore[index]
    if not isinstance(node.target, torch._ops.OpOverload):
        raise UnavailableError(f"{node.target} cannot be captured: it is control flow or no tensor operator")
    if str(node.target) in WITHOUT_RESULT:
        return None
    if _only_moves_bytes(node):
        return reading.values[node.args[0]]  # type: ignore[index]
    return _read_operator(reading, node, bound_arguments(node))


def _picked(value: Value, index: Any) -> Value:
    assert isinstance(value, tuple)
    picked: Ref | None = value[index]
    return picked


def _only_moves_bytes(node: fx.Node) -> bool:
    """Whether the result has the values of the operand, and strides that any later kernel would see likewise."""
    if str(node.target) == DROPOUT:
        given = bound_arguments(node)
        return not given["train"] or given["p"] == 0
    if str(node.target) != CLONE:
        return str(node.target) in IDENTITIES
    source = node.args[0].meta["val"]  # type: ignore[union-attr]
    return bool(source.stride() == node.meta["val"].stride())


def _read_operator(reading: Lowering, node: fx.Node, given: Mapping[str, Any]) -> Value:
    name = _name_of(node.target, given)  # type: ignore[arg-type]
    operator = reading.operators.get(name)
    if operator is None:
        raise UnavailableError(f"{name} cannot be captured: {_why_not(node.target)}")  # type: ignore[arg-type]
    try:
        operands, attributes = _arguments(reading, operator, given)
        results = _checked_results(reading, operator, operands, attributes, node)
    except (MalformedError, UnavailableError) as error:
        raise UnavailableError(f"{name} cannot be captured: {error}") from None
    number = len(reading.nodes)
    added = Node(number, name, operands, attributes, results)
    reading.nodes.append(added)
    reading.specs |= {ref: spec for ref, spec in zip(added.outputs, results, strict=True) if ref and spec}
    return added.outputs if isinstance(node.meta["val"], tuple | list) else result_ref(number, 0)


def bound_arguments(node: fx.Node) -> dict[str, Any]:
    """The arguments of an ATen call by parameter, defaults included.

    A memory format is dropped where it is the usual one; any other raises `UnavailableError`, as a generator does.
    """
    schema = node.target._schema  # type: ignore[union-attr]
    given = {argument.name: argument.default_value for argument in schema.arguments if argument.has_default_value()}
    given |= dict(zip((argument.name for argument in schema.arguments), node.args, strict=False))
    given |= node.kwargs
    if given.get("generator") is not None:
        raise UnavailableError(f"{node.target} draws from a generator of its own")
    if given.get("memory_format") not in USUAL_FORMATS:
        raise UnavailableError(f"{node.target} asks for {given['memory_format']}, which graphs do not have")
    kept = {name: value for name, value in given.items() if name not in PLACEMENT | {"generator"}}
    return kept | {"end": _last(kept)} if kept.get("end") == TO_THE_END else kept


def _last(given: Mapping[str, Any]) -> int | None:
    """How graphs write an end that is none: absent, or the side where it may not be absent (`slice_backward`)."""
    return given["input_sizes"][given["dim"]] if "input_sizes" in given else None


def _why_not(target: torch._ops.OpOverload) -> str:
    if torch.Tag.nondeterministic_seeded in target.tags:
        return "it draws random numbers, which have to be explicit (dropout: turn it off, or give it a seed)"
    return "it is not on the allow-list of operators"


def _name_of(target: torch._ops.OpOverload, given: Mapping[str, Any]) -> str:
    """The operator's name here; the overload for a Python number where the traced one's schema has a tensor."""
    name = str(target)
    if target.namespace == "tally":
        return name.removesuffix(".default")
    tensors = (a.name for a in target._schema.arguments if str(a.type) == "Tensor")
    if not any(isinstance(given.get(parameter), bool | int | float) for parameter in tensors):
        return name
    stem, _, overload = name.rpartition(".")
    return f"{stem}.{SCALAR_OVERLOADS.get(overload, overload)}"


def _arguments(
    reading: Lowering, operator: Operator, given: Mapping[str, Any]
) -> tuple[dict[str, Operand], dict[str, Attribute]]:
    unknown = given.keys() - {parameter.name for parameter in operator.parameters}
    if unknown:
        raise UnavailableError(f"{min(unknown)} is no parameter of it")
    operands: dict[str, Operand] = {}
    attributes: dict[str, Attribute] = {}
    for parameter in operator.parameters:
        value = given.get(parameter.name)
        if parameter.is_operand:
            operands[parameter.name] = _operand(reading, parameter, value)
        else:
            attributes[parameter.name] = _attribute(parameter, value)
    return operands, attributes


def _operand(reading: Lowering, parameter: Parameter, value: Any) -> Operand:
    if isinstance(value, fx.Node):
        return reading.ref(value)
    if isinstance(value, list | tuple):
        return tuple(None if item is None else reading.ref(item) for item in value)
    if value is not None:
        raise UnavailableError(f"{parameter.name} is {value!r:.40}, no tensor")
    return None


def _attribute(parameter: Parameter, value: Any) -> Attribute:
    kind = parameter.kind.rstrip("?")
    if isinstance(value, fx.Node):
        raise UnavailableError(f"{parameter.name} depends on data")
    if value is not None and kind.endswith("[]"):
        items = value if isinstance(value, list | tuple) else [value]
        attribute: Attribute = tuple(_plain(item, kind[:-2]) for item in items)
    else:
        attribute = None if value is None else _plain(value, kind)
    parameter.check(attribute)
    return attribute


def _plain(value: Any, kind: str) -> Any:
    if isinstance(value, torch.dtype):
        return dtype_name(value)
    if isinstance(value, fx.Node):
        raise UnavailableError("a size depends on data")
    if kind in {"int", "float"} and isinstance(value, bool | int | float | torch.SymInt):
        return int(whole(value)) if kind == "int" else float(value)  # type: ignore[arg-type]
    return value


def _checked_results(
    reading: Lowering,
    operator: Operator,
    operands: Mapping[str, Operand],
    attributes: Mapping[str, Attribute],
    node: fx.Node,
) -> tuple[TensorSpec | None, ...]:
    """What the operator's own definition says of dtypes and shapes has to be what PyTorch says."""
    given = {name: _specs(reading, operand) for name, operand in operands.items()}
    derived = operator.read(Types(), {**given, **attributes})
    results = _specs_of(node.meta["val"])
    if derived != results:
        results = _specs_of(_of_zeros(node))
    if derived != results:
        raise UnavailableError(f"its results are {_listed(results)}, and {_listed(derived)} by its definition")
    return results


def _of_zeros(node: fx.Node) -> Any:
    """What the kernel itself returns: shape functions of PyTorch are wrong for some mixed dtypes (batch norm)."""

    def zeros(operand: fx.Node) -> torch.Tensor:
        value = operand.meta["val"]
        return torch.zeros(value.shape, dtype=value.dtype)

    with torch.no_grad():
        return node.target(*fx.map_arg(node.args, zeros), **fx.map_arg(node.kwargs, zeros))  # type: ignore[operator]


def _specs_of(value: Any) -> tuple[TensorSpec | None, ...]:
    values = tuple(value) if isinstance(value, tuple | list) else (value,)
    if not all(item is None or isinstance(item, torch.Tensor) for item in values):
        raise UnavailableError("its result is no tensor")
    return tuple(None if item is None else spec_of(item) for item in values)


def _specs(reading: Lowering, operand: Operand) -> Any:
    if operand is None or isinstance(operand, str):
        return None if operand is None else reading.specs[operand]
    return tuple(None if ref is None else reading.specs[ref] for ref in operand)


def _listed(specs: Iterable[TensorSpec | None]) -> str:
    return ", ".join(map(str, specs))


_READERS: Final[Mapping[str, Callable[[Lowering, fx.Node], Value]]] = {
    "placeholder": _read_placeholder,
    "get_attr": _read_attribute,
    "call_function": _read_call,
}
