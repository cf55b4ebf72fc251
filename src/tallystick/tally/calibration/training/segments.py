"""Replays segments of recorded runs on one stack, in a process of its own.

`python -m tallystick.tally.calibration.training.segments STACK JOB.json` writes its measurements next to the job. The
base stack replays first and saves its end states. Every other stack measures the drift of those claims from its own
replay.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tallystick.core.errors import ProofError
from tallystick.core.safetensors import read_state, write_state
from tallystick.core.tensor_digests import state_digest
from tallystick.engines.torch.training.trainer import Sketcher, Trainer
from tallystick.formats.data.samples import Dataset
from tallystick.formats.recipe import Recipe, learning_rate
from tallystick.formats.records import anchor_file
from tallystick.formats.spec import Spec
from tallystick.formats.step_program import batch_plan, classes, micro_batches, open_data, projection_seed
from tallystick.formats.store.run import RunDirectory
from tallystick.tally.calibration.training.stacks import Outcome, Stack, State, enter, measure, stack_named
from tallystick.verdicts.distances import Projection


@dataclass(frozen=True)
class Stretch:
    """A start and the ends at which the state is measured, as step numbers."""

    start: int
    ends: tuple[int, ...]


class Bench:
    """A recorded run with its spec, data, plan and projection."""

    def __init__(self, folder: Path) -> None:
        self.run = RunDirectory(folder)
        self.spec: Spec = self.run.spec()
        self.recipe = recipe_of(self.spec)
        self.dataset: Dataset = open_data(self.spec, self.run.data_path)
        self.plan = batch_plan(self.spec, self.dataset)
        self.projection = Projection(projection_seed(self.spec), self.recipe.record.projection_width)

    def anchor(self, index: int) -> State:
        """The state saved after step `index`."""
        return read_state(self.run.path / anchor_file(index))

    def trainer(self, recipe: Recipe, device: str = "cpu") -> Trainer:
        """A trainer for `recipe`, which is that of this run or a changed one."""
        return Trainer(recipe, classes(self.spec), device)

    def peak_rate(self, start: int, end: int) -> float:
        """The largest learning rate of steps `start + 1` … `end`."""
        return max(learning_rate(self.recipe, step) for step in range(start + 1, end + 1))


def recipe_of(spec: Spec) -> Recipe:
    """The recipe of a run of the study."""
    assert spec.recipe is not None  # the study records recipes only
    return spec.recipe


def recipe_on(stack: Stack, recipe: Recipe) -> Recipe:
    """The same training with the micro-batches and the attention of `stack`."""
    training = recipe.training.model_copy(
        update={
            "batch": recipe.training.batch // stack.micro_batches,
            "accumulation": recipe.training.accumulation * stack.micro_batches,
        }
    )
    model = recipe.model
    if stack.attention != model.attention and model.architecture != "cnn":
        model = model.model_copy(update={"attention": stack.attention})
    return recipe.model_copy(update={"training": training, "model": model})


def replay(bench: Bench, trainer: Trainer, stack: Stack, stretch: Stretch) -> Iterator[tuple[int, Outcome]]:
    """Take the steps of a stretch on `stack`; yields every end and the outcome there."""
    sketcher = Sketcher(bench.projection, trainer.weights())
    trainer.restore(bench.anchor(stretch.start))
    for index in range(stretch.start + 1, max(stretch.ends) + 1):
        indices = bench.plan.indices(index)
        rows = np.ascontiguousarray(indices[::-1]) if stack.reverses_rows else indices
        seen = trainer.step(micro_batches(trainer.recipe, bench.dataset, rows))
        if index in stretch.ends:
            yield index, reached(trainer, sketcher, seen.loss)


def reached(trainer: Trainer, sketcher: Sketcher, loss: float) -> Outcome:
    """The current outcome of a trainer, with a copy of its state."""
    state = {name: tensor.copy() for name, tensor in trainer.state().items()}
    return Outcome(state, loss, sketcher.sketch())


def keep(folder: Path, start: int, end: int, reached: Outcome) -> None:
    """Save the end of a segment for later comparisons."""
    folder.mkdir(parents=True, exist_ok=True)
    write_state(folder / f"{start}-{end}.safetensors", reached.state)
    rest = {"loss": reached.loss, "sketch": reached.sketch}
    (folder / f"{start}-{end}.json").write_text(json.dumps(rest))


def kept(folder: Path, start: int, end: int) -> Outcome:
    """The end of a segment that `keep` saved."""
    rest = json.loads((folder / f"{start}-{end}.json").read_text())
    return Outcome(read_state(folder / f"{start}-{end}.safetensors"), rest["loss"], rest["sketch"])


def main(stack: Stack, job: dict[str, Any]) -> list[dict[str, Any]]:
    """Replay every stretch of every run in `job`; returns measurements, except on the stack that makes the claims."""
    measurements: list[dict[str, Any]] = []
    for run in job["runs"]:
        bench = Bench(Path(run["path"]))
        trainer = bench.trainer(recipe_on(stack, bench.recipe), stack.device)
        for stretch in (Stretch(start, tuple(ends)) for start, ends in run["stretches"]):
            measurements.extend(_measured(bench, trainer, stack, stretch, run))
    return measurements


def _measured(
    bench: Bench, trainer: Trainer, stack: Stack, stretch: Stretch, run: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    start = bench.anchor(stretch.start)
    for end, outcome in replay(bench, trainer, stack, stretch):
        if run["keep"]:
            keep(Path(run["keep"]), stretch.start, end, outcome)
        if not run["claims"]:
            _check_reproduced(bench, end, outcome)
            continue
        claimed = kept(Path(run["claims"]), stretch.start, end)
        rate = bench.peak_rate(stretch.start, end)
        drift = measure(start, claimed, outcome, rate, bench.projection, bench.recipe.training.dtype)
        yield {
            "case": bench.run.path.name,
            "stack": stack.name,
            "start": stretch.start,
            "end": end,
            "same_bits": state_digest(claimed.state) == state_digest(outcome.state),
            "drift": drift.to_json(),
        }


def _check_reproduced(bench: Bench, end: int, reached: Outcome) -> None:
    """Raise `ProofError` unless the base stack reproduces its own run bit for bit; else the claims would be wrong."""
    path = bench.run.path / anchor_file(end)
    if path.is_file() and state_digest(read_state(path)) != state_digest(reached.state):
        raise ProofError(f"{bench.run.path.name}: step {end} does not repeat on the stack that recorded it")


if __name__ == "__main__":
    here = stack_named(sys.argv[1])
    enter(here)
    path = Path(sys.argv[2])
    path.with_suffix(".out.json").write_text(json.dumps(main(here, json.loads(path.read_text()))))
