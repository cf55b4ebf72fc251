"""The optimizer forgets its moments in the middle of the training."""

from __future__ import annotations

from pathlib import Path

from tallystick.attacks.attack import Attack, accepted, rejected
from tallystick.attacks.dishonest import Batches, DishonestTrainer, train_on
from tallystick.attacks.forging import find_scene
from tallystick.frameworks.torch.training.trainer import Observation
from tallystick.store.run import RunDirectory
from tallystick.transcripts.spec import Spec

MOMENTS = ("exp_avg", "exp_avg_sq", "momentum_buffer")


class ForgetfulTrainer(DishonestTrainer):
    """Sets moments of its optimizer to zero before one step; the step counters stay correct."""

    def __init__(self, spec: Spec, forgets: tuple[str, ...], forgetful_step: int) -> None:
        super().__init__(spec)
        self._forgets, self._forgetful_step = forgets, forgetful_step

    def step(self, micro_batches: Batches) -> Observation:
        """One step; before one of them the moments are set to zero."""
        if self.index + 1 == self._forgetful_step:
            for slots in self.optimizer.state.values():
                for name in self._forgets:
                    if name in slots:
                        slots[name].zero_()
        return super().step(micro_batches)


def forge(run: Path, out: Path) -> None:
    """Set all moments to zero before a step in the middle."""
    _forget(run, out, MOMENTS)


def forge_first_moment(run: Path, out: Path) -> None:
    """Set only the first moments to zero, which the second-moment screen does not check."""
    _forget(run, out, ("exp_avg", "momentum_buffer"))


def _forget(run: Path, out: Path, moments: tuple[str, ...]) -> None:
    honest = RunDirectory(run)
    scene = find_scene(honest)
    train_on(run, out, scene.middle, ForgetfulTrainer(honest.spec(), moments, scene.step))


ATTACKS = (
    Attack(
        name="optimizer-reset",
        change="all moments of the optimizer are set to zero before one step",
        forge=forge,
        screens=rejected("second moment"),
        exact=rejected("projection summary", "state"),
        tolerant=rejected("weights residual"),
    ),
    Attack(
        name="optimizer-reset-first-moment",
        change="the first moments of the optimizer are set to zero before one step",
        forge=forge_first_moment,
        screens=accepted("first moments may change their sign at any time"),
        exact=rejected("projection summary", "state"),
        tolerant=rejected("weights residual"),
    ),
)
