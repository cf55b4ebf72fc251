"""Trainings that follow another recipe, other data or no computation at all, under the records of the declared ones."""

from __future__ import annotations

import math
import multiprocessing
import shutil
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np

from research.attacks.records import OTHER_TORCH
from tallystick.audits.policy import NONCE_BYTES, sample_steps
from tallystick.core.digests import Frontier, digest_from, leaf_hash
from tallystick.core.errors import UnavailableError, UsageError
from tallystick.core.tensors import Tensor
from tallystick.engines.torch.training.trainer import Observation, Trainer
from tallystick.formats.claims import Claim, Log
from tallystick.formats.recipe import Recipe, learning_rate
from tallystick.formats.records import HeaderRecord, Record, StepRecord, TraceEntry
from tallystick.formats.spec import Spec
from tallystick.formats.step_program import classes
from tallystick.formats.store.log import read_lines
from tallystick.formats.store.run import RunDirectory
from tallystick.tally.attacks.forgers import (
    Batch,
    Disguise,
    MisfedTrainer,
    NoisyTrainer,
    backwards,
    bad_seed,
    gradient_noise,
    higher_rate,
    honest_copy,
    with_optimizer,
    with_training,
    wrong_rate,
)
from tallystick.tally.attacks.forging import (
    Batches,
    DishonestTrainer,
    FabricatingTrainer,
    copy_run,
    find_scene,
    from_the_middle,
    interpolate,
    read_anchor,
    read_records,
    recipe_of,
    replace_environment,
    retrain,
    seal,
    train_on,
    write_records,
)
from tallystick.verdicts.reach import direction_bound

# Honest controls.


loop_start_stated = rows_as_stated = honest_copy


def prover_auditor_split(run: Path, out: Path) -> None:
    """Train the same spec in a second process that shares only two directories with this one."""
    prover = multiprocessing.get_context("spawn").Process(target=_prove, args=(str(run), str(out)))
    prover.start()
    prover.join()
    if prover.exitcode != 0:
        raise UnavailableError(f"{out}: the training process ended with exit code {prover.exitcode}")


def _prove(run: str, out: str) -> None:
    import torch

    honest = RunDirectory(Path(run))
    torch.set_num_threads(honest.environment().threads)
    spec = honest.spec()
    retrain(honest.path, Path(out), Trainer(recipe_of(spec), classes(spec)))


# The training follows another recipe than the declared one.


class PlainDescentTrainer(DishonestTrainer):
    """Updates the state of the declared optimizer, and moves the weights by plain gradient descent."""

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self.optimizer.register_step_pre_hook(lambda *_: self._remember())
        self.optimizer.register_step_post_hook(lambda *_: self._descend())

    def _remember(self) -> None:
        self._before = {name: weight.detach().clone() for name, weight in self.model.named_parameters()}

    def _descend(self) -> None:
        rate = 0.1 * learning_rate(self.declared, self.index + 1)
        for name, weight in self.model.named_parameters():
            if weight.grad is not None:
                weight.data.copy_(self._before[name] - rate * weight.grad)


class ConstantRateTrainer(DishonestTrainer):
    """Takes every step at the peak learning rate and reports the declared schedule."""

    def step(self, micro_batches: Batches) -> Observation:
        """One step at the peak rate."""
        self.recipe = self.declared.model_copy(
            update={"schedule": self.declared.schedule.model_copy(update={"kind": "constant", "warmup_steps": 0})}
        )
        return super().step(micro_batches)


def _heavier_decay(spec: Spec) -> Recipe:
    recipe = recipe_of(spec)
    return with_optimizer(recipe, weight_decay=10 * recipe.optimizer.weight_decay or 0.1)


wrong_rate_recorded = from_the_middle(lambda spec, _: Trainer(higher_rate(spec), classes(spec)))
wrong_decay = from_the_middle(lambda spec, _: DishonestTrainer(spec, _heavier_decay(spec)))
wrong_precision = from_the_middle(lambda spec, _: DishonestTrainer(spec, with_training(recipe_of(spec), dtype="bf16")))
wrong_optimizer = from_the_middle(lambda spec, _: PlainDescentTrainer(spec))
wrong_schedule = from_the_middle(lambda spec, _: ConstantRateTrainer(spec))


def environment_forged(run: Path, out: Path) -> None:
    """Train from another recipe, and name another stack, with which an exact replay seems impossible."""
    wrong_rate(run, out)
    forged = RunDirectory(out)
    replace_environment(forged, forged.environment().model_copy(update={"torch": OTHER_TORCH}))


def fraud_out_of_reach(run: Path, out: Path) -> None:
    """Declare one anchor for the whole run, and add noise to a step outside of the window."""
    honest = RunDirectory(run)
    scene, recipe = find_scene(honest), recipe_of(honest.spec())
    record = recipe.record.model_copy(update={"anchor_stride": scene.last})
    spec = honest.spec().model_copy(update={"recipe": recipe.model_copy(update={"record": record})})
    retrain(run, out, NoisyTrainer(spec, scene.step), spec)


# The training uses other data than the declared data.

PACE: Final = 0.1


def one_value_of(step: int) -> Disguise:
    """Exchanges one input value in one step: one token, or one pixel."""

    def disguise(index: int, batch: Batch) -> Batch:
        name = "inputs" if "inputs" in batch else "images"
        changed = np.array(batch[name])
        changed.flat[0] = 0 if changed.flat[0] else 1
        return {**batch, name: changed} if index == step else batch

    return disguise


def always_the_first() -> Disguise:
    """Repeats the first batch in every step."""
    seen: list[Batch] = []

    def disguise(_index: int, batch: Batch) -> Batch:
        seen.append(batch)
        return seen[0]

    return disguise


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

    def _learn_secretly(self, batches: list[Batch]) -> None:
        super().step([backwards(0, batch) for batch in batches])
        self.index -= 1
        for slots in self.optimizer.state.values():
            if "step" in slots:
                slots["step"] -= 1


class CarefulTrainer(MoonlightingTrainer):
    """Follows the gradient of the undeclared batch for a tenth of a step, and does not touch the moments."""

    def _learn_secretly(self, batches: list[Batch]) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        for batch in batches:
            self._accumulate(backwards(0, batch))
        pace = PACE * learning_rate(self.declared, self.index + 1)
        for weight in self.model.parameters():
            if weight.grad is not None:
                weight.data.sub_(weight.grad, alpha=pace / max(1e-12, float(weight.grad.abs().max())))


one_token_substituted = from_the_middle(lambda spec, scene: MisfedTrainer(spec, one_value_of(scene.step)))
batch_repeated = from_the_middle(lambda spec, _: MisfedTrainer(spec, always_the_first()))
hidden_batch = from_the_middle(lambda spec, scene: MoonlightingTrainer(spec, scene.step))
hidden_batch_careful = from_the_middle(lambda spec, scene: CarefulTrainer(spec, scene.step))


# The prover knows the nonce of the audit beforehand and grinds claims until the sample misses the bad steps.

PROVER_NONCE: Final = bytes(NONCE_BYTES)
"""A nonce that anybody can guess."""
SAMPLES: Final = 4
ATTEMPTS_MAX: Final = 100_000


def nonce_ground(run: Path, out: Path) -> None:
    """Add noise to one step, then vary the stated time of the last step until the known nonce samples elsewhere."""
    gradient_noise(run, out)
    forged = RunDirectory(out)
    scene = find_scene(forged)
    lines = list(read_lines(forged.trace_path))
    for line, claim in _variants(forged.claim(), lines):
        sampled = sample_steps(PROVER_NONCE, claim.identity, scene.last, SAMPLES)
        if not any(scene.middle < step <= scene.after for step in sampled):
            forged.trace_path.write_bytes(b"".join(kept + b"\n" for kept in [*lines[:-1], line]))
            seal(forged)
            return
    raise UsageError(f"{run}: no sample of {SAMPLES} steps misses the forged segment")


def _variants(claim: Claim, trace: list[bytes]) -> Iterator[tuple[bytes, Claim]]:
    """Claims that differ only in the stated time of the last step, each with the line that states it."""
    frontier = Frontier.empty()
    for line in trace[:-1]:
        frontier = frontier.append(leaf_hash(line))
    entry = TraceEntry.from_bytes(trace[-1], "trace.jsonl")
    for attempt in range(ATTEMPTS_MAX):
        seconds = round(entry.seconds + attempt * 1e-6, 6)
        line = entry.model_copy(update={"seconds": seconds}).to_bytes()
        log = Log(root=digest_from(frontier.append(leaf_hash(line)).root()), size=len(trace))
        yield line, claim.model_copy(update={"trace": log})


# Steps that were never computed, or those of another run: weights, moments and losses are invented or spliced.

TINY_RATE: Final = 1e-12
NORM: Final = 0.5
CAUTION: Final = 0.8


def runs_spliced(run: Path, out: Path) -> None:
    """Continue the run from its middle anchor with the same steps of a run from another seed."""
    forged = copy_run(run, out)
    middle = find_scene(forged).middle

    def is_after(record: Record) -> bool:
        return not isinstance(record, HeaderRecord) and record.index > middle

    with TemporaryDirectory() as folder:
        other = RunDirectory(Path(folder) / "other")
        bad_seed(run, other.path)
        later = [record for record in read_records(other) if is_after(record)]
        for record in later:
            if record.kind == "anchor":
                shutil.copy(other.path / record.file, forged.path / record.file)
        if (other.path / "blobs").is_dir():
            shutil.copytree(other.path / "blobs", forged.path / "blobs", dirs_exist_ok=True)
    write_records(forged, [*(record for record in read_records(forged) if not is_after(record)), *later])


def skipped_steps(run: Path, out: Path) -> None:
    """Compute no step of the middle segment: extrapolate the update of the segment before it, then train again."""
    honest = RunDirectory(run)
    scene, recipe = find_scene(honest), recipe_of(honest.spec())
    before, middle = read_anchor(honest, scene.before), read_anchor(honest, scene.middle)
    losses = recorded_losses(honest)
    slope = (losses[scene.middle] - losses[scene.before + 1]) / (scene.middle - scene.before - 1)

    def onward(step: int) -> dict[str, Tensor] | None:
        if not scene.middle < step <= scene.after:
            return None
        share = 1.0 + CAUTION * travelled(recipe, scene.middle, step) / travelled(recipe, scene.before, scene.middle)
        moved = interpolate(before, middle, share, step)
        kept = interpolate(middle, middle, 0.0, step)
        return {name: moved[name] if name.startswith("weights.") else kept[name] for name in moved}

    def lose(step: int) -> float:
        return losses[scene.middle] + slope * (step - scene.middle)

    train_on(run, out, scene.middle, FabricatingTrainer(honest.spec(), onward, lose, NORM))


def transcript_without_training(run: Path, out: Path) -> None:
    """Invent a training that leads to the final weights of the run, which are taken as stolen."""
    honest = RunDirectory(run)
    retrain(run, out, _inventor(honest, honest.spec()))


def infinitesimal_update(run: Path, out: Path) -> None:
    """Invent the same training under a spec with a learning rate near 0, so that updates are infinitesimal."""
    honest = RunDirectory(run)
    recipe = with_optimizer(recipe_of(honest.spec()), learning_rate=TINY_RATE)
    spec = honest.spec().model_copy(update={"recipe": recipe})
    retrain(run, out, _inventor(honest, spec), spec)


def _inventor(run: RunDirectory, spec: Spec) -> FabricatingTrainer:
    last, recipe = find_scene(run).last, recipe_of(run.spec())
    losses = recorded_losses(run)
    start, end = read_anchor(run, 0), read_anchor(run, last)

    def lose(step: int) -> float:
        return losses[last] + (losses[1] - losses[last]) * math.exp(-4.0 * (step - 1) / last)

    def state(step: int) -> dict[str, Tensor]:
        return interpolate(start, end, travelled(recipe, 0, step) / travelled(recipe, 0, last), step)

    return FabricatingTrainer(spec, state, lose, NORM)


def recorded_losses(run: RunDirectory) -> dict[int, float]:
    """The recorded losses by step."""
    return {r.index: float(r.loss) for r in read_records(run) if isinstance(r, StepRecord)}


def travelled(recipe: Recipe, start: int, end: int) -> float:
    """How far steps `start + 1` … `end` can move a weight: a careful forger stays within the reach screen."""
    settings, steps = recipe.optimizer, range(start + 1, end + 1)
    bounds = [float(direction_bound(settings.betas, step)) if settings.kind == "adamw" else 1.0 for step in steps]
    return sum(learning_rate(recipe, step) * bound for step, bound in zip(steps, bounds, strict=True))
