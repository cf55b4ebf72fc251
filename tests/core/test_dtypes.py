from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from tallystick.core.errors import MalformedError
from tallystick.core.tensors import (
    STORAGE,
    bfloat16_to_float32,
    dtype_of,
    item_size,
    numpy_dtype,
    round_to_bfloat16,
    round_to_float16,
)

VECTORS = Path(__file__).parents[2] / "vectors"
ROUNDING: list[dict[str, str]] = json.loads((VECTORS / "float" / "rne_boundary.json").read_text())
BITS = np.array([int(case["f32"], 16) for case in ROUNDING], "<u4")
SIZES = {"BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "U16": 2, "I16": 2, "F16": 2, "BF16": 2}
SIZES |= {"U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8}


def test_every_dtype_has_its_size() -> None:
    assert {dtype: item_size(dtype) for dtype in STORAGE} == SIZES


@pytest.mark.parametrize("dtype", sorted(set(STORAGE) - {"BF16", "F8_E4M3", "F8_E5M2"}))
def test_a_numpy_dtype_and_its_name_determine_each_other(dtype: str) -> None:
    form = numpy_dtype(dtype)
    assert dtype_of(form) == dtype
    assert dtype_of(form.newbyteorder(">")) == dtype


@pytest.mark.parametrize("dtype", ["F4", "f32", "", "F32\n" * 100])
def test_an_unknown_name_is_refused(dtype: str) -> None:
    with pytest.raises(MalformedError, match="is unknown") as caught:
        item_size(dtype)
    assert len(str(caught.value)) < 80


@pytest.mark.parametrize("form", ["c8", "O", "U3", "M8[s]", "V4"])
def test_a_numpy_dtype_without_a_name_is_refused(form: str) -> None:
    assert dtype_of(np.dtype("f4")) == "F32"
    with pytest.raises(MalformedError, match="no canonical name"):
        dtype_of(np.dtype(form))


def test_float32_is_rounded_to_float16_as_ieee754_has_it() -> None:
    rounded = round_to_float16(BITS.view("<f4"))
    assert [f"{bits:04x}" for bits in rounded.view("<u2")] == [case["fp16"] for case in ROUNDING]
    assert len(ROUNDING) == 624


def test_float32_is_rounded_to_bfloat16_as_ieee754_has_it() -> None:
    rounded = round_to_bfloat16(BITS.view("<f4"))
    assert [f"{bits:04x}" for bits in rounded] == [case["bf16"] for case in ROUNDING]


def test_a_nan_stays_a_nan() -> None:
    nans = np.array([0x7F800001, 0xFFFFFFFF, 0x7FC00000, 0x7FFFFFFF], "<u4").view("<f4")
    assert np.isnan(bfloat16_to_float32(round_to_bfloat16(nans))).all()
    assert np.isnan(round_to_float16(nans)).all()


@pytest.mark.parametrize("wide", [np.uint32, np.uint64])
def test_every_nan_becomes_one_and_the_same_float16(wide: type) -> None:
    inexact = np.float32 if wide is np.uint32 else np.float64
    infinity = int(np.array(np.inf, inexact).view(wide))
    sign = 1 << 8 * np.dtype(wide).itemsize - 1
    nans: Any = np.array([infinity + 1, infinity | sign | 1, sign - 1, 2 * sign - 1], wide).view(inexact)
    assert round_to_float16(nans).view("<u2").tolist() == [0x7E00] * 4


@given(st.integers(0, 2**16 - 1))
@settings(deadline=None, max_examples=200)
def test_a_bfloat16_is_a_float32_and_comes_back(bits: int) -> None:
    value = bfloat16_to_float32(np.array([bits], "<u2"))
    quiet = bits | 0x40 if np.isnan(value[0]) else bits
    assert round_to_bfloat16(value).tolist() == [quiet]


def test_rounding_keeps_the_shape() -> None:
    for shape in [(), (0,), (2, 0), (2, 3)]:
        values = np.ones(shape, np.float32)
        assert round_to_bfloat16(values).shape == shape == round_to_float16(values).shape
        assert bfloat16_to_float32(round_to_bfloat16(values)).shape == shape
    striped = np.arange(12, dtype=np.float32).reshape(3, 4).T[::2]
    assert np.array_equal(bfloat16_to_float32(round_to_bfloat16(striped)), striped)
