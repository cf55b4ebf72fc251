"""Products checked by random signs: honest ones always pass, wrong ones as rarely as is promised."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tallystick.core.tensors import Tensor, TensorSpec, round_to_bfloat16
from tallystick.programs.graph import Node
from tallystick.programs.operators import precision as known
from tallystick.programs.operators.balls.bound import bound
from tallystick.programs.operators.definition import operator
from tallystick.programs.operators.precision import PLAIN, Precision
from tallystick.verdicts.leaf.freivalds import (
    Product,
    check_product,
    places_of_largest_errors,
    product_of,
    row_tolerances,
    signs_of,
)

PRECISIONS = {
    name: getattr(known, name)
    for name in ("PLAIN", "STEPWISE", "TENSOR_FLOAT", "BFLOAT_PRODUCTS", "HALF_SUMS", "BFLOAT_SUMS")
}
TYPES = {"F32": np.float32, "F64": np.float64, "F16": np.float16}
TRIALS = 4000


def tensor(array: Any, dtype: str) -> Tensor:
    if dtype == "BF16":
        return Tensor.of(round_to_bfloat16(array.astype(np.float32)), "BF16")
    return Tensor.of(array.astype(TYPES[dtype]))


def operands(name: str, rng: np.random.Generator, scale: float) -> tuple[dict[str, Any], dict[str, Any]]:
    n, k, m = rng.integers(1, 18, 3)
    a, b = rng.normal(size=(n, k)) * scale, rng.normal(size=(k, m))
    added = rng.normal(size=(n, m) if rng.random() < 0.5 else (m,))
    factors = {"alpha": float(rng.choice([1.0, 0.1, -3.3])), "beta": float(rng.choice([0.0, 1.0, 0.7]))}
    stacks = np.stack([a, -a]), np.stack([b, 2 * b])
    return {
        "mm": ({"self": a, "mat2": b}, {}),
        "matmul": ({"self": a[None, None], "other": stacks[1]}, {}),
        "bmm": ({"self": stacks[0], "mat2": stacks[1]}, {}),
        "addmm": ({"self": added, "mat1": a, "mat2": b}, factors),
        "baddbmm": ({"self": added, "batch1": stacks[0], "batch2": stacks[1]}, factors),
        "linear": ({"input": a, "weight": b.T, "bias": added if added.ndim == 1 else None}, {}),
    }[name]


def exact(name: str, dtype: str, seed: int, precision: Precision) -> tuple[Product, Any]:
    """A product as it is claimed when it is exact but for its own rounding, and its bound."""
    rng = np.random.default_rng(seed)
    scale = 10.0 ** rng.integers(-3, 2) if rng.random() < 0.8 else (1e-7 if dtype == "F16" else 1e-39)
    given, attributes = operands(name, rng, float(scale))
    values = {each: tensor(array, dtype) for each, array in given.items() if array is not None}
    meaning = operator(f"aten.{name}.default")
    found = bound(meaning, {**{each: values.get(each) for each in given}, **attributes}, precision)[0]
    assert found is not None
    claimed = tensor(found.value, dtype)
    refs = {each: each if each in values else None for each in given}
    read = product_of(Node(7, meaning.name, refs, attributes, (TensorSpec.of(claimed),)), {**values, "n7": claimed})
    assert read is not None
    return read, found


@pytest.mark.parametrize("precision", PRECISIONS.values(), ids=PRECISIONS)
@pytest.mark.parametrize("dtype", ["F32", "F64", "F16", "BF16"])
@pytest.mark.parametrize("name", ["mm", "bmm", "matmul", "linear", "addmm", "baddbmm"])
def test_the_tolerance_of_a_row_covers_the_bounds_of_its_elements(name: str, dtype: str, precision: Precision) -> None:
    for seed in range(6):
        product, found = exact(name, dtype, seed, precision)
        sums = found.radius.reshape(product.claimed.shape).sum(axis=-1)
        assert (row_tolerances(product, precision) >= sums).all()
        rng = np.random.default_rng(seed)
        edge = np.where(np.isfinite(found.radius), found.radius, 0.0) * rng.choice([-1, 1], found.radius.shape)
        moved = product.claimed * 0 + (found.value + edge).reshape(product.claimed.shape)
        claimed = Product(
            product.left, product.right, moved, product.dtype, product.summand, product.alpha, product.beta
        )
        assert check_product(claimed, signs_of(b"n", "s", moved.shape[-1], 16), precision).holds


def product(rows: int, inner: int, columns: int, seed: int = 0) -> Product:
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=(rows, inner)).astype(np.float32), rng.normal(size=(inner, columns)).astype(np.float32)
    return Product(*(np.asarray(each, np.float64)[None] for each in (a, b, a @ b)), "F32")


def test_it_is_no_looser_than_five_times_the_sum_of_the_bounds() -> None:
    found = product(20, 256, 64)
    given = {"self": Tensor.of(found.left[0].astype("f4")), "mat2": Tensor.of(found.right[0].astype("f4"))}
    limit = bound(operator("aten.mm.default"), given)[0]
    assert limit is not None
    assert (row_tolerances(found, PLAIN)[0] < 5 * limit.radius.sum(axis=-1)).all()


def test_an_honest_product_passes_every_nonce() -> None:
    found = product(64, 128, 96)
    shares = [check_product(found, signs_of(bytes([n]), "s", 96, 20), PLAIN).worst for n in range(100)]
    assert max(shares) < 1.0


def test_an_element_beyond_its_rows_tolerance_passes_one_vector_at_most_half_of_the_time() -> None:
    found = product(3, 16, 8)
    found.claimed[0, 1, 5] += 1.01 * row_tolerances(found, PLAIN)[0, 1]
    passed = sum(check_product(found, signs_of(n.to_bytes(4, "big"), "s", 8, 1), PLAIN).holds for n in range(TRIALS))
    assert passed / TRIALS <= 0.5 + 5 * 0.5 / TRIALS**0.5


def test_two_errors_that_cancel_pass_one_vector_half_of_the_time_and_20_vectors_never_here() -> None:
    found = product(3, 16, 8)
    move = 4.0 * row_tolerances(found, PLAIN)[0, 1]
    found.claimed[0, 1, [2, 5]] += move, -move  # cancel where their signs are equal
    one = sum(check_product(found, signs_of(n.to_bytes(4, "big"), "s", 8, 1), PLAIN).holds for n in range(TRIALS))
    assert abs(one / TRIALS - 0.5) < 5 * 0.5 / TRIALS**0.5
    three = sum(check_product(found, signs_of(n.to_bytes(4, "big"), "s", 8, 3), PLAIN).holds for n in range(TRIALS))
    assert abs(three / TRIALS - 1 / 8) < 5 * (7 / 64) ** 0.5 / TRIALS**0.5
    assert not any(check_product(found, signs_of(bytes([n]), "s", 8, 20), PLAIN).holds for n in range(100))


def test_a_row_that_is_off_is_named() -> None:
    found = product(9, 16, 8)
    found.claimed[0, 4, 3] += 1.0
    residuals = check_product(found, signs_of(b"n", "s", 8, 20), PLAIN)
    assert not residuals.holds
    assert residuals.worst_rows[0] == (0, 4)


def test_an_error_that_hides_in_its_rows_tolerance_stands_out() -> None:
    found = product(9, 64, 256)
    small = 0.1 * row_tolerances(found, PLAIN)[0, 4]
    found.claimed[0, 4, 77] += small
    residuals = check_product(found, signs_of(b"n", "s", 256, 20), PLAIN)
    assert residuals.holds
    assert (0 * 9 + 4) * 256 + 77 in places_of_largest_errors(found, residuals, 1, 1)
    assert len(places_of_largest_errors(found, residuals, 2, 32)) == 64


@pytest.mark.parametrize("wild", [np.nan, np.inf, -np.inf])
def test_a_claim_that_is_no_number_fails_where_the_product_is_one(wild: float) -> None:
    found = product(4, 16, 8)
    found.claimed[0, 2, 3] = wild
    assert not check_product(found, signs_of(b"n", "s", 8, 4), PLAIN).holds


@pytest.mark.parametrize("value", [np.nan, np.inf, 3e38])
def test_rows_that_may_overflow_have_no_tolerance_and_are_counted(value: float) -> None:
    found = product(4, 16, 8)
    found.left[0, 2, 3] = value
    found.claimed[0, 2] = np.nan
    residuals = check_product(found, signs_of(b"n", "s", 8, 4), PLAIN)
    assert residuals.holds
    assert (residuals.unbounded, residuals.shares.size) == (1, 4)


def test_signs_are_as_often_plus_as_minus_and_belong_to_their_subject() -> None:
    signs = signs_of(b"nonce", "leaf", 500, 20)
    assert signs.shape == (500, 20)
    assert set(np.unique(signs)) == {-1.0, 1.0}
    assert abs(signs.mean()) < 5 / 10_000**0.5
    assert not np.array_equal(signs, signs_of(b"nonce", "other", 500, 20))
    assert np.array_equal(signs, signs_of(b"nonce", "leaf", 500, 20))


def test_other_operators_vectors_and_whole_numbers_are_no_products() -> None:
    whole = Tensor.of(np.ones((2, 2), np.int64))
    node = Node(1, "aten.mm.default", {"self": "a", "mat2": "a"}, {}, (TensorSpec.of(whole),))
    assert product_of(node, {"a": whole, "n1": whole}) is None
    row = Tensor.of(np.ones(2, np.float32))
    vectors = Node(1, "aten.matmul.default", {"self": "a", "other": "a"}, {}, (TensorSpec("F32"),))
    assert product_of(vectors, {"a": row, "n1": Tensor.of(np.float32(2.0) * np.ones((), np.float32))}) is None
    other = Node(1, "aten.relu.default", {"self": "a"}, {}, (TensorSpec("F32", (2,)),))
    assert product_of(other, {"a": row, "n1": row}) is None
