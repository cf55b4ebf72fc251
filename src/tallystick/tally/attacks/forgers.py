"""Forgers of the attacks that teach most: each edits a record, an anchor or the weights, or trains otherwise."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from tallystick.core.safetensors import write_state
from tallystick.core.tensors import State, Tensor
from tallystick.engines.torch.training.trainer import Observation
from tallystick.formats.recipe import OptimizerRecipe, Recipe
from tallystick.formats.records import Record, StepRecord, anchor_file
from tallystick.formats.spec import Spec
from tallystick.formats.store.run import RunDirectory
from tallystick.tally.attacks.forging import (
    Batches,
    DishonestTrainer,
    anchor_before,
    clumsy_and_careful,
    copy_run,
    find_scene,
    from_the_middle,
    read_anchor,
    recipe_of,
    retrain,
    with_final_state,
    with_value,
)
from tallystick.verdicts.exact import quantise

FLATTERY: Final = 0.9


def flatter(records: list[Record], at: int, spec: Spec) -> list[Record]:
    """Lower the loss of the step at this position by a tenth."""
    record = records[at]
    assert isinstance(record, StepRecord)  # by `place_of_step`
    loss = quantise(FLATTERY * float(record.loss), recipe_of(spec).record.loss_decimals)
    return [*records[:at], record.model_copy(update={"loss": loss}), *records[at + 1 :]]


record_edited, record_edited_resealed = clumsy_and_careful(flatter)
record_inserted, record_inserted_resealed = clumsy_and_careful(
    lambda records, at, _: [*records[: at + 1], *records[at:]]
)
record_removed, record_removed_resealed = clumsy_and_careful(lambda records, at, _: [*records[:at], *records[at + 1 :]])
record_swapped, record_swapped_resealed = clumsy_and_careful(
    lambda records, at, _: [*records[: at - 1], records[at], records[at - 1], *records[at + 1 :]]
)


def broken_seal(run: Path, out: Path) -> None:
    """Change the smallest of the weights by 1e-8 in the file of the middle anchor, and nothing else."""
    forged = copy_run(run, out)
    mark = find_scene(forged).middle
    state = read_anchor(forged, mark)
    name = next(name for name in sorted(state) if name.startswith("weights."))
    values = state[name].array()
    smallest = int(np.abs(values).argmin())
    changed = with_value(state, name, smallest, values.flat[smallest] + np.float32(1e-8))
    write_state(forged.path / anchor_file(mark), changed)


SHARE_OF_MOVE: Final = 0.1


def take_back(
    before: State, state: State, after: State | None = None, share: float = SHARE_OF_MOVE
) -> dict[str, Tensor]:
    """The state with a fraction of each weight's last move undone; no bound on moves can detect this.

    If the anchor `after` it is given, only weights that turned around here are changed, so both moves get shorter.
    """
    changed = dict(state)
    for name in (name for name in state if name.startswith("weights.")):
        values = state[name].array()
        move = values - before[name].array()
        if after is not None:
            move = np.where((after[name].array() - values) * move < 0, move, 0)
        changed[name] = Tensor.of((values - share * move).astype(values.dtype))
    return changed


def with_last_move_shortened(run: RunDirectory, last: int, share: float = SHARE_OF_MOVE) -> dict[str, Tensor]:
    """The last anchor with a share of every weight's last move undone."""
    return take_back(read_anchor(run, anchor_before(run, last)), read_anchor(run, last), share=share)


def _one_ulp_more(run: RunDirectory, last: int) -> dict[str, Tensor]:
    state = read_anchor(run, last)
    name = largest_weight(state)
    return with_value(state, name, 0, np.nextafter(state[name].array().flat[0], np.float32(np.inf)))


def largest_weight(state: State) -> str:
    """The weight tensor with the most elements."""
    return max((name for name in state if name.startswith("weights.")), key=lambda name: state[name].nbytes)


weights_edited = with_final_state(with_last_move_shortened)
weights_edited_by_one_ulp = with_final_state(_one_ulp_more)


def honest_copy(run: Path, out: Path) -> None:
    """Copy the run."""
    copy_run(run, out)


def smuggled_program(run: Path, out: Path) -> None:
    """Copy the run, and add code files that a careless auditor would import."""
    forged = copy_run(run, out)
    program = "from pathlib import Path\nPath(__file__).with_name('executed').touch()\n"
    for name in ("trainer.py", "conftest.py", "sitecustomize.py", "torch.py"):
        (forged.path / name).write_text(program)


RATE_EXCESS: Final = 1.01
NOISE_SHARE: Final = 1e-2


class NoisyTrainer(DishonestTrainer):
    """Adds noise to each gradient in one step, a share of its norm; it does not touch the random generators."""

    def __init__(self, spec: Spec, noisy_step: int) -> None:
        super().__init__(spec)
        self._noisy_step = noisy_step
        self.optimizer.register_step_pre_hook(self._disturb)

    def _disturb(self, *_: Any) -> None:
        if self.index + 1 != self._noisy_step:
            return
        noise = np.random.default_rng(0)
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                drawn = parameter.grad.new_tensor(noise.standard_normal(parameter.grad.shape))
                parameter.grad.add_(drawn, alpha=NOISE_SHARE * float(parameter.grad.norm() / drawn.norm()))


def higher_rate(spec: Spec) -> Recipe:
    """The recipe with a learning rate 1 % above the declared one."""
    recipe = recipe_of(spec)
    return with_optimizer(recipe, learning_rate=recipe.optimizer.learning_rate * RATE_EXCESS)


def with_optimizer(recipe: Recipe, **changed: object) -> Recipe:
    """The recipe with other settings of its optimizer."""
    settings = recipe.optimizer.model_dump() | changed
    return recipe.model_copy(update={"optimizer": OptimizerRecipe(**settings)})


def with_training(recipe: Recipe, **changed: object) -> Recipe:
    """The recipe with other settings of its training."""
    return recipe.model_copy(update={"training": recipe.training.model_copy(update=changed)})


wrong_rate = from_the_middle(lambda spec, _: DishonestTrainer(spec, higher_rate(spec)))
gradient_noise = from_the_middle(lambda spec, scene: NoisyTrainer(spec, scene.step))


def bad_seed(run: Path, out: Path) -> None:
    """Train from the initial state of the seed after the declared one."""
    spec = RunDirectory(run).spec()
    recipe = recipe_of(spec)
    retrain(run, out, DishonestTrainer(spec, with_training(recipe, seed=recipe.training.seed + 1)))


Batch = Mapping[str, np.ndarray]
Disguise = Callable[[int, Batch], Batch]
"""Maps a step and its declared batch to the batch that is used."""


class MisfedTrainer(DishonestTrainer):
    """Receives the declared batches and trains on changed ones."""

    def __init__(self, spec: Spec, disguise: Disguise) -> None:
        super().__init__(spec)
        self._disguise = disguise

    def step(self, micro_batches: Batches) -> Observation:
        """One step on changed data."""
        return super().step(self._disguise(self.index + 1, batch) for batch in micro_batches)


def backwards(_step: int, batch: Batch) -> Batch:
    """Every example in reverse order; labels of images stay."""
    if "inputs" in batch:
        return {name: values[..., ::-1] for name, values in batch.items()}
    return {**batch, "images": batch["images"][..., ::-1]}


data_substituted = from_the_middle(lambda spec, _: MisfedTrainer(spec, backwards))
