"""One call as a graph of one node."""

from __future__ import annotations

from typing import Any

from tallystick.core.tensors import State, Tensor, TensorSpec
from tallystick.programs.graph import Graph, GraphForm, Input, Node, Output, Role, float_results
from tallystick.programs.operators.balls.bound import ResultBound
from tallystick.programs.operators.definition import operator
from tests.programs.operators.examples import Call, mapped


def as_graph(
    call: Call, bounds: tuple[ResultBound | None, ...], weights: frozenset[str] = frozenset()
) -> tuple[Graph, State]:
    """The graph and its bindings; `bounds` tell what the results are, `weights` names the operands that are weights."""
    bindings: dict[str, Tensor] = {}
    operands: dict[str, Any] = {}
    attributes: dict[str, Any] = {}
    given = mapped(call.arguments, lambda tensor: tensor)
    for parameter in operator(call.operator).parameters:
        value = given[parameter.name]
        if not parameter.is_operand:
            attributes[parameter.name] = value
            continue
        items = {f"{parameter.name}.{i}": each for i, each in enumerate(value)} if isinstance(value, tuple) else {}
        if isinstance(value, Tensor):
            items = {parameter.name: value}
        bindings |= {name: each for name, each in items.items() if each is not None}
        refs = tuple(name if each is not None else None for name, each in items.items())
        operands[parameter.name] = refs if isinstance(value, tuple) else None if value is None else parameter.name
    specs = tuple(None if each is None else TensorSpec(each.dtype, each.value.shape) for each in bounds)
    node = Node(0, call.operator, operands, attributes, specs)
    inputs = tuple(
        Input(name, Role.WEIGHT if name in weights else Role.INPUT, TensorSpec.of(each))
        for name, each in bindings.items()
    )
    outputs = tuple(Output(f"y{i}", ref) for i, (ref, _) in enumerate(float_results(node)))
    return Graph("aten", GraphForm.LOGICAL, inputs, (), (node,), outputs), bindings
