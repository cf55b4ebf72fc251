"""Arithmetic in the reference agrees with PyTorch's own kernels, and the same definitions on other arrays with both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest
import torch

from tallystick.core.tensors import Tensor
from tallystick.engines.torch.kernels import TORCH
from tallystick.programs.operators.arrays import NUMPY
from tallystick.programs.operators.definition import operator
from tallystick.programs.operators.types import Types
from tallystick.programs.operators.values import Value, Values
from tests.programs.operators.examples import Bf16, Call, mapped, specs, tensor_of
from tests.programs.operators.examples_arithmetic import EXAMPLES, NAMES
from tests.support.array_libraries import library

REFERENCE = Values(NUMPY, "F64")
TORCH_DTYPES = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64}
UNITS = {"F16": 2.0**-11, "BF16": 2.0**-8, "F32": 2.0**-24, "F64": 2.0**-53}
ROUNDINGS = 32
COARSE_CONSTANTS = {"aten.hardsigmoid_backward.default"}  # where PyTorch computes in float64 with a constant in float32


@pytest.fixture(autouse=True, scope="module")
def wide_jax() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def test_every_operator_has_an_example() -> None:
    assert set(EXAMPLES) == NAMES


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_reference_agrees_with_pytorch_in_float64(name: str) -> None:
    for call in EXAMPLES[name]:
        wide = doubled(call)
        expected = torch_results(wide)
        unit = 2.0**-33 if name in COARSE_CONSTANTS else unit_of(wide, expected)
        assert_close(str(wide), numbers(call, read(REFERENCE, wide)), expected, unit, 2**9)


@pytest.mark.parametrize("name", EXAMPLES)
def test_pytorch_gives_the_derived_dtypes_and_shapes_and_the_values(name: str) -> None:
    for call in EXAMPLES[name]:
        derived = operator(name).read(Types(), specs(call.arguments))
        expected = torch_results(call)
        assert [(spec.dtype, spec.shape) for spec in derived] == [(each.dtype, each.shape) for each in expected], call
        assert_close(str(call), numbers(call, read(REFERENCE, call)), expected, unit_of(call, expected), ROUNDINGS)


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_same_definitions_on_pytorch_arrays(name: str) -> None:
    check_native("torch", EXAMPLES[name])


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_same_definitions_on_jax_arrays(name: str) -> None:
    check_native("jax", EXAMPLES[name][:1])


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_the_same_definitions_on_jax_arrays_for_all_examples(name: str) -> None:
    check_native("jax", EXAMPLES[name][1:])


def check_native(kind: str, calls: list[Call]) -> None:
    """Definitions read in the dtypes that they state give the dtypes, shapes and nearly the values of the reference."""
    values = Values(library(kind), None)
    for call in calls:
        found = [values.unload(value) for value in read(values, call)]
        expected = read(REFERENCE, call)
        assert [(each.dtype, each.shape) for each in found] == [(value.dtype, value.shape) for value in expected], call
        assert_close(str(call), numbers(call, expected), found, unit_of(call, found), ROUNDINGS)


def read(values: Values, call: Call) -> list[Value]:
    return list(operator(call.operator).read(values, mapped(call.arguments, values.load)))


def numbers(call: Call, results: list[Value]) -> list[Tensor]:
    found = [REFERENCE.unload(value) for value in results]
    for value, tensor in zip(results, found, strict=True):
        assert tensor.dtype == ("F64" if value.dtype in UNITS else value.dtype), call
    return found


def torch_results(call: Call) -> list[Tensor]:
    name, overload = call.operator.removeprefix("aten.").rsplit(".", 1)
    results = getattr(getattr(torch.ops.aten, name), overload)(**torch_arguments(call.arguments))
    found = results if isinstance(results, tuple) else (results,)
    return [Values(TORCH).unload(Value(result, dtype_of(result))) for result in found]


def dtype_of(result: torch.Tensor) -> str:
    return next((name for name, dtype in TORCH_DTYPES.items() if dtype == result.dtype), "I64")


def torch_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    values = Values(TORCH)
    loaded = mapped(arguments, lambda tensor: values.load(tensor).array)
    return {name: TORCH_DTYPES.get(value, value) if isinstance(value, str) else value for name, value in loaded.items()}


def doubled(call: Call) -> Call:
    """The same call with all floats as F64."""
    return replace(call, arguments={name: _doubled(value) for name, value in call.arguments.items()})


def _doubled(value: Any) -> Any:
    if isinstance(value, Bf16):
        return tensor_of(value).values().astype(np.float64)
    if isinstance(value, np.ndarray):
        return value.astype(np.float64) if value.dtype.kind == "f" else value
    return "F64" if isinstance(value, str) and value in UNITS else value


def unit_of(call: Call, results: list[Tensor]) -> float:
    """The coarsest unit roundoff among operands and results."""
    held = [tensor_of(value).dtype for value in call.arguments.values() if isinstance(value, np.ndarray | Bf16)]
    return max(UNITS.get(dtype, 0.0) for dtype in (*held, *(result.dtype for result in results), "F64"))


def assert_close(what: str, exact: list[Tensor], found: list[Tensor], unit: float, roundings: int) -> None:
    """Integers and BOOL are equal; floats differ by some roundings at the magnitude of the largest finite element."""
    assert len(exact) == len(found)
    for reference, computed in zip(exact, found, strict=True):
        left, right = reference.values(), computed.values()
        assert left.shape == right.shape, what
        if left.dtype.kind != "f":
            np.testing.assert_array_equal(left, right, what)
            continue
        scale = float(np.max(np.abs(left), where=np.isfinite(left) & (np.abs(left) < 1e30), initial=1.0))
        allowed = roundings * unit
        with np.errstate(over="ignore"):
            rounded = left.astype(right.dtype)
        np.testing.assert_allclose(right, rounded, rtol=allowed, atol=allowed * scale, err_msg=what)
