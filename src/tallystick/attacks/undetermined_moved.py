"""The weights that no replay determines are moved, at every anchor and as far as the learning rates reach.

Where a gradient is rounding only, honest stacks differ by whole steps, and a tolerant audit takes these elements from
its own replay. A forger may put anything there that the reach screen allows.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from tallystick.attacks.attack import Attack, Forger, accepted, rejected
from tallystick.attacks.dishonest import Batches, DishonestTrainer, retrain
from tallystick.audits.undetermined import Mask, find_undetermined
from tallystick.errors import UsageError
from tallystick.frameworks.torch.trainer import Observation
from tallystick.store import RunDirectory
from tallystick.tensors import Tensor
from tallystick.tolerances import Projection
from tallystick.tolerances.reach import direction_bound
from tallystick.transcripts import Spec, learning_rate, projection_seed

State = Mapping[str, Tensor]
SHARE_OF_REACH = 0.99


class PushingTrainer(DishonestTrainer):
    """Trains by the recipe and moves, before each anchor, whatever is undetermined as far as it can go.

    `balanced` moves come in pairs that cancel in the sketch of the weights, which its public seed allows; the others
    follow the gradient of the loss upwards.
    """

    def __init__(self, spec: Spec, balanced: bool) -> None:
        super().__init__(spec)
        self._projection = Projection(projection_seed(spec), spec.recorded.projection_width)
        self._balanced, self.moved = balanced, 0
        self._start = _copied(self.state())

    def step(self, micro_batches: Batches) -> Observation:
        """One honest step, and a push where an anchor follows."""
        seen = super().step(micro_batches)
        if self.index % self.declared.record.anchor_stride == 0 or self.index == self.declared.training.steps:
            self._push()
            self._start = _copied(self.state())
        return seen

    def _push(self) -> None:
        state = _copied(self.state())
        masks = find_undetermined(
            state, self.declared.training.dtype, self._start, self.declared.optimizer.betas[1]
        )
        self.moved = sum(int(mask.sum()) for mask in masks.values())
        signs = self._cancelling(masks) if self._balanced else self._uphill(masks)
        kept, reach = self._reach()
        for name, sign in signs.items():
            honest, before = state[f"weights.{name}"].array(), self._start[f"weights.{name}"].array()
            room = SHARE_OF_REACH * reach - np.abs(honest - kept * before)
            step = np.min(room[sign != 0], initial=np.inf) if self._balanced else room
            moved = honest + np.where(sign != 0, sign * np.maximum(step, 0), 0)
            state[f"weights.{name}"] = Tensor.of(moved.astype(honest.dtype))
        self.restore(state)

    def _uphill(self, masks: Mapping[str, Mask]) -> dict[str, np.ndarray]:
        slopes = {name: _gradient(parameter) for name, parameter in self.model.named_parameters()}
        return {name: np.where(mask, np.where(slopes[name] < 0, -1, 1), 0) for name, mask in masks.items()}

    def _cancelling(self, masks: Mapping[str, Mask]) -> dict[str, np.ndarray]:
        """Directions of which each column of the sketch sees as many upwards as downwards."""
        return {name: self._paired(f"weights.{name}", mask) for name, mask in masks.items()}

    def _paired(self, name: str, mask: Mask) -> np.ndarray:
        width, found = self._projection.width, np.zeros(mask.size, np.int64)
        rows = self._projection.signs(name, -(-mask.size // width))
        for column in range(width):
            places = [place for place in np.flatnonzero(mask) if place % width == column]
            for one, other in zip(places[::2], places[1::2], strict=False):
                found[one], found[other] = rows[one // width], -rows[other // width]
        return found.reshape(mask.shape)

    def _reach(self) -> tuple[float, float]:
        """What decay leaves of a weight over the segment, and how far AdamW can carry it (`tolerances.reach`)."""
        kept, reach, settings = 1.0, 0.0, self.declared.optimizer
        for step in range(int(self._start["position.step"].values()) + 1, self.index + 1):
            rate = learning_rate(self.declared, step)
            kept *= 1 - rate * settings.weight_decay
            reach = reach * abs(1 - rate * settings.weight_decay) + rate * direction_bound(settings.betas, step)
        return kept, reach


def pushing(*, balanced: bool) -> Forger:
    """A forger that trains by the recipe and moves the undetermined weights at every anchor."""

    def forge(run: Path, out: Path) -> None:
        trainer = PushingTrainer(RunDirectory(run).spec(), balanced)
        retrain(run, out, trainer)
        if not trainer.moved:
            raise UsageError("this forgery moves weights that no replay determines, and this run has none")

    return forge


def _copied(state: State) -> dict[str, Tensor]:
    return {name: tensor.copy() for name, tensor in state.items()}


def _gradient(parameter: torch.nn.Parameter) -> np.ndarray:
    if parameter.grad is None:
        return np.zeros(tuple(parameter.shape), np.float32)
    return parameter.grad.detach().float().cpu().numpy()


WITHIN_REACH = accepted("every weight moved no further than its learning rates reach")
SIZE = "honest stacks differ as much in these weights; how many there are and what they do stands below"

ATTACKS = (
    Attack(
        name="undetermined-moved",
        change="weights that no replay determines are moved to the end of their reach, past the sketch; all made anew",
        forge=pushing(balanced=True),
        reference="gpt2",
        screens=WITHIN_REACH,
        exact=rejected("state"),
        tolerant=accepted(SIZE),
    ),
    Attack(
        name="undetermined-moved-bf16",
        change="the same in bfloat16, where more is undetermined, and up the gradient of the loss",
        forge=pushing(balanced=False),
        reference="gpt2-bf16",
        screens=WITHIN_REACH,
        exact=rejected("state"),
        tolerant=accepted(SIZE),
    ),
)
