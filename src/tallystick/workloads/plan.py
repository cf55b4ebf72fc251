"""How a spec and its data become the batches of a step: one definition for prover and verifier."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tallystick.commitments.digests import digest_bytes
from tallystick.datasets.opened import open_dataset
from tallystick.datasets.order import BatchPlan
from tallystick.datasets.samples import Dataset
from tallystick.transcripts.recipe import Recipe
from tallystick.transcripts.spec import Spec

DIGIT_CLASSES = 10


def batch_plan(spec: Spec, dataset: Dataset) -> BatchPlan:
    """Which examples each step consumes, from the data root and the seed alone."""
    recipe, root = spec.recipe, spec.data_root
    assert recipe is not None  # a batch plan exists only for a recipe
    assert root is not None
    return BatchPlan(
        root,
        recipe.training.seed,
        dataset.count,
        recipe.data.validation,
        recipe.examples_per_step,
    )


def open_data(spec: Spec, folder: Path) -> Dataset:
    """The committed data of a run, cut into the windows of its recipe; raises what `open_dataset` raises."""
    recipe, commitment = spec.recipe, spec.data
    assert recipe is not None  # only a recipe has data
    assert commitment is not None
    return open_dataset(folder, commitment, recipe.training.sequence)


def classes(spec: Spec) -> int:
    """How many tokens or labels the model of a recipe tells apart."""
    commitment = spec.data
    assert commitment is not None
    return DIGIT_CLASSES if commitment.tokens is None else commitment.tokens.vocabulary


def micro_batches(recipe: Recipe, dataset: Dataset, indices: np.ndarray) -> Iterator[dict[str, np.ndarray]]:
    """The batches of one step in the order in which their gradients are summed."""
    for part in np.split(indices, recipe.training.accumulation):
        yield dataset.batch(part)


def projection_seed(spec: Spec) -> bytes:
    """The public seed of the projections of a run: 32 bytes, fixed with the spec."""
    return digest_bytes(spec.identity)
