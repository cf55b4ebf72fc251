"""An undeclared batch is used for training between two recorded steps."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from tallystick.attacks.attack import Attack, accepted, rejected
from tallystick.attacks.data_substituted import backwards
from tallystick.attacks.dishonest import Batches, DishonestTrainer, train_on
from tallystick.attacks.forging import find_scene
from tallystick.frameworks.torch.training.trainer import Observation
from tallystick.store.run import RunDirectory
from tallystick.transcripts.spec import Spec
from tallystick.workloads.schedule import learning_rate

PACE = 0.1


class MoonlightingTrainer(DishonestTrainer):
    """Trains on one undeclared batch before a given step; all counters stay correct."""

    def __init__(self, spec: Spec, step: int) -> None:
        super().__init__(spec)
        self._before_step = step

    def step(self, micro_batches: Batches) -> Observation:
        """The declared step; before one of them an undeclared one."""
        batches = list(micro_batches)
        if self.index + 1 == self._before_step:
            self._learn_secretly(batches)
        return super().step(batches)

    def _learn_secretly(self, batches: list[Mapping[str, np.ndarray]]) -> None:
        super().step([backwards(0, batch) for batch in batches])
        self.index -= 1
        for slots in self.optimizer.state.values():
            if "step" in slots:
                slots["step"] -= 1


class CarefulTrainer(MoonlightingTrainer):
    """Moves the weights a little along the gradient of the undeclared batch, and does not touch the moments."""

    def _learn_secretly(self, batches: list[Mapping[str, np.ndarray]]) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        for batch in batches:
            self._accumulate(backwards(0, batch))
        pace = PACE * learning_rate(self.declared, self.index + 1)
        for weight in self.model.parameters():
            if weight.grad is not None:
                weight.data.sub_(weight.grad, alpha=pace / max(1e-12, float(weight.grad.abs().max())))


def forge(run: Path, out: Path) -> None:
    """Take one undeclared step of the optimizer in the middle of a segment."""
    _forge_by(MoonlightingTrainer, run, out)


def forge_carefully(run: Path, out: Path) -> None:
    """Follow the gradient of an undeclared batch for a tenth of a step, without the optimizer."""
    _forge_by(CarefulTrainer, run, out)


def _forge_by(trainer: type[MoonlightingTrainer], run: Path, out: Path) -> None:
    honest = RunDirectory(run)
    scene = find_scene(honest)
    train_on(run, out, scene.middle, trainer(honest.spec(), scene.step))


ATTACKS = (
    Attack(
        name="hidden-batch",
        change="an undeclared batch is learned between two recorded steps; all counters stay right",
        forge=forge,
        screens=rejected("second moment"),
        exact=rejected("loss", "projection summary", "state"),
        tolerant=rejected("weights residual"),
    ),
    Attack(
        name="hidden-batch-careful",
        change="an undeclared batch moves the weights by a tenth of a step at most, past the optimizer's moments",
        forge=forge_carefully,
        screens=accepted("moments are untouched and the weights stay within reach"),
        exact=rejected("projection summary", "state"),
        tolerant=rejected("weights residual"),
    ),
)
