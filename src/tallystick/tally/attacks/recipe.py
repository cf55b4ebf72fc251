"""The training follows another recipe, begins from another seed, or names another stack."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tallystick.engines.torch.training.trainer import Observation, Trainer
from tallystick.formats.recipe import OptimizerRecipe, Recipe, learning_rate
from tallystick.formats.spec import Environment, Spec
from tallystick.formats.step_program import classes
from tallystick.formats.store.run import RunDirectory
from tallystick.tally.attacks.forging import (
    Attack,
    Batches,
    DishonestTrainer,
    Forger,
    accepted,
    copy_run,
    find_scene,
    inconclusive,
    recipe_of,
    rejected,
    replace_environment,
    retrain,
    train_on,
)

# The training follows another recipe than the declared one.

RATE_EXCESS = 1.01


class PlainDescentTrainer(DishonestTrainer):
    """Updates the state of the declared optimizer, and moves the weights by plain gradient descent."""

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self.optimizer.register_step_pre_hook(lambda *_: self._remember())
        self.optimizer.register_step_post_hook(lambda *_: self._descend())

    def _remember(self) -> None:
        self._before = {name: weight.detach().clone() for name, weight in self.model.named_parameters()}

    def _descend(self) -> None:
        rate = 0.1 * learning_rate(self.declared, self.index + 1)
        for name, weight in self.model.named_parameters():
            if weight.grad is not None:
                weight.data.copy_(self._before[name] - rate * weight.grad)


class ConstantRateTrainer(DishonestTrainer):
    """Takes every step at the peak learning rate and reports the declared schedule."""

    def step(self, micro_batches: Batches) -> Observation:
        """One step at the peak rate."""
        self.recipe = self.declared.model_copy(
            update={"schedule": self.declared.schedule.model_copy(update={"kind": "constant", "warmup_steps": 0})}
        )
        return super().step(micro_batches)


def higher_rate(recipe: Recipe) -> Recipe:
    """The recipe with a learning rate 1 % above the declared one."""
    return with_optimizer(recipe, learning_rate=recipe.optimizer.learning_rate * RATE_EXCESS)


def heavier_decay(recipe: Recipe) -> Recipe:
    """The recipe with ten times the declared weight decay, or 0.1 if none is declared."""
    return with_optimizer(recipe, weight_decay=10 * recipe.optimizer.weight_decay or 0.1)


def half_precision(recipe: Recipe) -> Recipe:
    """The recipe computed in bfloat16."""
    return recipe.model_copy(update={"training": recipe.training.model_copy(update={"dtype": "bf16"})})


def with_optimizer(recipe: Recipe, **changed: object) -> Recipe:
    """The recipe with other settings of its optimizer."""
    settings = recipe.optimizer.model_dump() | changed
    return recipe.model_copy(update={"optimizer": OptimizerRecipe(**settings)})


def training_by(practise: Callable[[Recipe], Recipe]) -> Forger:
    """A forger that continues from the middle anchor with another recipe and reports the declared one."""

    def forge(run: Path, out: Path) -> None:
        spec = RunDirectory(run).spec()
        _train_on(run, out, DishonestTrainer(spec, practise(recipe_of(spec))))

    return forge


def forge_rate_recorded(run: Path, out: Path) -> None:
    """Continue at a higher learning rate, and state it in the records."""
    spec = RunDirectory(run).spec()
    _train_on(run, out, Trainer(higher_rate(recipe_of(spec)), classes(spec)))


def forge_optimizer(run: Path, out: Path) -> None:
    """Continue with plain gradient descent, but with the moments of the declared optimizer."""
    _train_on(run, out, PlainDescentTrainer(RunDirectory(run).spec()))


def forge_schedule(run: Path, out: Path) -> None:
    """Continue at the peak learning rate throughout."""
    _train_on(run, out, ConstantRateTrainer(RunDirectory(run).spec()))


def _train_on(run: Path, out: Path, trainer: Trainer) -> None:
    train_on(run, out, find_scene(RunDirectory(run)).middle, trainer)


POSSIBLE = "each anchor is one that the declared recipe could have reached on some data"

WRONG_RECIPE = (
    Attack(
        name="wrong-rate-recorded",
        change="the second half is trained at a learning rate 1 % too high, as its records say",
        forge=forge_rate_recorded,
        screens=rejected("record order"),
        exact=rejected("record order"),
        tolerant=rejected("record order"),
    ),
    Attack(
        name="wrong-rate",
        change="the second half is trained at a learning rate 1 % too high; the records state the declared one",
        forge=training_by(higher_rate),
        screens=accepted(POSSIBLE),
        exact=rejected("projection summary", "state"),
        tolerant=rejected("weights residual"),
    ),
    Attack(
        name="wrong-decay",
        change="the second half is trained with ten times the declared weight decay",
        forge=training_by(heavier_decay),
        screens=accepted(POSSIBLE),
        exact=rejected("projection summary", "state"),
        tolerant=rejected("weights residual"),
    ),
    Attack(
        name="wrong-precision",
        change="the second half is computed in bfloat16 and declared as float32",
        forge=training_by(half_precision),
        screens=accepted(POSSIBLE),
        exact=rejected("loss", "projection summary", "state"),
        tolerant=rejected("weights residual"),
    ),
    Attack(
        name="wrong-optimizer",
        change="the second half follows the plain gradient; moments are kept as the declared optimizer would",
        forge=forge_optimizer,
        screens=accepted(POSSIBLE),
        exact=rejected("projection summary", "state"),
        tolerant=rejected("weights residual"),
    ),
    Attack(
        name="wrong-schedule",
        change="the second half is trained at the peak learning rate instead of the declared schedule",
        forge=forge_schedule,
        screens=rejected("reach"),
        exact=rejected("projection summary", "state"),
        tolerant=rejected("weights residual"),
    ),
)


# The training starts from another seed than the declared one: a chosen or poisoned initial state.


def forge_bad_seed(run: Path, out: Path) -> None:
    """Train from the initial state of the next seed and declare the old one."""
    spec = RunDirectory(run).spec()
    retrain(run, out, trainer_of_next_seed(spec))


def trainer_of_next_seed(spec: Spec) -> DishonestTrainer:
    """A trainer whose model is initialised from the seed after the declared one."""
    recipe = recipe_of(spec)
    steps = recipe.training.model_copy(update={"seed": recipe.training.seed + 1})
    return DishonestTrainer(spec, recipe.model_copy(update={"training": steps}))


BAD_SEED = (
    Attack(
        name="bad-seed",
        change="the initial weights are those of another seed; every step after them is honest",
        forge=forge_bad_seed,
        screens=accepted("an initial state of another seed looks like any other"),
        exact=rejected("initial state"),
        tolerant=rejected("initial state"),
    ),
)


# The run names another stack than the one that computed it, so that an exact replay seems impossible.

OTHER_TORCH = "1.13.1"
OTHER_PYTHON = "3.99.0"


def forge_file(run: Path, out: Path) -> None:
    """Edit the environment file and nothing else."""
    forged = copy_run(run, out)
    forged.environment_path.write_bytes(other_stack(forged).to_bytes())


def forge_environment(run: Path, out: Path) -> None:
    """Train from another recipe, and name another stack in environment, header and claim."""
    training_by(higher_rate)(run, out)
    forged = RunDirectory(out)
    replace_environment(forged, other_stack(forged))


def forge_cosmetics(run: Path, out: Path) -> None:
    """Name another version of Python, which changes no bit of the result."""
    forged = copy_run(run, out)
    replace_environment(forged, forged.environment().model_copy(update={"python": OTHER_PYTHON}))


def other_stack(run: RunDirectory) -> Environment:
    """The stated environment with another version of PyTorch."""
    return run.environment().model_copy(update={"torch": OTHER_TORCH})


OTHER_STACK = "different stack: an exact audit does not guess, and says where to go: that stack, or --tolerant"
COSMETIC = "the version of Python decides no bit of the result, so no replay can tell"

ENVIRONMENT_FORGED = (
    Attack(
        name="environment-edited",
        change="environment.json names another version of PyTorch",
        forge=forge_file,
        screens=rejected("environment"),
        exact=rejected("environment"),
        tolerant=rejected("environment"),
        claim=rejected("environment"),
    ),
    Attack(
        name="environment-forged",
        change="a learning rate 1 % too high hides behind another version of PyTorch in environment, header and claim",
        forge=forge_environment,
        screens=accepted("nothing is replayed"),
        exact=inconclusive(OTHER_STACK),
        tolerant=rejected("weights residual"),
    ),
    Attack(
        name="environment-cosmetics-forged",
        change="the honest run names another version of Python in environment, header and claim",
        forge=forge_cosmetics,
        screens=accepted(COSMETIC),
        exact=accepted(COSMETIC),
        tolerant=accepted(COSMETIC),
    ),
)
