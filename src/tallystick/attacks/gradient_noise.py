"""One step takes a gradient with noise in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tallystick.attacks.attack import Attack, accepted, rejected
from tallystick.attacks.dishonest import DishonestTrainer, train_on
from tallystick.attacks.forging import find_scene
from tallystick.store.run import RunDirectory
from tallystick.transcripts.spec import Spec

SHARE_OF_NORM = 1e-2


class NoisyTrainer(DishonestTrainer):
    """Adds noise to each gradient in one step, as a fraction of its norm; it does not touch the random generators."""

    def __init__(self, spec: Spec, noisy_step: int, share: float = SHARE_OF_NORM) -> None:
        super().__init__(spec)
        self._noisy_step, self._share = noisy_step, share
        self.optimizer.register_step_pre_hook(self._disturb)

    def _disturb(self, *_: Any) -> None:
        if self.index + 1 != self._noisy_step:
            return
        noise = np.random.default_rng(0)
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                drawn = parameter.grad.new_tensor(noise.standard_normal(parameter.grad.shape))
                parameter.grad.add_(drawn, alpha=self._share * float(parameter.grad.norm() / drawn.norm()))


def forge(run: Path, out: Path) -> None:
    """Continue honestly from the middle anchor, except for one noisy step."""
    honest = RunDirectory(run)
    scene = find_scene(honest)
    train_on(run, out, scene.middle, NoisyTrainer(honest.spec(), scene.step))


ATTACKS = (
    Attack(
        name="gradient-noise",
        change="one step in the middle takes a gradient with noise of 1 % of its norm",
        forge=forge,
        screens=accepted("the step is as long and as smooth as an honest one"),
        exact=rejected("projection summary", "state"),
        tolerant=rejected("weights residual"),
    ),
)
