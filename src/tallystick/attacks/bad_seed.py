"""The training starts from another seed than the declared one: a chosen or poisoned initial state."""

from __future__ import annotations

from pathlib import Path

from tallystick.attacks.attack import Attack, accepted, rejected
from tallystick.attacks.dishonest import DishonestTrainer, retrain
from tallystick.attacks.forging import recipe_of
from tallystick.store.run import RunDirectory
from tallystick.transcripts.spec import Spec


def forge(run: Path, out: Path) -> None:
    """Train from the initial state of the next seed and declare the old one."""
    spec = RunDirectory(run).spec()
    retrain(run, out, trainer_of_next_seed(spec))


def trainer_of_next_seed(spec: Spec) -> DishonestTrainer:
    """A trainer whose model is initialised from the seed after the declared one."""
    recipe = recipe_of(spec)
    steps = recipe.training.model_copy(update={"seed": recipe.training.seed + 1})
    return DishonestTrainer(spec, recipe.model_copy(update={"training": steps}))


ATTACKS = (
    Attack(
        name="bad-seed",
        change="the initial weights are those of another seed; every step after them is honest",
        forge=forge,
        screens=accepted("an initial state of another seed looks like any other"),
        exact=rejected("initial state"),
        tolerant=rejected("initial state"),
    ),
)
