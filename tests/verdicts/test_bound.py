from __future__ import annotations

import math

import numpy as np
import pytest

from tallystick.core.errors import MalformedError
from tallystick.verdicts.bounds import Bound

INF, NAN = math.inf, math.nan


def judged(reference: list[float], radius: list[float], claimed: list[float]) -> tuple[bool, float]:
    finding = Bound(np.array(reference), np.array(radius)).compare(np.array(claimed, np.float32))
    return finding.agrees, finding.distance


def test_a_claim_on_the_edge_agrees_and_one_beyond_it_does_not() -> None:
    assert judged([1.0, 2.0], [0.5, 0.5], [1.5, 2.0]) == (True, 1.0)
    assert judged([1.0, 2.0], [0.5, 0.5], [1.5, 3.0]) == (False, 2.0)


def test_a_radius_of_zero_asks_for_the_value_itself() -> None:
    assert judged([1.0], [0.0], [1.0]) == (True, 0.0)
    assert judged([1.0], [0.0], [1.0000001]) == (False, INF)


@pytest.mark.parametrize(
    ("reference", "claimed", "agrees"),
    [(INF, INF, True), (INF, -INF, False), (NAN, NAN, True), (NAN, 1.0, False), (1.0, NAN, False), (INF, 1.0, False)],
)
def test_what_is_not_finite_has_to_be_of_the_same_kind(reference: float, claimed: float, agrees: bool) -> None:
    assert judged([reference], [0.25], [claimed])[0] is agrees


def test_an_infinite_radius_leaves_its_element_open_and_is_counted() -> None:
    bound = Bound(np.array([1.0, 2.0]), np.array([INF, 0.5]))
    finding = bound.compare(np.array([NAN, 2.25]))
    assert (finding.agrees, finding.distance, finding.where) == (True, 0.5, "element [1]")
    assert finding.detail == "1 of 2 elements are undetermined"
    assert bound.decides
    assert not Bound(np.array([1.0]), np.array([INF])).decides


def test_a_scalar_and_an_empty_tensor_have_bounds_too() -> None:
    assert Bound(np.array(2.0), np.array(1.0)).compare(np.array(2.5)).where == "element []"
    assert Bound(np.zeros((0, 3)), np.zeros((0, 3))).compare(np.zeros((0, 3))).agrees


def test_shapes_that_differ_are_refused() -> None:
    with pytest.raises(MalformedError, match="shape"):
        Bound(np.zeros(2), np.zeros(3))
    with pytest.raises(MalformedError, match="shape"):
        Bound(np.zeros(2), np.zeros(2)).compare(np.zeros((2, 1)))
