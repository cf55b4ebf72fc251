"""The shipped limits, the figures they rest on and the page that shows them belong together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tallystick.audits.limits import Calibration, shipped_calibration
from tallystick.tally.calibration.page import render_page

ROOT = Path(__file__).parents[3]
LEAST_MARGIN = 4.0 * 0.98  # both are rounded up to three digits


@pytest.fixture(scope="module")
def figures() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / "docs/data/power.json").read_bytes())
    return found


def test_the_figures_are_those_of_the_shipped_limits(figures: dict[str, Any]) -> None:
    assert figures["calibration"] == shipped_calibration().digest_as("calibration")


def test_the_page_is_what_limits_and_figures_render_to(figures: dict[str, Any]) -> None:
    assert (ROOT / "docs/tolerances.md").read_text() == render_page(shipped_calibration(), figures)


def test_another_limit_would_render_to_another_page(figures: dict[str, Any]) -> None:
    entries = shipped_calibration().entries
    changed = entries[0].model_copy(update={"loss_band": 1.0})
    other: Calibration = shipped_calibration().model_copy(update={"entries": (changed, *entries[1:])})
    assert render_page(other, figures) != render_page(shipped_calibration(), figures)


def test_every_limit_leaves_honest_drift_a_factor_of_four() -> None:
    for entry in shipped_calibration().entries:
        limits = entry.weights.model_dump()
        for path, distance in entry.honest_max.items():
            group, _, name = path.rpartition(".")
            if group == "weights":
                assert limits[name] >= LEAST_MARGIN * distance, (entry.optimizer, entry.dtype, entry.window, path)


def test_held_out_stacks_and_seeds_lie_within_every_limit() -> None:
    for entry in shipped_calibration().entries:
        assert entry.held_out_segments > 0
        limits = entry.memory.model_dump()
        for path, distance in entry.held_out_max.items():
            group, _, name = path.rpartition(".")
            if group == "memory":
                assert distance <= limits[name], (entry.optimizer, entry.dtype, entry.window, path)


def test_short_segments_of_language_models_in_fp32_withdraw_no_claim() -> None:
    short = [entry for entry in shipped_calibration().entries if entry.family == "language" and entry.window <= 8]
    assert not any(entry.withdrawn for entry in short if entry.dtype == "fp32")


def test_bf16_names_the_cheats_that_it_does_not_tell_from_honest_drift() -> None:
    half = [entry for entry in shipped_calibration().entries if entry.dtype == "bf16"]
    assert all({"tokens in one step 1", "gradient noise 0.01"} <= set(entry.withdrawn) for entry in half)
