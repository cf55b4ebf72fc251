"""Operators that create, move, choose and order elements give what PyTorch's kernels give, element by element."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tallystick.core.errors import MalformedError
from tallystick.core.tensors import Tensor
from tallystick.engines.torch.kernels import TORCH
from tallystick.engines.torch.tensors import DTYPES
from tallystick.programs.operators.arrays import NUMPY
from tallystick.programs.operators.definition import operator
from tallystick.programs.operators.types import Types
from tallystick.programs.operators.values import Values
from tests.programs.operators.examples import Call, call, mapped, specs
from tests.programs.operators.examples_moves import EXAMPLES

NATIVE = Values(TORCH, None)
REFERENCE = Values(NUMPY, "F64")
UNWRITTEN = {
    "aten.empty.memory_format",
    "aten.empty_like.default",
    "aten.new_empty.default",
    "aten.new_empty_strided.default",
}
COMPUTED = {"aten.arange.start", "aten.arange.start_step", "aten.linspace.default", "aten.index_add.default"}
UNIT = 2.0**-24


def computed(each: Call) -> list[torch.Tensor]:
    """The results of PyTorch's kernel."""
    _, name, overload = each.operator.split(".")
    kernel = getattr(getattr(torch.ops.aten, name), overload)
    kinds = {parameter.name: parameter.kind for parameter in operator(each.operator).parameters}
    arguments = {
        name: DTYPES[value] if value is not None and kinds[name].startswith("dtype") else value
        for name, value in mapped(each.arguments, lambda tensor: NATIVE.load(tensor).array).items()
    }
    needs_device = any(a.name == "device" and not a.has_default_value() for a in kernel._schema.arguments)
    results = kernel(**arguments, **({"device": "cpu"} if needs_device else {}))
    return list(results) if isinstance(results, tuple | list) else [] if results is None else [results]


def tolerance(name: str) -> float:
    return 4 * UNIT if name in COMPUTED else 0.0


@pytest.mark.parametrize("name", EXAMPLES)
def test_definitions_give_what_the_kernels_give(name: str) -> None:
    for each in EXAMPLES[name]:
        ours = [value.array for value in operator(name).read(NATIVE, mapped(each.arguments, NATIVE.load))]
        theirs = computed(each)
        assert len(ours) == len(theirs)
        for left, right in zip(ours, theirs, strict=True):
            assert (left.dtype, left.shape) == (right.dtype, right.shape)
            if name not in UNWRITTEN:
                torch.testing.assert_close(
                    left, right, rtol=tolerance(name), atol=tolerance(name), equal_nan=True, msg=str(each)
                )


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_reference_moves_the_same_elements(name: str) -> None:
    for each in EXAMPLES[name]:
        found = [
            REFERENCE.unload(value) for value in operator(name).read(REFERENCE, mapped(each.arguments, REFERENCE.load))
        ]
        for left, right in zip(found, computed(each), strict=True):
            assert left.dtype == ("F64" if right.is_floating_point() else left.dtype)
            if name not in UNWRITTEN:
                assert_nearly(left, right, str(each))


def assert_nearly(exact: Tensor, rounded: torch.Tensor, what: str) -> None:
    """Equal but for the rounding to the kernel's dtype."""
    wide = rounded.double() if rounded.is_floating_point() else rounded
    unit = torch.finfo(rounded.dtype).eps * 2 if rounded.is_floating_point() else 0.0
    huge = np.abs(exact.values()) > 6e4 if rounded.dtype == torch.float16 else np.zeros(exact.shape, bool)
    left, right = np.where(huge, 0, exact.values()), np.where(huge, 0, wide.numpy())
    np.testing.assert_allclose(left, right, rtol=unit, atol=unit, err_msg=what)


@pytest.mark.parametrize("mask", [np.array([True, False]), np.array([1, 0], np.uint8)])
def test_what_a_mask_chooses_depends_on_data(mask: Any) -> None:
    x = np.zeros((2, 3), np.float32)
    for name, given in (("aten.index.Tensor", {}), ("aten.index_put.default", {"values": x[0, 0:1]})):
        with pytest.raises(MalformedError, match="indices are I64 or I32"):
            operator(name).read(Types(), specs(call(name, self=x, indices=(mask,), **given).arguments))
        operator(name).read(Types(), specs(call(name, self=x, indices=(mask.astype(np.int64),), **given).arguments))


def test_counting_in_floats_is_exact_up_to_the_significand() -> None:
    def last(end: int, dtype: str) -> float:
        (value,) = operator("aten.arange.start").read(REFERENCE, {"start": end - 2, "end": end, "dtype": dtype})
        return float(REFERENCE.unload(value).values()[-1])

    assert last(2**24, "F32") == 2**24 - 1
    assert last(256, "BF16") == 255
