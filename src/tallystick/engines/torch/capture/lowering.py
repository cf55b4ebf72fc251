"""Converts a program traced by PyTorch to a graph: canonical, functional, only data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Final, TypeAlias

import torch
from torch import fx

from tallystick.core.errors import MalformedError, UnavailableError
from tallystick.core.tensor_digests import tensor_digest
from tallystick.core.tensors import Tensor, TensorSpec
from tallystick.engines.torch.tensors import dtype_name, spec_of, to_tensor, whole
from tallystick.programs.files import ModulePaths
from tallystick.programs.graph import (
    Constant,
    Graph,
    GraphForm,
    Input,
    Node,
    Operand,
    Output,
    Ref,
    operand_of,
    result_ref,
)
from tallystick.programs.operators.definition import OPERATORS, Attribute, Operator, Parameter
from tallystick.programs.operators.types import Types

# Reads a traced ATen call: the operator's name in graphs, and its arguments by parameter.
#
# Arguments that only place bytes (device, layout, memory format, pinning) are dropped, and so are operators that do
# nothing else.

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
SCALAR_OVERLOADS: Final = {"Tensor": "Scalar", "default": "Scalar", "self": "ScalarOther", "Tensor_mode": "Scalar_mode"}
"""Overloads that take a Python number in place of the tensor of the traced overload."""
RENAMED: Final = {"tally.grouped_mm.default": "aten._grouped_mm.default"}
USUAL_FORMATS: Final = (None, 0, 1, torch.contiguous_format, torch.preserve_format)
"""Memory formats that are dropped. Schemas state defaults as in `c10::MemoryFormat`: contiguous 0, preserve 1."""
TO_THE_END: Final = 2**63 - 1
RECURRENT: Final = ("aten.gru", "aten.lstm", "aten.mkldnn_rnn", "aten.rnn_")
"""The kernels of recurrent layers and cells; they count as drawing, because of dropout between layers."""
MENDS: Final[Mapping[str, str]] = {
    "aten._scaled_dot_product": "load the model with attn_implementation='eager'",
    "aten.index.Tensor": "select rows with torch.where or a weight of 0 and 1, so that shapes stay the same",
    **dict.fromkeys(RECURRENT, "write the cells with nn.Linear, or use nn.RNNCell"),
}
"""What the author of a program can do about an operator that cannot be captured, by the beginning of its name."""


def bound_arguments(node: fx.Node) -> dict[str, Any]:
    """The arguments of an ATen call by parameter, defaults included.

    A usual memory format is dropped; any other raises `UnavailableError`, and so does a generator.
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
    if kept.get("end") == TO_THE_END:  # no end, or the size of the axis if it is required (`slice_backward`)
        kept["end"] = kept["input_sizes"][kept["dim"]] if "input_sizes" in kept else None
    return kept


def only_moves_bytes(node: fx.Node) -> bool:
    """Whether the result has the values and strides of the operand, so that no later kernel can differ."""
    if str(node.target) == DROPOUT:
        given = bound_arguments(node)
        return not given["train"] or given["p"] == 0
    if str(node.target) != CLONE:
        return str(node.target) in IDENTITIES
    source = node.args[0].meta["val"]  # type: ignore[union-attr]
    return bool(source.stride() == node.meta["val"].stride())


def operator_name(target: torch._ops.OpOverload, given: Mapping[str, Any]) -> str:
    """The operator's name in graphs; if a Python number was given for a tensor, the overload for numbers."""
    name = RENAMED.get(str(target), str(target))
    if name.startswith("tally."):
        return name.removesuffix(".default")
    tensors = (a.name for a in target._schema.arguments if str(a.type) == "Tensor")
    if not any(isinstance(given.get(parameter), bool | int | float) for parameter in tensors):
        return name
    stem, _, overload = name.rpartition(".")
    return f"{stem}.{SCALAR_OVERLOADS.get(overload, overload)}"


def _refusal(name: str, target: torch._ops.OpOverload, reason: object = None) -> UnavailableError:
    """One line: the operator, why it cannot be captured, and what mends it where that is known."""
    is_recurrent = str(target).startswith(RECURRENT)
    if reason is None and torch.Tag.nondeterministic_seeded in target.tags and not is_recurrent:
        reason = "it draws random numbers, which have to be explicit: turn that off, or give a recorder `seed=1`"
    reason = reason or "it is not on the allow-list of operators (docs/operators.md)"
    mends = next((f"; {line}" for start, line in MENDS.items() if name.startswith(start)), "")
    return UnavailableError(f"{name} cannot be captured: {reason}{mends}")


# Splits the arguments of a traced call into operands and attributes of a node.


def _parted(
    operator: Operator, given: Mapping[str, Any], ref_of: Callable[[fx.Node], Ref]
) -> tuple[dict[str, Operand], dict[str, Attribute]]:
    """Operands and attributes; every parameter of `operator` is in one of them.

    Raises `UnavailableError` for an argument that is not a parameter, and for one that depends on data;
    `MalformedError` for an attribute of the wrong kind.
    """
    unknown = given.keys() - {parameter.name for parameter in operator.parameters}
    if unknown:
        raise UnavailableError(f"{min(unknown)} is no parameter of it")
    operands: dict[str, Operand] = {}
    attributes: dict[str, Attribute] = {}
    for parameter in operator.parameters:
        name, value = parameter.name, given.get(parameter.name)
        if not parameter.is_operand:
            attributes[name] = _attribute(parameter, value)
        elif isinstance(value, list | tuple):
            operands[name] = tuple(None if item is None else ref_of(item) for item in value)
        elif value is None or isinstance(value, fx.Node):
            operands[name] = None if value is None else ref_of(value)
        else:
            raise UnavailableError(f"{name} is {value!r:.40}, no tensor")
    return operands, attributes


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


# Checks dtypes and shapes of a traced call's results: the operator's definition must agree with PyTorch.

Results = tuple[TensorSpec | None, ...]


def _checked_results(
    node: fx.Node,
    operator: Operator,
    operands: Mapping[str, Operand],
    attributes: Mapping[str, Attribute],
    specs: Mapping[Ref, TensorSpec],
) -> Results:
    """The specs of the results; `specs` are those of the operands.

    Raises `UnavailableError` if definition and PyTorch disagree, and what the definition raises for the arguments.
    """
    given = {name: operand_of(operand, specs) for name, operand in operands.items()}
    derived = operator.read(Types(), {**given, **attributes})
    results = _specs_of(node.meta["val"])
    if derived != results:  # PyTorch's shape functions are wrong for some mixed dtypes (batch norm): ask the kernel

        def zeros(operand: fx.Node) -> torch.Tensor:
            value = operand.meta["val"]
            return torch.zeros(value.shape, dtype=value.dtype)

        with torch.no_grad():
            args, kwargs = fx.map_arg(node.args, zeros), fx.map_arg(node.kwargs, zeros)
            results = _specs_of(node.target(*args, **kwargs))  # type: ignore[operator]
    if derived != results:
        listed = [", ".join(map(str, each)) for each in (results, derived)]
        raise UnavailableError(f"its results are {listed[0]}, and {listed[1]} by its definition")
    return results


def _specs_of(value: Any) -> Results:
    values = tuple(value) if isinstance(value, tuple | list) else (value,)
    if not all(item is None or isinstance(item, torch.Tensor) for item in values):
        raise UnavailableError("its result is no tensor")
    return tuple(None if item is None else spec_of(item) for item in values)


# Every parameter of every operator is written out. Nodes that no output needs are dropped; the others are numbered in
# the order of execution.

WITHOUT_RESULT: Final = frozenset({"aten._assert_tensor_metadata.default"})

Value: TypeAlias = "Ref | tuple[Ref | None, ...] | None"


Lowered: TypeAlias = "tuple[Graph, Mapping[str, Tensor], ModulePaths]"
"""A graph, the bytes of its constants by name, and the modules of its nodes by number."""


def lower(
    program: fx.GraphModule,
    inputs: Mapping[str, Input],
    lifted: Mapping[str, torch.Tensor],
    outputs: Sequence[tuple[str, fx.Node]],
    place: Callable[[fx.Node], str],
    form: GraphForm = GraphForm.LOGICAL,
) -> Lowered:
    """The graph of a traced program.

    Args:
        program: its nodes have their example values in `meta["val"]`.
        inputs: the input of the graph for each placeholder, by its name in `program`.
        lifted: the constants by the names of their placeholders.
        outputs: the named results.
        place: returns the module that a traced node came from, or nothing.
        form: what the graph is for.

    Raises:
        UnavailableError: something in the program cannot be captured; the line names the operator.
    """
    reading = _Reading(program, inputs, lifted, {value.name: value.spec for value in inputs.values()})
    modules: dict[int, str] = {}
    for node in live_nodes(program.graph, [node for _, node in outputs]):
        count = len(reading.nodes)
        reading.values[node] = reading.value_of(node)
        if len(reading.nodes) > count and place(node):
            modules[count] = place(node)
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
    return graph, reading.constants, modules


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
class _Reading:
    """The nodes, constants and values read from a traced program so far."""

    program: fx.GraphModule
    inputs: Mapping[str, Input]
    lifted: Mapping[str, torch.Tensor]
    specs: dict[Ref, TensorSpec]
    constants: dict[str, Tensor] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    values: dict[fx.Node, Value] = field(default_factory=dict)

    def value_of(self, node: fx.Node) -> Value:
        """Read one node; those that it depends on have been read."""
        if node.op == "placeholder":
            return self.inputs[node.name].name if node.name in self.inputs else self._constant(self.lifted[node.name])
        if node.op == "get_attr":
            attribute = attrgetter(str(node.target))(self.program)
            if not isinstance(attribute, torch.Tensor):
                raise UnavailableError(f"{node.target} cannot be captured: it is control flow and no tensor")
            return self._constant(attribute)
        if getattr(node.target, "__name__", "") == "getitem":
            results, index = self.values[node.args[0]], node.args[1]  # type: ignore[index]
            assert isinstance(results, tuple)
            return results[index]  # type: ignore[index]
        if not isinstance(node.target, torch._ops.OpOverload):
            raise UnavailableError(f"{node.target} cannot be captured: it is control flow or no tensor operator")
        if str(node.target) in WITHOUT_RESULT:
            return None
        if only_moves_bytes(node):
            return self.values[node.args[0]]  # type: ignore[index]
        return self._operator(node, node.target)

    def ref(self, node: fx.Node) -> Ref:
        """The reference to the one tensor of a traced node."""
        value = self.values[node]
        assert isinstance(value, str)
        return value

    def _constant(self, value: torch.Tensor) -> Ref:
        name = f"constants.{len(self.constants):04d}"
        self.constants[name] = to_tensor(value).copy()
        self.specs[name] = TensorSpec.of(self.constants[name])
        return name

    def _operator(self, node: fx.Node, target: torch._ops.OpOverload) -> Value:
        given = bound_arguments(node)
        name = operator_name(target, given)
        operator = OPERATORS.get(name)
        if operator is None:
            raise _refusal(name, target)
        try:
            operands, attributes = _parted(operator, given, self.ref)
            results = _checked_results(node, operator, operands, attributes, self.specs)
        except (MalformedError, UnavailableError) as error:
            raise _refusal(name, target, error) from None
        added = Node(len(self.nodes), name, operands, attributes, results)
        self.nodes.append(added)
        self.specs |= {ref: spec for ref, spec in zip(added.outputs, results, strict=True) if ref and spec}
        return added.outputs if isinstance(node.meta["val"], tuple | list) else result_ref(added.number, 0)
