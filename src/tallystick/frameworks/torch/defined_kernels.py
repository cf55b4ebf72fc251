"""An operator that PyTorch has no kernel for, computed from its definition with PyTorch's tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tallystick.frameworks.torch.arrays import TORCH
from tallystick.frameworks.torch.dtypes import dtype_name
from tallystick.graphs.graph import Node
from tallystick.operators.definition import Operator
from tallystick.operators.values import Value, Values


def defined(described: Operator, node: Node) -> Callable[..., Any]:
    """An operator of another dialect runs from its own definition, on PyTorch's arrays."""
    names = [parameter.name for parameter in described.parameters if parameter.is_operand]

    def run(*given: Any) -> tuple[Any, ...]:
        algebra = Values(TORCH)
        operands = {name: _value(operand) for name, operand in zip(names, given, strict=True)}
        read = described.read(algebra, operands | dict(node.attributes))
        return tuple(None if value is None else value.array for value in read)

    return run


def _value(operand: Any) -> Any:
    if isinstance(operand, list | tuple):
        return tuple(_value(item) for item in operand)
    return None if operand is None else Value(operand, dtype_name(operand.dtype))
