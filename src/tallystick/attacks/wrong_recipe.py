"""The training follows another recipe than the declared one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tallystick.attacks.attack import Attack, Forger, accepted, rejected
from tallystick.attacks.dishonest import Batches, DishonestTrainer, train_on
from tallystick.attacks.forging import find_scene, recipe_of
from tallystick.frameworks.torch.training.trainer import Observation, Trainer
from tallystick.store.run import RunDirectory
from tallystick.transcripts.recipe import OptimizerRecipe, Recipe
from tallystick.transcripts.spec import Spec
from tallystick.workloads.plan import classes
from tallystick.workloads.schedule import learning_rate

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

ATTACKS = (
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
