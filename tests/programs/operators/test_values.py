"""Values are what the algebra says on every array library, exact in the reference, and refuse what does not fit."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import pytest

from tallystick.core.errors import MalformedError, UnavailableError
from tallystick.core.tensors import Tensor, round_to_bfloat16
from tallystick.engines.jax.engine import JAX
from tallystick.engines.torch.kernels import TORCH
from tallystick.programs.operators.arrays import NUMPY
from tallystick.programs.operators.values import Value, Values

REFERENCE = Values(NUMPY, "F64")
ALGEBRAS = {
    "reference": REFERENCE,
    "numpy": Values(NUMPY),
    "torch": Values(TORCH),
    "torch in float64": Values(TORCH, "F64"),
    "jax": Values(JAX),
}


@pytest.fixture(params=ALGEBRAS)
def a(request: pytest.FixtureRequest) -> Iterator[Values]:
    with jax.enable_x64(True):
        yield ALGEBRAS[request.param]


def of(a: Values, elements: Any, dtype: str = "<f4") -> Value:
    return a.load(Tensor.of(np.array(elements, dtype)))


def numbers(a: Values, value: Value) -> Any:
    return a.unload(value).values().tolist()


# ---- dtypes


def test_the_reference_holds_every_float_exactly_and_in_float64() -> None:
    bits = np.array([0x3F81, 0x0001, 0xFF80, 0x7FC0], "<u2")
    for tensor in (Tensor.of(bits, "BF16"), Tensor.of(np.array([0.1, 6e-8], "<f2")), Tensor.of(np.array(0.1, "<f4"))):
        value = REFERENCE.load(tensor)
        assert value.dtype == tensor.dtype
        held = REFERENCE.unload(value)
        assert held.dtype == "F64"
        np.testing.assert_array_equal(held.values(), tensor.values().astype(np.float64))


def test_narrowing_does_not_round_in_the_reference_and_does_elsewhere() -> None:
    third = of(REFERENCE, 1 / 3, "<f8")
    assert numbers(REFERENCE, REFERENCE.cast(third, "BF16")) == 1 / 3
    torch = ALGEBRAS["torch"]
    assert numbers(torch, torch.cast(of(torch, 1 / 3, "<f8"), "BF16")) == 0.333984375


def test_constants_are_rounded_to_their_dtype(a: Values) -> None:
    assert numbers(a, a.full((2,), 0.1, "F32")) == [float(np.float32(0.1))] * 2
    assert numbers(a, a.mul(of(a, [1.0]), 0.1)) == [float(np.float32(0.1))]


def test_constants_in_bfloat16_are_rounded_to_it() -> None:
    for name in ("reference", "torch", "jax"):
        algebra = ALGEBRAS[name]
        assert numbers(algebra, algebra.full((), 0.1, "BF16")) == 0.10009765625


def test_bfloat16_survives_loading_and_unloading_bit_by_bit() -> None:
    bits = np.arange(0, 2**16, 17, dtype="<u2")
    bits = bits[~np.isnan(Tensor.of(bits, "BF16").values())]
    for name in ("torch", "jax"):
        tensor = Tensor.of(bits, "BF16")
        assert bytes(ALGEBRAS[name].unload(ALGEBRAS[name].load(tensor)).data) == bytes(tensor.data)
    wide = REFERENCE.unload(REFERENCE.load(Tensor.of(bits, "BF16"))).values()
    np.testing.assert_array_equal(round_to_bfloat16(wide.astype(np.float32)), bits)


def test_numpy_does_not_compute_in_bfloat16_by_itself() -> None:
    with pytest.raises(UnavailableError, match="BF16"):
        ALGEBRAS["numpy"].full((), 1, "BF16")


@pytest.mark.parametrize(
    ("number", "dtype"),
    [(0.5, "I64"), (300, "U8"), (-1, "U8"), (float("nan"), "I32"), (2**63, "I64"), (10**400, "F32")],
)
def test_a_constant_that_its_dtype_does_not_have_is_refused(number: float, dtype: str) -> None:
    with pytest.raises(MalformedError):
        REFERENCE.full((), number, dtype)
    assert numbers(REFERENCE, REFERENCE.full((), 3.0, dtype)) == 3


def test_casts(a: Values) -> None:
    assert numbers(a, a.cast(of(a, [2.7, -2.7, 0.0]), "I32")) == [2, -2, 0]
    assert numbers(a, a.cast(of(a, [2.5, 0.0, np.nan]), "BOOL")) == [True, False, True]
    assert numbers(a, a.cast(of(a, [300, -1], "<i4"), "U8")) == [44, 255]
    assert numbers(a, a.cast(of(a, [True, False], bool), "F32")) == [1.0, 0.0]


def test_the_reference_says_what_becomes_of_floats_that_no_integer_is() -> None:
    extreme = of(REFERENCE, [np.nan, np.inf, -np.inf, 1e30, -3e9])
    assert numbers(REFERENCE, REFERENCE.cast(extreme, "I32")) == [0, 2**31 - 1, -(2**31), 2**31 - 1, -(2**31)]
    assert numbers(REFERENCE, REFERENCE.cast(extreme, "I64"))[:4] == [0, 2**63 - 1, -(2**63), 2**63 - 1]


# ---- arithmetic


def test_integers_wrap_at_their_own_width(a: Values) -> None:
    x = of(a, [2**31 - 1, -(2**31)], "<i4")
    assert numbers(a, a.add(x, 1)) == [-(2**31), -(2**31) + 1]
    assert numbers(a, a.mul(x, 2)) == [-2, 0]
    assert numbers(a, a.neg(x)) == [-(2**31) + 1, -(2**31)]
    assert numbers(a, a.sum(of(a, [200, 100], "<u1"), (0,))) == 44


def test_infinities_and_nan_are_results_without_warnings(a: Values) -> None:
    x = of(a, [0.0, np.inf, -1.0, 3e38])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert numbers(a, a.div(x, 0.0))[1] == np.inf
        assert np.isnan(numbers(a, a.div(x, 0.0))[0])
        assert np.isnan(numbers(a, a.sqrt(x))[2])
        assert numbers(a, a.log(x))[0] == -np.inf
        assert numbers(a, a.exp(of(a, [1000.0]))) == [np.inf]


def test_small_exponents_are_products_and_roots(a: Values) -> None:
    x = of(a, [1.1, 3.0, 0.7])
    assert numbers(a, a.pow(x, 2)) == numbers(a, a.mul(x, x))
    assert numbers(a, a.pow(x, 0.5)) == numbers(a, a.sqrt(x))
    assert numbers(a, a.pow(x, -0.5)) == numbers(a, a.rsqrt(x))
    np.testing.assert_allclose(numbers(a, a.pow(x, -3)), np.array([1.1, 3, 0.7]) ** -3.0, 1e-6)
    np.testing.assert_allclose(numbers(a, a.pow(2.0, x)), 2 ** np.array([1.1, 3, 0.7]), 1e-6)


def test_whole_division_rounds_down_and_the_remainder_has_the_divisors_sign(a: Values) -> None:
    x, y = of(a, [7, -7, 7, -7], "<i8"), of(a, [2, 2, -2, -2], "<i8")
    assert numbers(a, a.floor_divide(x, y)) == [3, -4, -4, 3]
    assert numbers(a, a.remainder(x, y)) == [1, 1, -1, -1]
    for divide in (a.floor_divide, a.remainder):
        with pytest.raises(MalformedError, match="divided by 0"):
            divide(x, of(a, [2, 0, 1, 1], "<i8"))


def test_an_integer_to_a_negative_power_is_refused(a: Values) -> None:
    x = of(a, [2, 3], "<i8")
    assert numbers(a, a.pow(x, of(a, [3, 2], "<i8"))) == [8, 9]
    with pytest.raises(MalformedError, match="negative power"):
        a.pow(x, of(a, [3, -1], "<i8"))


def test_shifts_lose_what_is_shifted_out(a: Values) -> None:
    x = of(a, [-8, 5, -1], "<i4")
    assert numbers(a, a.shift_left(x, 1)) == [-16, 10, -2]
    assert numbers(a, a.shift_right(x, 1)) == [-4, 2, -1]
    assert numbers(a, a.shift_left(x, 32)) == [0, 0, 0]
    assert numbers(a, a.shift_right(x, 40)) == [-1, 0, -1]
    assert numbers(a, a.shift_right(of(a, [200], "<u1"), 3)) == [25]
    assert numbers(a, a.shift_right(of(a, [200], "<u1"), 8)) == [0]


def test_extremes_of_nan_are_nan_and_of_bool_any_and_all(a: Values) -> None:
    x = of(a, [[1.0, np.nan], [2.0, 3.0]])
    assert np.isnan(numbers(a, a.max(x, (1,)))[0])
    assert np.isnan(numbers(a, a.minimum(x, 0.0))[0][1])
    truths = of(a, [[True, False], [False, False]], bool)
    assert numbers(a, a.max(truths, (1,))) == [True, False]
    assert numbers(a, a.min(truths, (1,))) == [False, False]
    with pytest.raises(MalformedError, match="no elements"):
        a.max(of(a, np.zeros((0, 2))), (0,))


def test_sorting_is_stable_and_nan_is_largest(a: Values) -> None:
    x = of(a, [2.0, np.nan, 1.0, 2.0, -1.0])
    for descending, order in ((False, [4, 2, 0, 3, 1]), (True, [1, 0, 3, 2, 4])):
        values, indices = a.sort(x, 0, descending)
        assert numbers(a, indices) == order
        np.testing.assert_array_equal(numbers(a, values), np.array([2, np.nan, 1, 2, -1])[order])


def test_the_first_of_equal_maxima_is_found(a: Values) -> None:
    assert numbers(a, a.argmax(of(a, [[1, 3, 3], [2, 2, 1]]), 1)) == [1, 0]
    assert numbers(a, a.argmax(of(a, [False, True, True], bool), 0, keep=True)) == [1]


def test_dot_contracts_and_stacks_any_axes(a: Values) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2, 3, 4, 5)), rng.standard_normal((5, 2, 3, 6))
    found = a.dot(of(a, x, "<f8"), of(a, y, "<f8"), ((3, 1), (0, 2)), ((0,), (1,)))
    np.testing.assert_allclose(numbers(a, found), np.einsum("bkim,mbkj->bij", x, y), 1e-12)
    with pytest.raises(MalformedError, match="do not match axes"):
        a.dot(of(a, x), of(a, y), ((3,), (1,)))


def test_a_product_over_nothing_is_zero(a: Values) -> None:
    assert numbers(a, a.dot(of(a, np.zeros((2, 0))), of(a, np.zeros((0, 1))), ((1,), (0,)))) == [[0.0], [0.0]]


# ---- moving data

MATRIX = np.arange(12.0).reshape(3, 4)


def test_taking_adjacent_axes_by_broadcast_indices(a: Values) -> None:
    cube = np.arange(24.0).reshape(2, 3, 4)
    rows, columns = np.array([[0], [-1]]), np.array([1, 3, 0])
    found = a.take(of(a, cube), [of(a, rows, "<i8"), of(a, columns, "<i4")], 1)
    assert numbers(a, found) == cube[:, rows, columns].tolist()


@pytest.mark.parametrize("index", [3, -4])
def test_an_index_outside_the_side_is_refused(a: Values, index: int) -> None:
    x, inside, outside = of(a, MATRIX), of(a, [2, -3], "<i8"), of(a, [0, index], "<i8")
    assert numbers(a, a.take(x, [inside], 0)) == MATRIX[[2, -3]].tolist()
    with pytest.raises(MalformedError, match="outside 3"):
        a.take(x, [outside], 0)
    with pytest.raises(MalformedError, match="outside 3"):
        a.scatter(x, [outside], 0, of(a, np.ones((2, 4))), add=True)
    with pytest.raises(MalformedError, match="outside 3"):
        a.take_along(x, of(a, [[0, 0, 0, index]], "<i8"), 0)


def test_scattering_adds_repeatedly_and_leaves_its_operand_alone(a: Values) -> None:
    x = of(a, np.zeros((3, 2)))
    added = a.scatter(x, [of(a, [1, 1, -1], "<i8")], 0, of(a, np.ones((3, 2))), add=True)
    assert numbers(a, added) == [[0, 0], [2, 2], [1, 1]]
    written = a.scatter(x, [of(a, [0, 1], "<i8")], 1, of(a, [[5, 6]] * 3), add=False)
    assert numbers(a, written) == [[5, 6]] * 3
    assert numbers(a, x) == np.zeros((3, 2)).tolist()


def test_windows_slide_with_strides_and_dilations(a: Values) -> None:
    found = a.windows(of(a, MATRIX), (0, 1), (2, 2), (1, 2), (1, 1))
    assert found.shape == (2, 2, 2, 2)
    assert numbers(a, found) == [[MATRIX[i : i + 2, j : j + 2].tolist() for j in (0, 2)] for i in range(2)]
    assert numbers(a, a.windows(of(a, MATRIX[0]), (0,), (2,), (1,), (3,))) == [[0, 3]]
    with pytest.raises(MalformedError, match="no window"):
        a.windows(of(a, MATRIX[0]), (0,), (3,), (1,), (2,))


def test_padding_before_behind_between_and_cropping(a: Values) -> None:
    x = of(a, [1.0, 2.0, 3.0])
    assert numbers(a, a.pad(x, 9, (1,), (2,), (1,))) == [9, 1, 9, 2, 9, 3, 9, 9]
    assert numbers(a, a.pad(x, 9, (-1,), (1,), (0,))) == [2, 3, 9]
    assert numbers(a, a.pad(x, 9, (-1,), (-1,), (1,))) == [9, 2, 9]
    with pytest.raises(MalformedError, match="has a negative side"):
        a.pad(x, 9, (-2,), (-2,), (0,))


def test_running_sums_and_indices(a: Values) -> None:
    assert numbers(a, a.cumsum(of(a, MATRIX), 1)) == np.cumsum(MATRIX, 1).tolist()
    assert numbers(a, a.iota((2, 3), 1, "F32")) == [[0, 1, 2]] * 2
    assert numbers(a, a.flip(of(a, MATRIX), (0, 1))) == MATRIX[::-1, ::-1].tolist()


@pytest.mark.parametrize(
    "refused",
    [
        lambda a, x: a.add(x, of(a, [1, 2, 3, 4], "<i8")),
        lambda a, x: a.add(x, of(a, [1.0, 2.0])),
        lambda a, x: a.reshape(x, (5,)),
        lambda a, x: a.broadcast(x, (3, 5)),
        lambda a, x: a.transpose(x, (0, 0)),
        lambda a, x: a.slice(x, (0, 0), (4, 4), (1, 1)),
        lambda a, x: a.sum(x, (2,)),
        lambda a, x: a.concat([x, of(a, [[1.0]])], 0),
        lambda a, x: a.take(x, [of(a, [0.0])], 0),
    ],
)
def test_operands_that_do_not_fit_are_refused(a: Values, refused: Callable[[Values, Value], Value]) -> None:
    with pytest.raises(MalformedError):
        refused(a, of(a, MATRIX))


def test_a_traced_array_is_computed_without_looking_at_its_elements() -> None:
    algebra = ALGEBRAS["jax"]

    def taken(index: Any) -> Any:
        return algebra.take(of(algebra, [1.0, 2.0]), [Value(index, "I64")], 0).array

    with jax.enable_x64(True):
        assert jax.jit(taken)(np.array([1, 0])).tolist() == [2.0, 1.0]
