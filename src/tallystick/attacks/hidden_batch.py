"""A step is taken between two recorded ones, on data that nobody declared."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from tallystick.attacks.attack import Attack, accepted, rejected
from tallystick.attacks.data_substituted import backwards
from tallystick.attacks.dishonest import Batches, DishonestTrainer, train_on
from tallystick.attacks.forging import find_scene
from tallystick.frameworks.torch.trainer import Observation
from tallystick.store import RunDirectory
from tallystick.transcripts import Spec


class MoonlightingTrainer(DishonestTrainer):
    """Learns from one undeclared batch before a given step; all counters stay right."""

    def __init__(self, spec: Spec, step: int) -> None:
        super().__init__(spec)
        self._before_step = step

    def step(self, micro_batches: Batches) -> Observation:
        """The declared step, and before one of them another one."""
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


def forge(run: Path, out: Path) -> None:
    """Take one undeclared step in the middle of a segment."""
    honest = RunDirectory(run)
    scene = find_scene(honest)
    train_on(run, out, scene.middle, MoonlightingTrainer(honest.spec(), scene.step))


ATTACKS = (
    Attack(
        name="hidden-batch",
        change="an undeclared batch is learned between two recorded steps; all counters stay right",
        forge=forge,
        screens=accepted("one more step is well within reach of a segment"),
        exact=rejected("loss", "projection summary", "state"),
        tolerant=rejected("weights residual"),
    ),
)
