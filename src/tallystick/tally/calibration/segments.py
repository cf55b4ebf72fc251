"""Segments of recorded runs, replayed on one stack and compared with what another stack claims."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tallystick.audits.checked_run import CheckedRun, check_records, read_stated
from tallystick.audits.policy import Policy
from tallystick.audits.tolerant import TrainingKind, workload_of
from tallystick.core.errors import ProofError, UnavailableError
from tallystick.core.safetensors import read_state
from tallystick.core.tensor_digests import state_digest
from tallystick.core.tensors import State
from tallystick.engines.torch.tensors import from_tensor
from tallystick.engines.torch.training.trainer import Sketcher, Trainer
from tallystick.engines.torch.training.verifier_stack import GraphReplayer, TorchReplayer
from tallystick.formats.data.samples import Dataset
from tallystick.formats.data.step_program import batch_plan, classes, micro_batches, open_data, projection_seed
from tallystick.formats.recipe import Recipe, learning_rate
from tallystick.formats.records import anchor_file
from tallystick.formats.spec import Spec
from tallystick.formats.store.run import RunDirectory
from tallystick.programs.step_names import WEIGHTS
from tallystick.tally.calibration.drift import Drift, Outcome, measure
from tallystick.tally.calibration.stacks import Stack
from tallystick.verdicts.distances import Projection
from tallystick.verdicts.exact import element_count
from tallystick.verdicts.replayer import ReplayedStep, Replayer
from tallystick.verdicts.verdict import Findings

# A run of the study: the base stack replays first and saves its end states. Every other stack measures the drift of
# those claims from its own replay.


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
        assert self.spec.recipe is not None  # the study records recipes only
        self.recipe = self.spec.recipe
        self.dataset: Dataset = open_data(self.spec, self.run.data_path)
        self.plan = batch_plan(self.spec, self.dataset)
        self.projection = Projection(projection_seed(self.spec), self.recipe.record.projection_width)

    def anchor(self, index: int) -> State:
        """The state saved after step `index`."""
        return read_state(self.run.path / anchor_file(index))

    def trainer(self, recipe: Recipe, device: str = "cpu") -> Trainer:
        """A trainer for `recipe`, which is that of this run or a changed one."""
        return Trainer(recipe, classes(self.spec), device)

    def drift(self, before: State, claimed: Outcome, replayed: Outcome, segment: tuple[int, int]) -> Drift:
        """How far a claimed end of a segment lies from the replayed one; `before` is the state at its start."""
        start, end = segment
        peak_rate = max(learning_rate(self.recipe, step) for step in range(start + 1, end + 1))
        return measure(before, claimed, replayed, peak_rate, self.projection, self.recipe.training.dtype)


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


def replay_study(stack: Stack, job: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Replay every stretch of every run in `job`; gives measurements, but none on the stack that makes the claims."""
    for run in job["runs"]:
        bench = Bench(Path(run["path"]))
        trainer = bench.trainer(recipe_on(stack, bench.recipe), stack.device)
        for stretch in (Stretch(start, tuple(ends)) for start, ends in run["stretches"]):
            start = bench.anchor(stretch.start)
            for end, outcome in replay(bench, trainer, stack, stretch):
                if run["keep"]:
                    outcome.keep(Path(run["keep"]), stretch.start, end)
                if run["claims"]:
                    row = _compared(bench, stack, Path(run["claims"]), start, (stretch.start, end), outcome)
                    yield {"case": bench.run.path.name, **row}
                    continue
                # Unless the base stack repeats its own run bit for bit, the claims would be wrong.
                path = bench.run.path / anchor_file(end)
                if path.is_file() and state_digest(read_state(path)) != state_digest(outcome.state):
                    raise ProofError(f"{bench.run.path.name}: step {end} does not repeat on the stack that recorded it")


def _compared(
    bench: Bench | RunBench, stack: Stack, claims: Path, before: State, segment: tuple[int, int], outcome: Outcome
) -> dict[str, Any]:
    """What a stack shows of one segment beside the claim that was kept of it."""
    claimed = Outcome.kept(claims, *segment)
    return {
        "stack": stack.name,
        "start": segment[0],
        "end": segment[1],
        "same_bits": state_digest(claimed.state) == state_digest(outcome.state),
        "drift": bench.drift(before, claimed, outcome, segment).to_json(),
    }


# Somebody's own run. Stacks are compared with each other and never with the states of the run, of which only the starts
# are read.


class RunBench:
    """A finished run that can be replayed from its step graph; `kind` is what limits depend on."""

    def __init__(self, folder: Path) -> None:
        """Raises `UnavailableError` where the run cannot be replayed, with the first reason."""
        run, findings, policy = RunDirectory(folder), Findings(keeps_going=True), Policy(replay="graph")
        stated = read_stated(run, policy, findings)
        if stated is None:
            raise UnavailableError(f"{folder}: {(findings.open_lines or ['the run cannot be read'])[0]}")
        self.run: CheckedRun = check_records(stated, policy)
        if self.run.findings.rejected or (self.run.program is None and self.run.plan is None):
            raise UnavailableError(f"{folder}: limits are measured on a run that `tally audit` can replay")
        self.kind: TrainingKind = workload_of(self.run)
        spec = self.run.spec
        self.projection = Projection(projection_seed(spec), spec.recorded.projection_width)

    @property
    def parameters(self) -> int:
        """The number of weights, from the first anchor."""
        first = self.run.run.anchors.read(min(self.run.anchors))
        return element_count(tensor for name, tensor in first.items() if name.startswith(WEIGHTS))

    def replayer(self, device: str) -> Replayer:
        """A replayer of its steps: from the step graph, or from the recipe where there is none."""
        if self.run.program is not None:
            return GraphReplayer(self.run.spec, self.run.program, device)
        assert self.run.dataset is not None  # the constructor refuses other runs
        assert self.run.plan is not None
        return TorchReplayer(self.run.spec, self.run.dataset, self.run.plan, device)

    def drift(self, before: State, claimed: Outcome, replayed: Outcome, segment: tuple[int, int]) -> Drift:
        """As `Bench.drift`."""
        peak_rate = max(map(self.kind.rate, range(segment[0] + 1, segment[1] + 1)))
        return measure(before, claimed, replayed, peak_rate, self.projection, self.kind.dtype)

    def outcome(self, replayer: Replayer, seen: ReplayedStep) -> Outcome:
        """What was reached after a step, with a copy of the state."""
        state = {name: tensor.copy() for name, tensor in replayer.state().items()}
        weights = {name: from_tensor(tensor) for name, tensor in state.items() if name.startswith(WEIGHTS)}
        return Outcome(state, seen.loss, Sketcher(self.projection, weights).sketch())


def replay_run(stack: Stack, job: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Replay every segment of the job; gives measurements, but none on the stack that makes the claims."""
    bench, folder = RunBench(Path(job["run"])), Path(job["claims"])
    replayer = bench.replayer(stack.device)
    for start, end in job["segments"]:
        before = bench.run.run.anchors.read(start)
        replayer.restore(before)
        for step in range(start + 1, end + 1):
            seen = replayer.step(step)
            if step not in {start + 1, end}:
                continue
            outcome = bench.outcome(replayer, seen)
            if job["claiming"]:
                outcome.keep(folder, start, step)
            else:
                yield _compared(bench, stack, folder, before, (start, step), outcome)
