"""The values around one node: its operands, looked up in a table, and the results that rounding can change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tallystick.graphs.graph import Node, Operand, Ref
from tallystick.tensors.spec import TensorSpec


def operands_of(node: Node, values: Mapping[Ref, Any]) -> dict[str, Any]:
    """The operands of a node by parameter name: a value, a tuple of values and `None`s, or `None`."""
    return {name: fetch(operand, values) for name, operand in node.operands.items()}


def fetch(operand: Operand, values: Mapping[Ref, Any]) -> Any:
    """The value, or tuple of values, that an operand refers to."""
    if operand is None or isinstance(operand, str):
        return None if operand is None else values[operand]
    return tuple(None if ref is None else values[ref] for ref in operand)


def results_of(node: Node) -> tuple[tuple[Ref, TensorSpec], ...]:
    """The results that a node has, with their specs."""
    pairs = zip(node.outputs, node.results, strict=True)
    return tuple((ref, spec) for ref, spec in pairs if ref is not None and spec is not None)


def float_results(node: Node) -> tuple[tuple[Ref, TensorSpec], ...]:
    """The float results, with their specs: only these can differ by rounding."""
    return tuple((ref, spec) for ref, spec in results_of(node) if spec.is_float)
