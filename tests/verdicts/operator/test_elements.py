"""Single elements of a result are those of the whole, for every operator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tallystick.core.errors import MalformedError
from tallystick.core.tensors import Tensor
from tallystick.programs.operators.balls.bound import ResultBound, bound
from tallystick.programs.operators.definition import Operator, operator
from tallystick.programs.operators.precision import BFLOAT_PRODUCTS, PLAIN, STEPWISE, Precision
from tallystick.programs.operators.types import Types
from tallystick.verdicts.operator.judge import bound_at
from tests.programs.operators.examples import collected, mapped, specs

EXAMPLES = collected("EXAMPLES")


def tensor_arguments(arguments: Any) -> dict[str, Any]:
    return mapped(arguments, lambda tensor: tensor)


def check_equal(whole: ResultBound | None, found: ResultBound | None, places: Any) -> None:
    if whole is None:
        assert found is None
        return
    assert found is not None
    assert found.dtype == whole.dtype
    value, radius = whole.value.reshape(-1)[places], np.asarray(whole.radius).reshape(-1)[places]
    if value.dtype.kind == "f":
        np.testing.assert_allclose(found.value, value, rtol=1e-12, atol=1e-300)
    else:
        np.testing.assert_array_equal(found.value, value)
    np.testing.assert_allclose(found.radius, radius, rtol=1e-6, atol=1e-300)


def check_places(meaning: Operator, arguments: dict[str, Any], precision: Precision, some: int | None) -> None:
    whole, rng = bound(meaning, arguments, precision), np.random.default_rng(3)
    sizes = [None if each is None else each.value.size for each in whole]
    places = [
        None if size is None else np.arange(size) if some is None else np.unique(rng.integers(0, size, min(size, some)))
        for size in sizes
    ]
    for each, found, where in zip(whole, bound_at(meaning, arguments, places, precision, chunk=2), places, strict=True):
        check_equal(each, found, where)


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_elements_are_those_of_the_whole(name: str) -> None:
    for number, call in enumerate(EXAMPLES[name]):
        empty = any(spec is not None and spec.size == 0 for spec in operator(name).read(Types(), specs(call.arguments)))
        check_places(operator(name), tensor_arguments(call.arguments), PLAIN, None if empty or number % 4 == 0 else 3)


@pytest.mark.parametrize("precision", [STEPWISE, BFLOAT_PRODUCTS], ids=["stepwise", "bf16-products"])
@pytest.mark.parametrize(
    "name", ["aten.addmm.default", "aten._softmax.default", "aten.native_layer_norm.default", "aten.gelu.default"]
)
def test_they_are_in_other_precisions_too(name: str, precision: Precision) -> None:
    for call in EXAMPLES[name]:
        check_places(operator(name), tensor_arguments(call.arguments), precision, 2)


def test_one_element_of_a_product_reads_one_row_and_one_column() -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.normal(size=shape).astype(np.float32) for shape in ((40, 30), (30, 20)))
    spoiled_a, spoiled_b = np.full_like(a, np.nan), np.full_like(b, np.nan)
    spoiled_a[7], spoiled_b[:, 3] = a[7], b[:, 3]
    given = {"self": Tensor.of(spoiled_a), "mat2": Tensor.of(spoiled_b)}
    found = bound_at(operator("aten.mm.default"), given, [np.array([7 * 20 + 3])])[0]
    assert found is not None
    np.testing.assert_allclose(found.value, [a[7].astype(float) @ b[:, 3].astype(float)], rtol=1e-12)
    assert np.isfinite(found.radius).all()


def test_operands_that_do_not_fit_are_refused() -> None:
    given = {"self": Tensor.of(np.ones((2, 3), np.float32)), "mat2": Tensor.of(np.ones((4, 5), np.float32))}
    with pytest.raises(MalformedError, match="do not match"):
        bound_at(operator("aten.mm.default"), given, [np.array([0])])
    table, index = Tensor.of(np.ones((4, 2), np.float32)), Tensor.of(np.array([1, 9]))
    arguments = {"self": table, "dim": 0, "index": index}
    whole = bound_at(operator("aten.index_select.default"), arguments, [np.array([0])])[0]
    assert whole is not None  # the index outside is not asked for
    with pytest.raises(MalformedError, match="outside 4"):
        bound_at(operator("aten.index_select.default"), arguments, [np.array([2])])
