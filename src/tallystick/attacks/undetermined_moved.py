"""Weights that no replay determines are moved at every anchor, as far as the learning rates reach.

Where a gradient is only rounding, honest stacks differ by whole steps. So a tolerant audit takes these elements from
its own replay. A forger may put any value there that the reach screen allows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tallystick.attacks.attack import Attack, accepted, rejected
from tallystick.attacks.dishonest import Batches, DishonestTrainer, retrain
from tallystick.audits.undetermined import find_undetermined
from tallystick.errors import UsageError
from tallystick.frameworks.torch.training.trainer import Observation
from tallystick.store.run import RunDirectory
from tallystick.tensors.tensor import Tensor
from tallystick.tolerances.projection import Projection
from tallystick.tolerances.reach import direction_bound
from tallystick.transcripts.spec import Spec
from tallystick.workloads.plan import projection_seed
from tallystick.workloads.schedule import learning_rate

if TYPE_CHECKING:
    import torch

State = Mapping[str, Tensor]
SHARE_OF_REACH = 0.99


class PushingTrainer(DishonestTrainer):
    """Trains from the recipe and, before each anchor, moves undetermined weights to the end of their reach.

    The moves come in pairs that cancel in the sketch of the weights; the seed of the sketch is public. A pair can move
    in two directions, and the one that raises the loss is chosen.
    """

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self._projection = Projection(projection_seed(spec), spec.recorded.projection_width)
        self._start, self.moved = _copied(self.state()), 0

    def step(self, micro_batches: Batches) -> Observation:
        """One honest step, and a push if an anchor follows."""
        seen = super().step(micro_batches)
        if self.index % self.declared.record.anchor_stride == 0 or self.index == self.declared.training.steps:
            self._push()
            self._start = _copied(self.state())
        return seen

    def _push(self) -> None:
        state, training = _copied(self.state()), self.declared.training
        masks = find_undetermined(state, training.dtype, self._start, self.declared.optimizer.betas[1])
        slopes = {name: _gradient(parameter) for name, parameter in self.model.named_parameters()}
        kept, reach = self._reach()
        for name, mask in masks.items():
            weight = f"weights.{name}"
            honest = state[weight].array()
            room = SHARE_OF_REACH * reach - np.abs(honest - kept * self._start[weight].array())
            moves = self._moves(weight, np.flatnonzero(mask), np.maximum(room, 0).ravel(), slopes[name].ravel())
            state[weight] = Tensor.of((honest + moves.reshape(mask.shape)).astype(honest.dtype))
        self.moved = sum(int(mask.sum()) for mask in masks.values())
        self.restore(state)

    def _moves(self, name: str, places: np.ndarray, room: np.ndarray, slopes: np.ndarray) -> np.ndarray:
        """The moves of one tensor, flat; the two moves of each pair cancel in their column of the sketch."""
        width, moves = self._projection.width, np.zeros(room.size)
        rows = self._projection.signs(name, -(-room.size // width))
        for column in range(width):
            in_column = places[places % width == column]
            for one, other in zip(in_column[::2], in_column[1::2], strict=False):
                up, down = int(rows[one // width]), -int(rows[other // width])
                size = math.copysign(min(room[one], room[other]), up * slopes[one] + down * slopes[other])
                moves[one], moves[other] = up * size, down * size
        return moves

    def _reach(self) -> tuple[float, float]:
        """The factor of a weight after decay over the segment, and how far AdamW can move it (`tolerances.reach`)."""
        kept, reach, settings = 1.0, 0.0, self.declared.optimizer
        for step in range(int(self._start["position.step"].values()) + 1, self.index + 1):
            rate = learning_rate(self.declared, step)
            kept *= 1 - rate * settings.weight_decay
            reach = reach * abs(1 - rate * settings.weight_decay) + rate * direction_bound(settings.betas, step)
        return kept, reach


def forge(run: Path, out: Path) -> None:
    """Train from the recipe, and move the undetermined weights at every anchor."""
    trainer = PushingTrainer(RunDirectory(run).spec())
    retrain(run, out, trainer)
    if not trainer.moved:
        raise UsageError("this forgery moves weights that no replay determines, and this run has none")


def _copied(state: State) -> dict[str, Tensor]:
    return {name: tensor.copy() for name, tensor in state.items()}


def _gradient(parameter: torch.nn.Parameter) -> np.ndarray:
    if parameter.grad is None:
        return np.zeros(tuple(parameter.shape), np.float32)
    return parameter.grad.detach().float().cpu().numpy()


WITHIN_REACH = accepted("every weight moved no further than its learning rates reach")
SIZE = "honest stacks differ as much in these weights; their number and effect are stated below"

ATTACKS = (
    Attack(
        name="undetermined-moved",
        change="weights that no replay determines are moved to the end of their reach, past the sketch; all made anew",
        forge=forge,
        reference="gpt2",
        screens=WITHIN_REACH,
        exact=rejected("state"),
        tolerant=accepted(SIZE),
    ),
    Attack(
        name="undetermined-moved-bf16",
        change="the same in bfloat16, where more is undetermined",
        forge=forge,
        reference="gpt2-bf16",
        screens=WITHIN_REACH,
        exact=rejected("state"),
        tolerant=accepted(SIZE),
    ),
)
