"""Turns a node into a call of PyTorch's kernel for its operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch

from tallystick.errors import UnavailableError
from tallystick.frameworks.torch.dtypes import DTYPES
from tallystick.frameworks.torch.fused_adam import fused_adam
from tallystick.frameworks.torch.generator_operators import drawn_by_element, drawn_by_one_word, moved
from tallystick.frameworks.torch.philox_operators import drawn_mask, drawn_uniform
from tallystick.frameworks.torch.reuse import IN_PLACE
from tallystick.graphs.graph import Node
from tallystick.operators.definition import Operator
from tallystick.operators.registry import operator

CRASHES: Final = (ArithmeticError, AttributeError, LookupError, MemoryError, RuntimeError, TypeError, ValueError)
"""The errors that a kernel raises for unsupported operands."""
ZEROS: Final = {
    "aten.empty.memory_format": "aten.zeros.default",
    "aten.empty_like.default": "aten.zeros_like.default",
    "aten.new_empty.default": "aten.new_zeros.default",
}
"""Uninitialised memory is zero, because the definitions of graphs have no undefined values."""
STRIDED: Final = "aten.new_empty_strided.default"
ADDING: Final = frozenset({"aten.index_put.default", "aten._unsafe_index_put.default"})
ADDED: Final[Mapping[str, Callable[..., Any]]] = {
    "tally.philox_uniform": drawn_uniform,
    "tally.dropout_mask": drawn_mask,
    "tally.mt19937_move": moved,
    "tally.mt19937_mask": drawn_by_element,
    "tally.mcg31_mask": drawn_by_one_word,
    "tally.fused_adam": fused_adam,
}
"""Operators that this project adds to PyTorch: faster than their definitions, or with a kernel's own roundings."""
VIEWS: Final = frozenset({"aten.view.default", "aten._unsafe_view.default"})


def prepared(node: Node, device: str, in_place: bool = False) -> Callable[..., Any]:
    """A function from the operands, in the order of the parameters, to the kernel's return value."""
    described = operator(node.operator)
    if described.dialect != "aten":
        if node.operator in ADDED:
            return _added(described, node)
        from tallystick.frameworks.torch.defined_kernels import defined  # loads the readings of all primitives

        return defined(described, node)
    name = IN_PLACE[node.operator] if in_place else ZEROS.get(node.operator, node.operator)
    call = _bound(overload_of(name), described, node, device)
    if node.operator == STRIDED:
        return lambda x: call(x).zero_()
    if node.operator in ADDING and node.attributes["accumulate"]:
        return _in_order(call)
    return _viewing(call, node) if node.operator in VIEWS else call


def _in_order(call: Callable[..., Any]) -> Callable[..., Any]:
    """A kernel that adds in the order of its indices: by itself it adds in any, where it has several threads."""

    def ordered(*operands: Any) -> Any:
        before = torch.are_deterministic_algorithms_enabled()
        warns = torch.is_deterministic_algorithms_warn_only_enabled()
        torch.use_deterministic_algorithms(True)
        try:
            return call(*operands)
        finally:
            torch.use_deterministic_algorithms(before, warn_only=warns)

    return ordered


def overload_of(name: str) -> torch._ops.OpOverload:
    """The ATen overload of an allowed operator name."""
    _, packet, overload = name.split(".")
    return getattr(getattr(torch.ops.aten, packet), overload)  # type: ignore[no-any-return]


def results_of(node: Node, returned: Any) -> tuple[Any, ...]:
    """One entry for each result of the node."""
    values = tuple(returned) if isinstance(returned, tuple | list) else (returned,)
    return tuple(None if spec is None else value for spec, value in zip(node.results, values, strict=True))


def refusal(node: Node | None, error: BaseException) -> UnavailableError:
    """The error that names the node whose kernel raised `error`."""
    assert node is not None
    reason = (str(error).strip().splitlines() or [""])[0]
    return UnavailableError(f"{node.operator} (node {node.number}) does not run here: {reason[:200]}")


def _added(described: Operator, node: Node) -> Callable[..., Any]:
    kernel = ADDED[node.operator]
    constants = {name: _constant(described, name, value) for name, value in node.attributes.items()}
    return lambda *operands: kernel(*operands, **constants)


def _bound(overload: torch._ops.OpOverload, described: Operator, node: Node, device: str) -> Callable[..., Any]:
    """The kernel with its attributes filled in; arguments that equal their default are left out."""
    operands = [parameter.name for parameter in described.parameters if parameter.is_operand]
    constants = {name: _constant(described, name, value) for name, value in node.attributes.items()}
    constants |= _placement(overload, operands, device)
    arguments = overload._schema.arguments
    named = {a.name: constants[a.name] for a in arguments if a.kwarg_only and _is_set(a, constants)}
    positional = [argument for argument in arguments if not argument.kwarg_only]
    while positional and positional[-1].name not in operands and not _is_set(positional[-1], constants):
        positional.pop()
    order = {argument.name: constants.get(argument.name) for argument in positional}
    return _filled(overload._op, operands, order, named)


def _filled(
    kernel: Callable[..., Any], operands: Sequence[str], order: Mapping[str, Any], named: Mapping[str, Any]
) -> Callable[..., Any]:
    """A call with the operands alone: `order` has the positional arguments, `named` those given by name only."""
    if not set(operands) <= order.keys():
        return lambda *given: kernel(**{**order, **named, **dict(zip(operands, given, strict=True))})
    if list(order)[: len(operands)] != operands:
        return _scattered(kernel, [list(order).index(name) for name in operands], list(order.values()), named)
    rest = list(order.values())[len(operands) :]
    return (lambda *given: kernel(*given, *rest, **named)) if rest or named else kernel


def _scattered(
    kernel: Callable[..., Any], places: Sequence[int], template: Sequence[Any], named: Mapping[str, Any]
) -> Callable[..., Any]:
    """A call for a kernel whose operands come between attributes: `places` are their positions in `template`."""

    def call(*given: Any) -> Any:
        arguments = list(template)
        for place, value in zip(places, given, strict=True):
            arguments[place] = value
        return kernel(*arguments, **named)

    return call


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
    """Arguments of memory placement: new and moved tensors go to the engine's device; clones are contiguous."""
    arguments = {argument.name: argument for argument in overload._schema.arguments}
    if str(overload) == "aten.clone.default":
        return {"memory_format": torch.contiguous_format}
    if "device" in arguments and (not operands or not arguments["device"].has_default_value()):
        return {"device": torch.device(device)}
    return {}


def _viewing(call: Callable[..., Any], node: Node) -> Callable[..., Any]:
    """A view if strides allow one, else a copy: inputs of a slice of a graph may have other strides."""
    size: Any = node.attributes["size"]

    def view(x: torch.Tensor) -> torch.Tensor:
        try:
            return call(x)  # type: ignore[no-any-return]
        except RuntimeError:
            return x.reshape(size)

    return view
