"""Checks dtypes and shapes of a traced call's results: the operator's definition must agree with PyTorch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import fx

from tallystick.errors import UnavailableError
from tallystick.frameworks.torch.dtypes import spec_of
from tallystick.graphs.graph import Operand, Ref
from tallystick.operators.definition import Attribute, Operator
from tallystick.operators.types import Types
from tallystick.tensors.spec import TensorSpec

Results = tuple[TensorSpec | None, ...]


def checked_results(
    node: fx.Node,
    operator: Operator,
    operands: Mapping[str, Operand],
    attributes: Mapping[str, Attribute],
    specs: Mapping[Ref, TensorSpec],
) -> Results:
    """The specs of the results; `specs` are those of the operands.

    Raises `UnavailableError` if definition and PyTorch disagree, and what the definition raises for the arguments.
    """
    given = {name: _specs(specs, operand) for name, operand in operands.items()}
    derived = operator.read(Types(), {**given, **attributes})
    results = _specs_of(node.meta["val"])
    if derived != results:
        results = _specs_of(_of_zeros(node))
    if derived != results:
        raise UnavailableError(f"its results are {_listed(results)}, and {_listed(derived)} by its definition")
    return results


def _of_zeros(node: fx.Node) -> Any:
    """The result of the kernel itself: PyTorch's shape functions are wrong for some mixed dtypes (batch norm)."""

    def zeros(operand: fx.Node) -> torch.Tensor:
        value = operand.meta["val"]
        return torch.zeros(value.shape, dtype=value.dtype)

    with torch.no_grad():
        return node.target(*fx.map_arg(node.args, zeros), **fx.map_arg(node.kwargs, zeros))  # type: ignore[operator]


def _specs_of(value: Any) -> Results:
    values = tuple(value) if isinstance(value, tuple | list) else (value,)
    if not all(item is None or isinstance(item, torch.Tensor) for item in values):
        raise UnavailableError("its result is no tensor")
    return tuple(None if item is None else spec_of(item) for item in values)


def _specs(specs: Mapping[Ref, TensorSpec], operand: Operand) -> Any:
    if operand is None or isinstance(operand, str):
        return None if operand is None else specs[operand]
    return tuple(None if ref is None else specs[ref] for ref in operand)


def _listed(specs: Iterable[TensorSpec | None]) -> str:
    return ", ".join(map(str, specs))
