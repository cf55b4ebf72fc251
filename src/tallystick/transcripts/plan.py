"""How a spec and its data become the batches of a step: one definition for prover and verifier."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tallystick.commitments import digest_bytes
from tallystick.datasets import BatchPlan, Dataset
from tallystick.transcripts.recipe import Recipe
from tallystick.transcripts.spec import Spec


def batch_plan(spec: Spec, dataset: Dataset) -> BatchPlan:
    """Which examples each step consumes, from the data root and the seed alone."""
    recipe, root = spec.recipe, spec.data_root
    assert recipe is not None  # a batch plan exists only for a recipe
    assert root is not None
    return BatchPlan(
        root,
        recipe.training.seed,
        dataset.count(recipe.training.sequence),
        recipe.data.validation,
        recipe.examples_per_step,
    )


def micro_batches(recipe: Recipe, dataset: Dataset, indices: np.ndarray) -> Iterator[dict[str, np.ndarray]]:
    """The batches of one step in the order in which their gradients are summed."""
    for part in np.split(indices, recipe.training.accumulation):
        yield dataset.batch(part, recipe.training.sequence)


def projection_seed(spec: Spec) -> bytes:
    """The public seed of the projections of a run: 32 bytes, fixed with the spec."""
    return digest_bytes(spec.identity)
