"""Cheats of graded size: ways in which a prover may depart from the recipe that it declares.

Every cheat keeps the declared form of the work: the number of steps, plausible counters, and the losses that it really
observed. Only the computation is not the declared one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tallystick.calibration.training.drift import Outcome
from tallystick.calibration.training.segments import Bench, Stretch, reached
from tallystick.datasets.samples import Dataset
from tallystick.frameworks.torch.training.sketch import Sketcher
from tallystick.frameworks.torch.training.trainer import Trainer
from tallystick.tensors.tensor import Tensor
from tallystick.transcripts.recipe import Recipe
from tallystick.workloads.plan import micro_batches

Rows = np.ndarray
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Moment:
    """One step of a cheated segment: its index, and `touched`, the only step that a one-step cheat changes."""

    bench: Bench
    index: int
    touched: int
    random: np.random.Generator

    @property
    def is_touched(self) -> bool:
        """Whether a one-step cheat changes this step."""
        return self.index == self.touched


def _planned(moment: Moment, _size: float) -> Rows:
    return moment.bench.plan.indices(moment.index)


@dataclass(frozen=True)
class Kind:
    """A family of cheats: how it changes the recipe, the rows, their content or the gradients.

    `declared` are the precisions of the runs to which it applies; `unit` is the unit of its size.
    """

    unit: str
    recipe: Callable[[Recipe, float], Recipe] = lambda recipe, _size: recipe
    rows: Callable[[Moment, float], Rows] = _planned
    content: Callable[[Arrays, Moment, float], Arrays] = lambda arrays, _moment, _size: arrays
    is_noisy: bool = False
    skips_last: bool = False
    declared: frozenset[str] = field(default=frozenset({"fp32", "bf16"}))


def _optimizer(recipe: Recipe, **changes: object) -> Recipe:
    return recipe.model_copy(update={"optimizer": recipe.optimizer.model_copy(update=changes)})


def _raised(setting: str) -> Callable[[Recipe, float], Recipe]:
    """Multiply a setting of the optimizer by 1 + size."""
    return lambda recipe, size: _optimizer(recipe, **{setting: getattr(recipe.optimizer, setting) * (1 + size)})


def _momentum(recipe: Recipe, size: float) -> Recipe:
    settings = recipe.optimizer
    if settings.kind == "sgd":
        return _optimizer(recipe, momentum=settings.momentum - size)
    return _optimizer(recipe, betas=(settings.betas[0], settings.betas[1] - size))


def _half_precision(recipe: Recipe, _size: float) -> Recipe:
    return recipe.model_copy(update={"training": recipe.training.model_copy(update={"dtype": "bf16"})})


def _duplicate_rows(moment: Moment, size: float) -> Rows:
    rows = _planned(moment, size).copy()
    if moment.is_touched:
        first, *others = moment.random.choice(len(rows), int(size) + 1, replace=False)
        rows[others] = rows[first]
    return rows


def _undeclared_rows(moment: Moment, size: float) -> Rows:
    rows = _planned(moment, size).copy()
    places = moment.random.choice(len(rows), int(size), replace=False)
    rows[places] = moment.random.choice(moment.bench.plan.validation, int(size), replace=False)
    return rows


def _swapped_batches(moment: Moment, _size: float) -> Rows:
    other = moment.index + 1 if moment.index % 2 else moment.index - 1
    return moment.bench.plan.indices(other)


def _change_tokens(arrays: Arrays, moment: Moment, size: float) -> Arrays:
    """Change `size` random tokens of the inputs, or invert as many pixels, in one step."""
    if not moment.is_touched:
        return arrays
    name = "inputs" if "inputs" in arrays else "images"
    changed = arrays[name].copy()
    places = moment.random.choice(changed.size, int(size), replace=False)
    flat = changed.reshape(-1)
    if name == "inputs":
        flat[places] = (flat[places] + moment.random.integers(1, 256, len(places))) % 256
    else:
        flat[places] = 1.0 - flat[places]
    return arrays | {name: changed}


KINDS = {
    "learning rate": Kind("of the rate", recipe=_raised("learning_rate")),
    "tokens in one step": Kind("tokens or pixels", content=_change_tokens),
    "duplicate rows in one step": Kind("rows", rows=_duplicate_rows),
    "undeclared rows in each step": Kind("rows", rows=_undeclared_rows),
    "gradient noise": Kind("of the gradient", is_noisy=True),
    "batches swapped": Kind("pairs", rows=_swapped_batches),
    "bf16 declared fp32": Kind("precision", recipe=_half_precision, declared=frozenset({"fp32"})),
    "last step skipped": Kind("steps", skips_last=True),
    "weight decay": Kind("of the decay", recipe=_raised("weight_decay")),
    "momentum or beta2": Kind("less", recipe=_momentum),
}


@dataclass(frozen=True)
class Cheat:
    """One cheat of one size."""

    kind: str
    size: float

    @property
    def name(self) -> str:
        """The name of the cheat in tables."""
        return f"{self.kind} {self.size:g}"

    @property
    def family(self) -> Kind:
        """The family of the cheat."""
        return KINDS[self.kind]

    def fits(self, dtype: str) -> bool:
        """Whether the cheat applies to a run declared in `dtype`."""
        return dtype in self.family.declared

    def trainer(self, bench: Bench) -> Trainer:
        """The trainer that the prover really runs."""
        return bench.trainer(self.family.recipe(bench.recipe, self.size))


CLAIMED = (
    Cheat("learning rate", 1e-3),
    Cheat("learning rate", 1e-2),
    Cheat("tokens in one step", 1),
    Cheat("duplicate rows in one step", 1),
    Cheat("undeclared rows in each step", 1),
    Cheat("batches swapped", 1),
    Cheat("bf16 declared fp32", 1),
    Cheat("gradient noise", 1e-4),
    Cheat("gradient noise", 1e-3),
    Cheat("gradient noise", 1e-2),
    Cheat("last step skipped", 1),
    Cheat("weight decay", 0.1),
    Cheat("momentum or beta2", 1e-3),
)
"""The cheats tried on every calibration; one that the limits of an entry miss is listed there as withdrawn."""


def train_falsely(
    bench: Bench, trainer: Trainer, cheat: Cheat, stretch: Stretch, touched: int, seed: int
) -> Iterator[tuple[int, Outcome]]:
    """Take the steps of a stretch with the cheat; yields every end and the outcome that the prover would claim."""
    sketcher = Sketcher(bench.projection, trainer.weights())
    random = np.random.default_rng(seed)
    trainer.restore(bench.anchor(stretch.start))
    hook = trainer.optimizer.register_step_pre_hook(_noise(cheat, seed)) if cheat.family.is_noisy else None
    for index in range(stretch.start + 1, max(stretch.ends) + 1):
        is_end = index in stretch.ends
        unmoved = reached(trainer, sketcher, 0.0) if is_end and cheat.family.skips_last else None
        moment = Moment(bench, index, touched, random)
        loss = trainer.step(_batches(bench.dataset, trainer.recipe, cheat, moment)).loss
        if is_end:
            yield index, _counted(unmoved, loss) if unmoved else reached(trainer, sketcher, loss)
    if hook is not None:
        hook.remove()


def _batches(dataset: Dataset, recipe: Recipe, cheat: Cheat, moment: Moment) -> Iterator[Arrays]:
    rows = cheat.family.rows(moment, cheat.size)
    for arrays in micro_batches(recipe, dataset, rows):
        yield cheat.family.content(arrays, moment, cheat.size)


def _noise(cheat: Cheat, seed: int) -> Callable[..., None]:
    """A hook that adds Gaussian noise to every gradient; its norm is `size` times that of the gradient, per tensor."""
    import torch

    generator = torch.Generator().manual_seed(seed)

    def add(optimizer: Any, *_: object) -> None:
        for parameter in (p for group in optimizer.param_groups for p in group["params"] if p.grad is not None):
            noise = torch.randn(parameter.grad.shape, generator=generator)
            parameter.grad.add_(noise, alpha=cheat.size * float(parameter.grad.norm()) / parameter.numel() ** 0.5)

    return add


def _counted(outcome: Outcome, loss: float) -> Outcome:
    """The state before a skipped step, with every counter incremented as a careful prover would do it."""
    counters = {
        name: Tensor.of(np.asarray(tensor.array() + 1, tensor.array().dtype))
        for name, tensor in outcome.state.items()
        if name.endswith((".step", "num_batches_tracked"))
    }
    return Outcome({**outcome.state, **counters}, loss, outcome.sketch)
