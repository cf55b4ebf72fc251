"""States that no training gave: in an anchor, in the optimizer, or after the last step."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tallystick.audits.tolerant import find_undetermined
from tallystick.core.errors import UsageError
from tallystick.core.safetensors import write_state
from tallystick.core.tensors import State, Tensor
from tallystick.engines.torch.training.trainer import Observation
from tallystick.formats.recipe import learning_rate
from tallystick.formats.records import AnchorRecord, Record, anchor_file
from tallystick.formats.spec import Spec
from tallystick.formats.step_program import projection_seed
from tallystick.formats.store.run import RunDirectory
from tallystick.tally.attacks.forging import (
    Attack,
    Batches,
    DishonestTrainer,
    accepted,
    anchor_before,
    copy_run,
    find_scene,
    read_anchor,
    read_records,
    rejected,
    replace_anchor,
    retrain,
    train_on,
    write_records,
)
from tallystick.verdicts.distances import Projection
from tallystick.verdicts.reach import direction_bound

if TYPE_CHECKING:
    import torch


# One number in an anchor file is changed by 1e-8.

CHANGE = np.float32(1e-8)


def forge_broken_seal(run: Path, out: Path) -> None:
    """Change the smallest of the weights by 1e-8 in the anchor file, and nothing else."""
    forged = copy_run(run, out)
    corrupt(forged, find_scene(forged).middle)


def corrupt(run: RunDirectory, mark: int) -> None:
    """Change one weight of anchor `mark` by 1e-8 in place; the file stays canonical."""
    state = read_anchor(run, mark)
    name = next(name for name in sorted(state) if name.startswith("weights."))
    values = np.array(state[name].array())
    smallest = int(np.abs(values).argmin())
    values.flat[smallest] += CHANGE
    write_state(run.path / anchor_file(mark), state | {name: Tensor.of(values)})


BROKEN_SEAL = (
    Attack(
        name="broken-seal",
        change="one weight in an anchor file is changed by 1e-8; every record stays as it was",
        forge=forge_broken_seal,
        screens=rejected("anchor"),
        exact=rejected("anchor"),
        tolerant=rejected("anchor"),
        claim=rejected("anchor"),
    ),
)


# The optimizer forgets its moments in the middle of the training.

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


def forge_optimizer_reset(run: Path, out: Path) -> None:
    """Set all moments to zero before a step in the middle."""
    _forget(run, out, MOMENTS)


def forge_first_moment(run: Path, out: Path) -> None:
    """Set only the first moments to zero, which the second-moment screen does not check."""
    _forget(run, out, ("exp_avg", "momentum_buffer"))


def _forget(run: Path, out: Path, moments: tuple[str, ...]) -> None:
    honest = RunDirectory(run)
    scene = find_scene(honest)
    train_on(run, out, scene.middle, ForgetfulTrainer(honest.spec(), moments, scene.step))


OPTIMIZER_RESET = (
    Attack(
        name="optimizer-reset",
        change="all moments of the optimizer are set to zero before one step",
        forge=forge_optimizer_reset,
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
        """The factor of a weight after decay over the segment, and how far AdamW can move it (`verdicts.reach`)."""
        kept, reach, settings = 1.0, 0.0, self.declared.optimizer
        for step in range(int(self._start["position.step"].values()) + 1, self.index + 1):
            rate = learning_rate(self.declared, step)
            kept *= 1 - rate * settings.weight_decay
            reach = reach * abs(1 - rate * settings.weight_decay) + rate * direction_bound(settings.betas, step)
        return kept, reach


def forge_undetermined_moved(run: Path, out: Path) -> None:
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

UNDETERMINED_MOVED = (
    Attack(
        name="undetermined-moved",
        change="weights that no replay determines are moved to the end of their reach, past the sketch; all made anew",
        forge=forge_undetermined_moved,
        reference="gpt2",
        screens=WITHIN_REACH,
        exact=rejected("state"),
        tolerant=accepted(SIZE),
    ),
    Attack(
        name="undetermined-moved-bf16",
        change="the same in bfloat16, where more is undetermined",
        forge=forge_undetermined_moved,
        reference="gpt2-bf16",
        screens=WITHIN_REACH,
        exact=rejected("state"),
        tolerant=accepted(SIZE),
    ),
)


# The weights are changed after the last step, together with everything that is written about them.

SHARE_OF_MOVE = 0.1
SHARE_BELOW_DRIFT = 3e-6


def forge_weights_edited(run: Path, out: Path) -> None:
    """Undo a tenth of every weight's last move."""
    forged = copy_run(run, out)
    last = find_scene(forged).last
    before = read_anchor(forged, anchor_before(forged, last))
    replace_anchor(forged, last, take_back(before, read_anchor(forged, last)))


def forge_below_drift(run: Path, out: Path) -> None:
    """Undo so little of every weight's last move that another stack could cause the difference."""
    forged = copy_run(run, out)
    last = find_scene(forged).last
    before = read_anchor(forged, anchor_before(forged, last))
    replace_anchor(forged, last, take_back(before, read_anchor(forged, last), share=SHARE_BELOW_DRIFT))


def forge_one_ulp(run: Path, out: Path) -> None:
    """Move one weight to the next number that float32 can hold."""
    forged = copy_run(run, out)
    last = find_scene(forged).last
    state = read_anchor(forged, last)
    name = largest_weight(state)
    values = np.array(state[name].array())
    values.flat[0] = np.nextafter(values.flat[0], np.float32(np.inf))
    replace_anchor(forged, last, state | {name: Tensor.of(values)})


def forge_sign_of_zero(run: Path, out: Path) -> None:
    """Change the sign of one zero in the optimizer's memory."""
    forged = copy_run(run, out)
    last = find_scene(forged).last
    state = read_anchor(forged, last)
    name = next(name for name, tensor in state.items() if name.endswith(".exp_avg") and not tensor.array().all())
    values = np.array(state[name].array())
    values.flat[int(np.argmin(values != 0))] = -0.0
    replace_anchor(forged, last, state | {name: Tensor.of(values)})


def take_back(
    before: State, state: State, after: State | None = None, share: float = SHARE_OF_MOVE
) -> dict[str, Tensor]:
    """The state with a fraction of each weight's last move undone; no bound on moves can detect this.

    If the anchor `after` it is given, only weights that turned around here are changed, so both moves get shorter.
    """
    return {
        name: _taken_back(before[name], tensor, after[name] if after else None, share)
        if name.startswith("weights.")
        else tensor
        for name, tensor in state.items()
    }


def largest_weight(state: State) -> str:
    """The weight tensor with the most elements."""
    return max((name for name in state if name.startswith("weights.")), key=lambda name: state[name].nbytes)


def _taken_back(before: Tensor, tensor: Tensor, after: Tensor | None, share: float) -> Tensor:
    values = tensor.array()
    move = values - before.array()
    if after is not None:
        move = np.where((after.array() - values) * move < 0, move, 0)
    return Tensor.of((values - share * move).astype(values.dtype))


BELOW_DRIFT = "an honest run on another stack would differ as much; only a replay on the prover's stack can tell"

WEIGHTS_EDITED = (
    Attack(
        name="weights-edited",
        change="the final weights are edited after training; anchor, summaries, roots and claim are made anew",
        forge=forge_weights_edited,
        screens=accepted("every weight moved a little less than it did, which is always within reach"),
        exact=rejected("state", "projection summary"),
        tolerant=rejected("weights residual"),
    ),
    Attack(
        name="weights-edited-below-drift",
        change="3e-6 of every weight's last move is taken back; anchor, summaries, roots and claim are made anew",
        forge=forge_below_drift,
        screens=accepted("every weight moved a little less than it did, which is always within reach"),
        exact=rejected("state"),
        tolerant=accepted(BELOW_DRIFT),
    ),
    Attack(
        name="weights-edited-by-one-ulp",
        change="one final weight is moved to the next float32; anchor, summaries, roots and claim are made anew",
        forge=forge_one_ulp,
        screens=accepted("one unit in the last place is below everything a screen measures"),
        exact=rejected("state"),
        tolerant=accepted(BELOW_DRIFT),
    ),
    Attack(
        name="sign-of-a-zero",
        change="one zero of the optimizer's memory is made a negative zero at the end, and everything written anew",
        forge=forge_sign_of_zero,
        screens=accepted("no number has changed"),
        exact=rejected("state"),
        tolerant=accepted("limits compare numbers, and -0.0 is 0.0; the report says so"),
        reference="gpt2",
    ),
)


# An anchor in the middle is not a state of the training.


def forge_anchor_replaced(run: Path, out: Path) -> None:
    """Edit the weights of the middle anchor, and every record about them."""
    forged = copy_run(run, out)
    scene = find_scene(forged)
    before, middle, after = (read_anchor(forged, mark) for mark in (scene.before, scene.middle, scene.after))
    replace_anchor(forged, scene.middle, take_back(before, middle, after))


def forge_file_only(run: Path, out: Path) -> None:
    """Replace the file of the middle anchor by that of the next one."""
    forged = copy_run(run, out)
    scene = find_scene(forged)
    (forged.path / anchor_file(scene.middle)).write_bytes((forged.path / anchor_file(scene.after)).read_bytes())


def forge_file_and_record(run: Path, out: Path) -> None:
    """Replace the middle anchor by a copy of the next one, both its file and its record."""
    forge_file_only(run, out)
    forged = RunDirectory(out)
    scene = find_scene(forged)
    records = read_records(forged)
    other = next(r for r in records if isinstance(r, AnchorRecord) and r.index == scene.after)

    def replaced(record: Record) -> Record:
        if isinstance(record, AnchorRecord) and record.index == scene.middle:
            return record.model_copy(update={"digest": other.digest, "summary": other.summary})
        return record

    write_records(forged, [replaced(record) for record in records])


ANCHOR_REPLACED = (
    Attack(
        name="anchor-replaced",
        change="the weights of a middle anchor are edited; its record, its summaries, roots and claim are made anew",
        forge=forge_anchor_replaced,
        screens=accepted("only weights that turned around there are edited, so that both moves stay within reach"),
        exact=rejected("state", "projection summary"),
        tolerant=rejected("weights residual"),
    ),
    Attack(
        name="anchor-swapped",
        change="the file of one anchor replaces that of another",
        forge=forge_file_only,
        screens=rejected("anchor"),
        exact=rejected("anchor"),
        tolerant=rejected("anchor"),
        claim=rejected("anchor"),
    ),
    Attack(
        name="anchor-swapped-resealed",
        change="the file and the record of one anchor replace those of another; roots and claim are made anew",
        forge=forge_file_and_record,
        screens=rejected("anchor"),
        exact=rejected("anchor"),
        tolerant=rejected("anchor"),
        claim=rejected("claim", "anchor"),
    ),
)
