"""The learning rate of every step follows from the recipe alone."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from tallystick.formats.recipe import Recipe, learning_rate

RecipeOf = Callable[..., Recipe]


def rates(recipe: Recipe) -> list[float]:
    return [learning_rate(recipe, step) for step in range(1, recipe.training.steps + 1)]


def scheduled(recipe_of: RecipeOf, steps: int = 10, **schedule: Any) -> Recipe:
    return recipe_of({"optimizer": {"learning_rate": 1.0}, "training": {"steps": steps}, "schedule": schedule})


def test_constant_stays_at_the_peak_after_its_warm_up(recipe_of: RecipeOf) -> None:
    assert rates(scheduled(recipe_of, 5, kind="constant", warmup_steps=2)) == [0.5, 1.0, 1.0, 1.0, 1.0]


def test_linear_ends_at_the_final_share(recipe_of: RecipeOf) -> None:
    found = rates(scheduled(recipe_of, 6, kind="linear", warmup_steps=2, final_share=0.2))
    assert found == pytest.approx([0.5, 1.0, 0.8, 0.6, 0.4, 0.2])


def test_cosine_is_half_way_in_the_middle_and_ends_at_the_final_share(recipe_of: RecipeOf) -> None:
    found = rates(scheduled(recipe_of, 10, kind="cosine", warmup_steps=0, final_share=0.1))
    assert found[4] == pytest.approx(0.55)
    assert found[-1] == pytest.approx(0.1)


def test_a_run_that_is_all_warm_up_ends_at_the_peak(recipe_of: RecipeOf) -> None:
    assert rates(scheduled(recipe_of, 4, kind="cosine", warmup_steps=4)) == [0.25, 0.5, 0.75, 1.0]


@given(st.sampled_from(["constant", "linear", "cosine"]), st.integers(1, 40), st.floats(0, 1), st.integers(0, 40))
@settings(deadline=None, max_examples=60)
def test_a_rate_is_never_negative_nor_above_the_peak_and_falls_after_the_warm_up(
    recipe_of: RecipeOf, kind: str, steps: int, final: float, warmup: int
) -> None:
    warmup = min(warmup, steps)
    found = rates(scheduled(recipe_of, steps, kind=kind, warmup_steps=warmup, final_share=final))
    assert all(-1e-15 <= rate <= 1.0 + 1e-15 for rate in found)
    after = found[warmup:]
    assert all(later <= earlier + 1e-15 for earlier, later in itertools.pairwise(after))


ROOT_HALF = math.sqrt(0.5)

# Worked out by hand from `spec/spec.md` for η = 2, w = 2, n = 10, f = 0.25, so that p = (s − 2) / 8.
BY_HAND = {
    "constant": {1: 1.0, 2: 2.0, 3: 2.0, 6: 2.0, 10: 2.0},
    "linear": {1: 1.0, 2: 2.0, 3: 1.8125, 6: 1.25, 8: 0.875, 10: 0.5},
    "cosine": {
        1: 1.0,
        2: 2.0,
        4: 2 * (0.25 + 0.375 * (1 + ROOT_HALF)),
        6: 1.25,
        8: 2 * (0.25 + 0.375 * (1 - ROOT_HALF)),
        10: 0.5,
    },
}


@pytest.mark.parametrize(("kind", "step"), [(kind, step) for kind, known in BY_HAND.items() for step in known])
def test_a_rate_is_what_the_page_says(recipe_of: RecipeOf, kind: str, step: int) -> None:
    schedule = {"kind": kind, "warmup_steps": 2, "final_share": 0.25}
    recipe = recipe_of({"optimizer": {"learning_rate": 2.0}, "training": {"steps": 10}, "schedule": schedule})
    assert learning_rate(recipe, step) == pytest.approx(BY_HAND[kind][step], rel=1e-15)


@pytest.mark.parametrize(("kind", "wanted"), [("constant", 1.0), ("linear", 0.25), ("cosine", 0.25)])
def test_a_run_of_one_step_without_warm_up_has_a_rate(recipe_of: RecipeOf, kind: str, wanted: float) -> None:
    assert rates(scheduled(recipe_of, 1, kind=kind, warmup_steps=0, final_share=0.25)) == pytest.approx([wanted])
