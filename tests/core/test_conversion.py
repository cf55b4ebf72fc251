from __future__ import annotations

import numpy as np
import pytest

from tallystick.core.tensors import Tensor, in_dtype

VALUES = np.array([0.0, -0.0, 1.0, 1.00390625, 3.3e38, -1e-40, np.inf], np.float32)


def test_a_tensor_in_its_own_type_is_itself() -> None:
    tensor = Tensor.of(VALUES)
    assert in_dtype(tensor, "F32") is tensor


@pytest.mark.parametrize(("narrow", "wide"), [("BF16", "F32"), ("F16", "F32"), ("F32", "F64"), ("BF16", "F64")])
def test_widening_is_exact_and_can_be_taken_back(narrow: str, wide: str) -> None:
    small = in_dtype(Tensor.of(VALUES), narrow)
    assert small is not None
    large = in_dtype(small, wide)
    assert large is not None
    assert large.dtype == wide
    assert np.array_equal(large.values().astype("<f8"), small.values().astype("<f8"))
    assert in_dtype(large, narrow) == small


def test_rounding_is_that_of_pytorch() -> None:
    torch = pytest.importorskip("torch")
    drawn = np.random.default_rng(5).standard_normal(4096).astype(np.float32)
    for name, dtype in (("BF16", torch.bfloat16), ("F16", torch.float16)):
        ours = in_dtype(Tensor.of(drawn), name)
        theirs = torch.from_numpy(drawn).to(dtype).view(torch.uint16).numpy()
        assert ours is not None
        assert np.array_equal(ours.array().view(np.uint16), theirs)


def test_integers_are_not_converted() -> None:
    assert in_dtype(Tensor.of(np.arange(3)), "F32") is None
    assert in_dtype(Tensor.of(VALUES), "U8") is None
