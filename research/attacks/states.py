"""States that no training gave: in an anchor, in the optimizer, or after the last step."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from tallystick.audits.tolerant import find_undetermined
from tallystick.core.errors import UsageError
from tallystick.core.tensors import Tensor
from tallystick.engines.torch.training.trainer import Observation
from tallystick.formats.recipe import learning_rate
from tallystick.formats.spec import Spec
from tallystick.formats.step_program import projection_seed
from tallystick.formats.store.run import RunDirectory
from tallystick.tally.attacks.forgers import largest_weight, take_back, with_last_move_shortened
from tallystick.tally.attacks.forging import (
    Batches,
    DishonestTrainer,
    copy_run,
    find_scene,
    from_the_middle,
    read_anchor,
    replace_anchor,
    retrain,
    with_final_state,
    with_value,
)
from tallystick.verdicts.distances import Projection
from tallystick.verdicts.reach import direction_bound

if TYPE_CHECKING:
    import torch

SHARE_BELOW_DRIFT: Final = 3e-6
"""So little that an honest run on another stack would differ as much."""
FIRST_MOMENTS: Final = ("exp_avg", "momentum_buffer")


def _a_negative_zero(run: RunDirectory, last: int) -> dict[str, Tensor]:
    state = read_anchor(run, last)
    name = next(name for name, tensor in state.items() if name.endswith(".exp_avg") and not tensor.array().all())
    return with_value(state, name, int(np.argmin(state[name].array() != 0)), -0.0)


def _a_weight_that_is_nan(run: RunDirectory, last: int) -> dict[str, Tensor]:
    state = read_anchor(run, last)
    return with_value(state, largest_weight(state), 0, np.nan)


weights_edited_below_drift = with_final_state(lambda run, n: with_last_move_shortened(run, n, SHARE_BELOW_DRIFT))
sign_of_a_zero = with_final_state(_a_negative_zero)
nan_planted = with_final_state(_a_weight_that_is_nan)


def anchor_replaced(run: Path, out: Path) -> None:
    """Edit the weights of the middle anchor that turned around there, and every record about them."""
    forged = copy_run(run, out)
    scene = find_scene(forged)
    before, middle, after = (read_anchor(forged, mark) for mark in (scene.before, scene.middle, scene.after))
    replace_anchor(forged, scene.middle, take_back(before, middle, after))


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


optimizer_reset = from_the_middle(
    lambda spec, scene: ForgetfulTrainer(spec, (*FIRST_MOMENTS, "exp_avg_sq"), scene.step)
)
# The second-moment screen does not check the first moments.
optimizer_reset_first_moment = from_the_middle(lambda spec, scene: ForgetfulTrainer(spec, FIRST_MOMENTS, scene.step))


# Weights that no replay determines are moved at every anchor, as far as the learning rates reach.
#
# Where a gradient is only rounding, honest stacks differ by whole steps. So a tolerant audit takes these elements from
# its own replay. A forger may put any value there that the reach screen allows.

SHARE_OF_REACH = 0.99


class PushingTrainer(DishonestTrainer):
    """Trains from the recipe and, before each anchor, moves undetermined weights to the end of their reach.

    The moves come in pairs that cancel in the sketch of the weights; the seed of the sketch is public. A pair can move
    in two directions, and the one that raises the loss is chosen.
    """

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self._projection = Projection(projection_seed(spec), spec.recorded.projection_width)
        self._start = {name: tensor.copy() for name, tensor in self.state().items()}
        self.moved = 0

    def step(self, micro_batches: Batches) -> Observation:
        """One honest step, and a push if an anchor follows."""
        seen = super().step(micro_batches)
        if self.index % self.declared.record.anchor_stride == 0 or self.index == self.declared.training.steps:
            self._push()
            self._start = {name: tensor.copy() for name, tensor in self.state().items()}
        return seen

    def _push(self) -> None:
        training = self.declared.training
        state = {name: tensor.copy() for name, tensor in self.state().items()}
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
        """The factor of a weight after decay over the segment, and how far AdamW can move it (`verdicts.reach`)."""
        kept, reach, settings = 1.0, 0.0, self.declared.optimizer
        for step in range(int(self._start["position.step"].values()) + 1, self.index + 1):
            rate = learning_rate(self.declared, step)
            kept *= 1 - rate * settings.weight_decay
            reach = reach * abs(1 - rate * settings.weight_decay) + rate * float(direction_bound(settings.betas, step))
        return kept, reach


def undetermined_moved(run: Path, out: Path) -> None:
    """Train from the recipe, and move the undetermined weights at every anchor."""
    trainer = PushingTrainer(RunDirectory(run).spec())
    retrain(run, out, trainer)
    if not trainer.moved:
        raise UsageError("this forgery moves weights that no replay determines, and this run has none")


undetermined_moved_bf16 = undetermined_moved


def _gradient(parameter: torch.nn.Parameter) -> np.ndarray:
    if parameter.grad is None:
        return np.zeros(tuple(parameter.shape), np.float32)
    return parameter.grad.detach().float().cpu().numpy()
