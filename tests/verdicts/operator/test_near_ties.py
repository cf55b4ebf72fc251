"""Choices that hang by a rounding are tied; other choices, and indices that name nothing, are wrong."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tallystick.core.tensors import Tensor, TensorSpec, round_to_bfloat16
from tallystick.programs.graph import Node
from tallystick.verdicts.leaf.request import BANDS
from tallystick.verdicts.operator.judge import bands_between, find_near_tie

UNIT = 2.0**-24
ABOVE = float(np.nextafter(np.float32(1.0), np.float32(2.0)))


def bands(
    name: str, x: Any, results: dict[int, Any], differs: int, places: list[int], dtype: str = "F32", **attributes: Any
) -> float:
    """The bands of a claimed choice from `x`; `results` by their place among the results."""
    values = {"x": Tensor.of(round_to_bfloat16(x), "BF16") if dtype == "BF16" else Tensor.of(x)}
    outputs = {0: "n7", 1: "n7.1"}
    values |= {outputs[i]: Tensor.of(np.asarray(result)) for i, result in results.items()}
    specs = tuple(TensorSpec.of(values[outputs[i]]) for i in sorted(results))
    other = {"other": "x2"} if "other" in attributes and isinstance(attributes["other"], np.ndarray) else {}
    if other:
        values["x2"] = Tensor.of(attributes.pop("other"))
    node = Node(7, f"aten.{name}", {"self": "x"} | other, attributes, specs)
    found = find_near_tie(node, values, outputs[differs], np.array(places))
    assert found is not None
    return found.bands


def rows(*numbers: float) -> Any:
    return np.array([numbers, [5.0, 1.0, 2.0]], np.float32)


@pytest.mark.parametrize("name", ["argmax.default", "max.dim"])
def test_an_index_of_the_largest_within_the_margin_is_tied(name: str) -> None:
    x = rows(0.5, 1.0, ABOVE)  # two roundings apart: the reference takes index 2
    values = {0: [np.float32(1.0), np.float32(5.0)]} if name == "max.dim" else {}
    place = len(values)
    claimed = values | {place: np.array([1, 0])}
    near = bands(name, x, claimed, place, [0], dim=1, keepdim=False)
    assert 0 < near <= BANDS
    far = rows(0.5, 1.0, 1.0 + 3 * (ABOVE - 1.0))
    assert bands(name, far, claimed, place, [0], dim=1, keepdim=False) > BANDS


def test_equal_numbers_are_tied_in_any_dtype() -> None:
    x = np.array([[3, 7, 7]])
    assert bands("argmax.default", x, {0: np.array([2])}, 0, [0], dim=1, keepdim=False) == 0.0
    assert bands("argmax.default", x, {0: np.array([0])}, 0, [0], dim=1, keepdim=False) == math.inf


def test_the_margin_is_in_roundings_of_the_dtype() -> None:
    x = np.array([[1.0, 1.0078125]], np.float32)
    assert bands("argmax.default", x, {0: np.array([0])}, 0, [0], "BF16", dim=1, keepdim=False) <= BANDS
    assert bands("argmax.default", x, {0: np.array([0])}, 0, [0], "F32", dim=1, keepdim=False) > 1e4


def test_the_smallest_is_looked_for_where_the_operator_does() -> None:
    x = rows(1.0, ABOVE, 9.0)
    assert bands("argmin.default", x, {0: np.array([1, 1])}, 0, [0], dim=1, keepdim=False) <= BANDS
    assert bands("argmin.default", x, {0: np.array([2, 1])}, 0, [0], dim=1, keepdim=False) > BANDS


def test_without_an_axis_all_elements_stand_in_one_row() -> None:
    x = rows(5.0, 1.0, 2.0)
    assert bands("argmax.default", x, {0: np.array(3)}, 0, [0], dim=None, keepdim=False) == 0.0
    assert bands("argmax.default", x, {0: np.array(1)}, 0, [0], dim=None, keepdim=False) > BANDS


@pytest.mark.parametrize("index", [-1, 3, 2**62])
def test_an_index_that_names_no_element_is_wrong(index: int) -> None:
    x = rows(1.0, 1.0, 1.0)
    assert bands("argmax.default", x, {0: np.array([index, 0])}, 0, [0], dim=1, keepdim=False) == math.inf


def test_a_value_beside_another_elements_index_is_wrong() -> None:
    x = rows(0.5, 1.0, ABOVE)
    tied = {0: np.array([1.0, 5.0], np.float32), 1: np.array([1, 0])}
    assert bands("max.dim", x, tied, 0, [0], dim=1, keepdim=False) <= BANDS
    torn = {0: np.array([ABOVE, 5.0], np.float32), 1: np.array([1, 0])}
    assert bands("max.dim", x, torn, 1, [0], dim=1, keepdim=False) == math.inf


@pytest.mark.parametrize("descending", [False, True])
def test_neighbours_in_an_order_are_tied_within_the_margin(descending: bool) -> None:
    x = rows(1.0, ABOVE, 3.0)
    orders = ([2, 0, 1], [0, 2, 1]) if descending else ([1, 0, 2], [1, 2, 0])
    values = [np.array([x[0][order], np.sort(x[1])], np.float32) for order in orders]
    for order, value, tied in zip(orders, values, (True, False), strict=True):
        claimed = {0: value, 1: np.array([order, [1, 2, 0]])}
        found = bands("sort.default", x, claimed, 1, [0, 1, 2], dim=1, descending=descending)
        assert (found <= BANDS) is tied


def test_an_index_that_occurs_twice_is_no_order() -> None:
    x = rows(1.0, 1.0, 1.0)
    fine = {0: x, 1: np.array([[2, 0, 1], [1, 2, 0]])}
    assert bands("sort.default", x, fine, 1, [0, 1, 2], dim=1, descending=False) == 0.0
    twice = {0: x, 1: np.array([[2, 0, 0], [1, 2, 0]])}
    assert bands("sort.default", x, twice, 1, [0, 2], dim=1, descending=False) == math.inf


def test_the_first_few_are_tied_as_the_order_is() -> None:
    x = rows(1.0, ABOVE, 0.5)
    how = {"k": 2, "dim": 1, "largest": True, "sorted": True}
    values = np.array([[1.0, ABOVE], [5.0, 2.0]], np.float32)
    assert bands("topk.default", x, {0: values, 1: np.array([[0, 1], [0, 2]])}, 1, [0, 1], **how) <= BANDS
    values = np.array([[1.0, 0.5], [5.0, 2.0]], np.float32)
    assert bands("topk.default", x, {0: values, 1: np.array([[0, 2], [0, 2]])}, 1, [0, 1], **how) > BANDS


def test_an_order_along_another_axis() -> None:
    x = np.array([[1.0, 4.0], [ABOVE, 3.0]], np.float32)
    value = np.array([[ABOVE, 3.0], [1.0, 4.0]], np.float32)
    claimed = {0: value, 1: np.array([[1, 1], [0, 0]])}
    assert bands("sort.default", x, claimed, 1, [0, 2], dim=0, descending=False) <= BANDS


def claimed_order(name: str, x: Any, order: list[int], **said: Any) -> float:
    """The bands of an order of one row, wherever it differs from 0, 1, 2, …"""
    places = [place for place, index in enumerate(order) if place != index]
    return bands(f"argsort.{name}", x, {0: np.array([order])}, 0, places, dim=1, descending=False, **said)


def test_equal_numbers_have_one_stable_order() -> None:
    """An unstable sort may swap them, and so may any where the numbers are zeros of two signs or subnormal."""
    x = np.array([[1.0, 1.0, 2.0]], np.float32)
    assert claimed_order("default", x, [1, 0, 2]) == 0.0
    assert claimed_order("stable", x, [1, 0, 2], stable=False) == 0.0
    assert claimed_order("stable", x, [1, 0, 2], stable=True) == math.inf
    assert claimed_order("stable", np.array([[3, 3, 4]]), [1, 0, 2], stable=True) == math.inf


@pytest.mark.parametrize(
    ("numbers", "is_settled"),
    [((0.0, 0.0, 1.0), True), ((0.0, -0.0, 1.0), False), ((0.0, 1e-45, 1.0), False), ((np.nan, np.nan, np.nan), False)],
    ids=["zeros", "zeros of two signs", "a subnormal number", "no numbers"],
)
def test_what_devices_may_order_otherwise_keeps_its_margin(numbers: tuple[float, ...], is_settled: bool) -> None:
    found = claimed_order("stable", np.array([numbers], np.float32), [1, 0, 2], stable=True)
    assert (found == math.inf) is is_settled


@pytest.mark.parametrize("name", ["eq.Tensor", "gt.Scalar", "lt.Tensor", "ne.Scalar"])
def test_comparisons_have_no_ties(name: str) -> None:
    x = Tensor.of(np.ones(2, np.float32))
    node = Node(7, f"aten.{name}", {"self": "x"}, {"other": 1.0}, (TensorSpec("BOOL", (2,)),))
    assert find_near_tie(node, {"x": x, "n7": Tensor.of(np.zeros(2, np.bool_))}, "n7", np.array([0])) is None


def test_an_operator_without_choices_has_no_ties() -> None:
    x = Tensor.of(np.ones(2, np.float32))
    node = Node(7, "aten.relu.default", {"self": "x"}, {}, (TensorSpec.of(x),))
    assert find_near_tie(node, {"x": x, "n7": x}, "n7", np.array([0])) is None


def test_bands_of_numbers_that_are_none() -> None:
    x, y = np.float32([np.nan, np.nan, np.inf, 0.0, 1e-45]), np.float32([np.nan, 1.0, np.inf, -0.0, 0.0])
    assert bands_between(x, y, "F32").tolist() == [0.0, math.inf, 0.0, 0.0, pytest.approx(2.0)]
