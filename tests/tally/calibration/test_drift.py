"""Limits follow from honest drift, and a cheat counts by the distance that lies furthest beyond its limit."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from tallystick.audits.limits import MARGIN, shipped_calibration
from tallystick.tally.calibration.drift import (
    LEAST,
    LONGER_MARGIN,
    Distances,
    Drift,
    limits_of,
    limits_over,
    round_up,
)

SMALL = Distances(1e-5, 2e-5, 3e-3, 4e-3, 5e-6, "weights.a")
DRIFT = Drift(weights=SMALL, memory=SMALL, projection=1e-4, loss=1e-6, floor=0.1, undetermined=0.0)


@given(st.floats(1e-30, 1e30))
def test_rounding_up_never_makes_a_limit_smaller(value: float) -> None:
    assert value <= round_up(value) <= value * 1.011


def test_limits_leave_the_margin_of_their_window() -> None:
    honest = DRIFT.distances
    assert limits_over(honest, 1)["weights.overall"] == MARGIN * 1e-5
    assert limits_over(honest, 8)["weights.overall"] == LONGER_MARGIN * 1e-5


def test_no_limit_falls_below_the_least_one() -> None:
    assert limits_over({"weights.overall": 0.0, "loss": 0.0}, 1) == {
        "weights.overall": LEAST["overall"],
        "loss": LEAST["loss"],
    }


def test_honest_drift_lies_within_its_own_limits_and_ten_times_of_it_beyond() -> None:
    limits = limits_over(DRIFT.distances, 8)
    assert DRIFT.excess(limits)[0] <= 1.0
    further = replace(DRIFT, weights=replace(SMALL, stretch=10 * SMALL.stretch))
    assert further.excess(limits) == (pytest.approx(10 / LONGER_MARGIN), "weights.stretch")


def test_a_drift_survives_its_json() -> None:
    assert Drift.from_json(DRIFT.to_json()) == DRIFT  # type: ignore[arg-type]


def test_every_limit_of_a_shipped_entry_has_a_distance_to_be_held_against() -> None:
    measured = DRIFT.distances.keys()
    for entry in shipped_calibration().entries:
        assert limits_of(entry).keys() == measured
