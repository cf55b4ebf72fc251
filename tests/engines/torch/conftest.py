"""Small recipes and random batches for trainers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from tallystick.engines.torch.training.trainer import Trainer
from tallystick.formats.recipe import Recipe

VOCABULARY = 256


@pytest.fixture(autouse=True)
def as_found(one_thread: None) -> Iterator[None]:
    """Leaves the global generator as it was found."""
    held = torch.get_rng_state()
    yield
    torch.set_rng_state(held)


@pytest.fixture
def trainer_of(recipe_of: Callable[..., Any]) -> Callable[..., Trainer]:
    """A trainer of the tiny recipe, with dropout, and with some of its fields replaced."""
    return lambda *changes: Trainer(recipe_of(*changes), VOCABULARY)


@pytest.fixture
def batches_of() -> Callable[[Recipe, int], list[dict[str, np.ndarray]]]:
    """The micro-batches of step `index`: random tokens."""

    def draw(recipe: Recipe, index: int) -> list[dict[str, np.ndarray]]:
        generator = np.random.default_rng(index)
        shape = (recipe.training.accumulation, recipe.training.batch, recipe.training.sequence)
        inputs, targets = (generator.integers(0, VOCABULARY, shape) for _ in range(2))
        return [{"inputs": i, "targets": t} for i, t in zip(inputs, targets, strict=True)]

    return draw
