from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as arrays

from tallystick.core.errors import MalformedError
from tallystick.core.tensors import STORAGE, Tensor, numpy_dtype

SHAPES = arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
PLAIN = sorted(set(STORAGE) - {"BF16", "F8_E4M3", "F8_E5M2"})


@given(st.sampled_from(PLAIN), SHAPES, st.integers(0, 255))
@settings(deadline=None, max_examples=150)
def test_an_array_comes_back_byte_for_byte(dtype: str, shape: tuple[int, ...], first: int) -> None:
    form = numpy_dtype(dtype)
    count = math.prod(shape) * form.itemsize
    data = bytes((first + 37 * place) % (2 if dtype == "BOOL" else 256) for place in range(count))
    array = np.frombuffer(data, form).reshape(shape)
    tensor = Tensor.of(array)
    assert (tensor.dtype, tensor.shape, bytes(tensor.data)) == (dtype, shape, data)
    assert tensor.array().tobytes() == data
    assert tensor.array().shape == shape
    assert tensor.copy() == tensor


def test_contiguous_memory_is_shared_and_other_memory_is_copied() -> None:
    array = np.arange(6, dtype="<f4").reshape(2, 3)
    assert np.shares_memory(Tensor.of(array).array(), array)
    assert not np.shares_memory(Tensor.of(array.T).array(), array)
    assert not np.shares_memory(Tensor.of(array).copy().array(), array)


def test_bytes_are_little_endian_and_row_major_whatever_the_array_was() -> None:
    array = np.arange(6, dtype="<i2").reshape(2, 3)
    expected = Tensor("I16", (2, 3), bytes([0, 0, 1, 0, 2, 0, 3, 0, 4, 0, 5, 0]))
    assert Tensor.of(array) == Tensor.of(array.astype(">i2")) == Tensor.of(np.asfortranarray(array)) == expected


def test_an_array_is_read_only() -> None:
    with pytest.raises(ValueError, match="read-only"):
        Tensor.of(np.zeros(2)).array()[0] = 1


def test_signed_zero_and_nan_payloads_are_bytes_like_any_other() -> None:
    data = bytes.fromhex("00000080010080ff")
    tensor = Tensor("F32", (2,), data)
    assert Tensor.of(tensor.array()) == tensor
    assert Tensor.of(np.zeros(2, "<f4")) != tensor


@pytest.mark.parametrize(
    ("dtype", "shape", "data"),
    [
        ("F32", (2,), bytes(7)),
        ("F32", (2,), bytes(9)),
        ("F32", (), b""),
        ("U8", (-1,), b""),
        ("U8", (-1, -1), b"\0"),
        ("F4", (1,), b"\0"),
    ],
)
def test_dtype_shape_and_bytes_must_belong_together(dtype: str, shape: tuple[int, ...], data: bytes) -> None:
    assert Tensor("F32", (2,), bytes(8)).nbytes == 8
    with pytest.raises(MalformedError):
        Tensor(dtype, shape, data)


def test_sixteen_bit_floats_are_computed_with_as_float32() -> None:
    brain = Tensor.of(np.array([[0x3F80, 0xC000]], "<u2"), "BF16")
    half = Tensor.of(np.array([[1.0, -2.0]], "<f2"))
    assert half.dtype == "F16"
    for tensor in (brain, half):
        assert tensor.values().dtype == np.float32
        assert tensor.values().tolist() == [[1.0, -2.0]]
    assert Tensor.of(np.array(0x3F80, "<u2"), "BF16").values().shape == ()


def test_other_values_are_the_array_itself() -> None:
    for dtype in sorted(set(PLAIN) - {"F16"}):
        tensor = Tensor(dtype, (1,), bytes(numpy_dtype(dtype).itemsize))
        assert np.array_equal(tensor.values(), tensor.array())


def test_an_array_without_a_canonical_dtype_is_refused() -> None:
    with pytest.raises(MalformedError, match="no canonical name"):
        Tensor.of(np.zeros(2, "c8"))
    with pytest.raises(MalformedError, match="which takes"):
        Tensor.of(np.zeros(2, "f4"), "BF16")


@pytest.mark.parametrize("shape", [(2**62, 4, 0), (1,) * 65, (-1, 0)])
def test_a_shape_that_no_array_can_have_is_refused(shape: tuple[int, ...]) -> None:
    assert Tensor("U16", (2**58, 8, 0), b"").array().shape == (2**58, 8, 0)
    with pytest.raises(MalformedError):
        Tensor("U16", shape, b"\0\0" if 0 not in shape else b"")
