"""Limits of somebody's own run may lie above the shipped ones, and not arbitrarily far."""

from __future__ import annotations

import math

import pytest

from tallystick.audits.limits import MULTIPLE_MAX, LimitsEntry, StateLimits, compared, shipped_calibration, too_wide

SHIPPED = shipped_calibration().entries


def scaled(entry: LimitsEntry, factor: float) -> LimitsEntry:
    """The entry with all of its limits multiplied."""
    limits = {group: getattr(entry, group).model_dump(exclude_none=True) for group in ("weights", "memory")}
    groups = {group: StateLimits(**{n: factor * value for n, value in each.items()}) for group, each in limits.items()}
    other = {"projection": factor * entry.projection, "loss_band": factor * entry.loss_band}
    return entry.model_copy(update={**groups, **other})


def usual(window: int = 8) -> LimitsEntry:
    """The shipped limits of a language model under AdamW in F32, from the start."""
    table = shipped_calibration()
    found = table.entry_at(("language", "adamw", "fp32"), 0, window)
    assert found is not None
    return found


@pytest.mark.parametrize("entry", SHIPPED, ids=lambda e: f"{e.family} {e.optimizer} {e.dtype} {e.window} {e.from_step}")
def test_the_shipped_limits_are_not_too_wide(entry: LimitsEntry) -> None:
    assert too_wide(entry) == []
    assert all(math.isclose(limit, base) for limit, base in compared(entry).values())


def test_healthy_limits_are_taken_and_wide_ones_named() -> None:
    assert too_wide(scaled(usual(), 0.5 * MULTIPLE_MAX)) == []
    wide = too_wide(scaled(usual(), 2 * MULTIPLE_MAX))
    assert any(line.startswith("weights overall: 0.0184, 200 times the shipped 9.2e-05") for line in wide)
    assert {line.partition(":")[0] for line in wide} >= {"loss", "projection", "memory worst tensor"}


@pytest.mark.parametrize("field", ["projection", "loss_band"])
def test_one_wide_limit_is_enough(field: str) -> None:
    assert len(too_wide(usual().model_copy(update={field: 200 * getattr(usual(), field)}))) == 1


def test_no_multiple_leaves_open_a_large_share_of_an_update() -> None:
    """Over 32 steps the shipped limit is large itself: a tenth of the update is only 38 times as much."""
    wide = usual(32).weights.model_copy(update={"overall": 0.1})
    assert any(
        "more than 0.05 of an update" in line for line in too_wide(usual(32).model_copy(update={"weights": wide}))
    )


def test_longer_segments_and_larger_models_drift_further() -> None:
    entry = scaled(usual(32), 3.0)
    longer = entry.model_copy(update={"window": 320})
    assert too_wide(scaled(longer, 5.0)) == []
    larger = scaled(usual(), 24 * 0.5 * MULTIPLE_MAX)
    assert too_wide(larger) != []
    assert too_wide(larger.model_copy(update={"parameters": 134_000_000, "weights": usual().weights})) == []
