"""Splits the arguments of a traced call into operands and attributes of a node."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from torch import fx

from tallystick.errors import UnavailableError
from tallystick.frameworks.torch.dtypes import dtype_name, whole
from tallystick.graphs.graph import Operand, Ref
from tallystick.operators.definition import Attribute, Operator, Parameter

RefOf: TypeAlias = Callable[[fx.Node], Ref]


def parted(
    operator: Operator, given: Mapping[str, Any], ref_of: RefOf
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
        value = given.get(parameter.name)
        if parameter.is_operand:
            operands[parameter.name] = _operand(parameter, value, ref_of)
        else:
            attributes[parameter.name] = _attribute(parameter, value)
    return operands, attributes


def _operand(parameter: Parameter, value: Any, ref_of: RefOf) -> Operand:
    if isinstance(value, fx.Node):
        return ref_of(value)
    if isinstance(value, list | tuple):
        return tuple(None if item is None else ref_of(item) for item in value)
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
