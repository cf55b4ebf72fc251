"""The training uses other data than the declared data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from tallystick.attacks.attack import Attack, Forger, accepted, rejected
from tallystick.attacks.dishonest import Batches, DishonestTrainer, train_on
from tallystick.attacks.forging import copy_run, find_scene
from tallystick.attacks.token_files import forge_tokens
from tallystick.frameworks.torch.training.trainer import Observation
from tallystick.store.run import RunDirectory
from tallystick.transcripts.spec import Spec

Batch = Mapping[str, np.ndarray]
Disguise = Callable[[int, Batch], Batch]


class MisfedTrainer(DishonestTrainer):
    """Receives the declared batches and trains on changed ones; `disguise` maps (step, batch) to the batch used."""

    def __init__(self, spec: Spec, disguise: Disguise) -> None:
        super().__init__(spec)
        self._disguise = disguise

    def step(self, micro_batches: Batches) -> Observation:
        """One step on changed data."""
        return super().step(self._disguise(self.index + 1, batch) for batch in micro_batches)


def backwards(_step: int, batch: Batch) -> Batch:
    """Every example in reverse order; labels of images stay."""
    if "inputs" in batch:
        return {name: values[..., ::-1] for name, values in batch.items()}
    return {**batch, "images": batch["images"][..., ::-1]}


def one_value_of(step: int) -> Disguise:
    """Exchanges one input value in one step: one token, or one pixel."""

    def disguise(index: int, batch: Batch) -> Batch:
        name = "inputs" if "inputs" in batch else "images"
        changed = np.array(batch[name])
        changed.flat[0] = 0 if changed.flat[0] else 1
        return {**batch, name: changed} if index == step else batch

    return disguise


def always_the_first() -> Disguise:
    """Repeats the first batch in every step."""
    seen: list[Batch] = []

    def disguise(_index: int, batch: Batch) -> Batch:
        seen.append(batch)
        return seen[0]

    return disguise


def training_on(disguise: Callable[[int], Disguise]) -> Forger:
    """A forger that continues from the middle anchor on other data; `disguise` receives the step to attack."""

    def forge(run: Path, out: Path) -> None:
        honest = RunDirectory(run)
        scene = find_scene(honest)
        train_on(run, out, scene.middle, MisfedTrainer(honest.spec(), disguise(scene.step)))

    return forge


def forge_file(run: Path, out: Path) -> None:
    """Exchange one token in the file of tokens."""
    forged = copy_run(run, out)

    def exchange(tokens: np.ndarray) -> np.ndarray:
        changed = np.array(tokens)
        changed[0] = 0 if changed[0] else 1
        return changed

    forge_tokens(forged.data_path, exchange)


UNSEEN = "records name the declared batches, and what was really read leaves no trace in an anchor"

ATTACKS = (
    Attack(
        name="data-file-edited",
        change="one token in the file of tokens is exchanged",
        forge=forge_file,
        screens=rejected("data"),
        exact=rejected("data"),
        tolerant=rejected("data"),
        claim=rejected("data"),
    ),
    Attack(
        name="data-substituted",
        change="the second half learns from other text than the declared batches",
        forge=training_on(lambda _: backwards),
        screens=accepted(UNSEEN),
        exact=rejected("loss", "projection summary", "state"),
        tolerant=rejected("loss", "weights residual"),
    ),
    Attack(
        name="one-token-substituted",
        change="one token of one batch is another than the declared one",
        forge=training_on(one_value_of),
        screens=accepted(UNSEEN),
        exact=rejected("projection summary", "state"),
        tolerant=rejected("weights residual"),
    ),
    Attack(
        name="batch-repeated",
        change="the second half learns from the same batch in every step",
        forge=training_on(lambda _: always_the_first()),
        screens=accepted(UNSEEN),
        exact=rejected("loss", "projection summary", "state"),
        tolerant=rejected("loss", "weights residual"),
    ),
)
