"""Example calls of every operator: what the tests of all readings and engines run.

`EXAMPLES` gives each operator by name at least one call with every parameter of its schema. A tensor operand is a NumPy
array, or `Bf16(array)` for BF16; lists of tensors are tuples; attributes are Python values, lists of them are tuples,
dtypes are safetensors names. Calls are of small shapes and of values that the operator accepts: `call` takes the
parameters that are given, and the defaults of the operator's schema for the others.

`MALFORMED` gives each operator at least one call that has to be refused with `MalformedError`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tallystick.core.tensors import Tensor, TensorSpec, round_to_bfloat16
from tallystick.programs.operators.definition import REQUIRED, Parameter, operator


@dataclass(frozen=True, eq=False)
class Bf16:
    """The values of a BF16 operand; they are rounded when used."""

    array: npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Call:
    """One call of an operator: operands as arrays, attributes as Python values, by parameter."""

    operator: str
    arguments: Mapping[str, Any]

    def __str__(self) -> str:
        shown = ", ".join(f"{name}={_shown(value)}" for name, value in self.arguments.items())
        return f"{self.operator}({shown})"


def call(name: str, **given: Any) -> Call:
    """A call with the defaults of the schema for what is not given."""
    parameters = operator(name).parameters
    assert not given.keys() - {each.name for each in parameters}, f"{name} has no {given.keys()}"
    return Call(name, {each.name: given[each.name] if each.name in given else default(each) for each in parameters})


def default(parameter: Parameter) -> Any:
    """The default of the schema, and `None` for what is optional."""
    if parameter.default is not REQUIRED:
        return parameter.default
    assert parameter.kind.endswith("?"), f"{parameter.name} has no default"
    return None


def tensor_of(operand: npt.NDArray[Any] | Bf16) -> Tensor:
    """An operand as a tensor."""
    if isinstance(operand, Bf16):
        return Tensor.of(round_to_bfloat16(operand.array.astype(np.float32)), "BF16")
    return Tensor.of(operand)


def mapped(arguments: Mapping[str, Any], load: Callable[[Tensor], Any]) -> dict[str, Any]:
    """The arguments with every operand loaded: `load` turns a tensor into what a reading or an engine takes."""
    return {name: _mapped(value, load) for name, value in arguments.items()}


def specs(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments as the reading `Types` takes them."""
    return mapped(arguments, TensorSpec.of)


def _mapped(value: Any, load: Callable[[Tensor], Any]) -> Any:
    if isinstance(value, np.ndarray | Bf16):
        return load(tensor_of(value))
    if isinstance(value, tuple):
        return tuple(_mapped(each, load) for each in value)
    return value


def _shown(value: Any) -> str:
    if isinstance(value, np.ndarray | Bf16):
        return str(TensorSpec.of(tensor_of(value)))
    return str([_shown(each) for each in value]) if isinstance(value, tuple) else repr(value)


def collected(table: str) -> dict[str, list[Call]]:
    """The calls of all files of examples, by operator."""
    found: dict[str, list[Call]] = {}
    for name in ("moves", "arithmetic", "layers", "tables", "grouping", "optimizer", "stablehlo", "random", "sampling"):
        try:
            module = importlib.import_module(f"tests.programs.operators.examples_{name}")
        except ModuleNotFoundError:
            continue
        for key, calls in getattr(module, table).items():
            found.setdefault(key, []).extend(calls)
    return found
