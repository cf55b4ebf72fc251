"""Trainers that do not follow the recipe, recorded as if they did.

An honest recorder records each of them under the honest spec. So records, summaries, anchors, roots and claim are as
consistent as those of an honest run, and only the computation is wrong.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from tallystick.attacks.forging import copy_data, copy_run, recipe_of
from tallystick.documents.files import write_atomically
from tallystick.frameworks.torch.training.trainer import Observation, Trainer
from tallystick.recorders.resumption import ResumePoint
from tallystick.recorders.training import TrainingRun
from tallystick.store.log import read_lines
from tallystick.store.run import RunDirectory
from tallystick.tensors.tensor import State, Tensor
from tallystick.transcripts.recipe import Recipe
from tallystick.transcripts.record import AnchorRecord, StepRecord, anchor_file, read_record
from tallystick.transcripts.spec import Spec
from tallystick.workloads.names import POSITION
from tallystick.workloads.plan import classes
from tallystick.workloads.schedule import learning_rate

Batches = Iterable[Mapping[str, np.ndarray]]


class DishonestTrainer(Trainer):
    """Trains from the recipe `practised`, and reports the learning rates of the declared one."""

    def __init__(self, spec: Spec, practised: Recipe | None = None) -> None:
        self.declared = recipe_of(spec)
        super().__init__(practised or self.declared, classes(spec))

    def step(self, micro_batches: Batches) -> Observation:
        """One step, with the declared learning rate in its observation."""
        seen = super().step(micro_batches)
        return replace(seen, learning_rate=learning_rate(self.declared, self.index))


class FabricatingTrainer(DishonestTrainer):
    """Computes nothing in steps for which `fabricate` returns a state; their losses come from `lose`."""

    def __init__(
        self, spec: Spec, fabricate: Callable[[int], State | None], lose: Callable[[int], float], norm: float
    ) -> None:
        super().__init__(spec)
        self._fabricate, self._lose, self._norm = fabricate, lose, norm

    def step(self, micro_batches: Batches) -> Observation:
        """A step, honest or invented."""
        index = self.index + 1
        invented = self._fabricate(index)
        if invented is None:
            return super().step(micro_batches)
        self.restore(invented)
        activation = (0.0, 1.0) if self.declared.record.activation_checksum else None
        return Observation(self._lose(index), self._norm, learning_rate(self.declared, index), activation)


def retrain(run: Path, out: Path, trainer: Trainer, spec: Spec | None = None) -> None:
    """Train from the first step with `trainer` and record it under the spec of `run`, or under `spec`."""
    forged = copy_data(run, out)
    TrainingRun(forged, spec or RunDirectory(run).spec(), trainer).record()


def train_on(run: Path, out: Path, anchor: int, trainer: Trainer) -> None:
    """Keep the honest records up to `anchor`, and continue the training from there with `trainer`."""
    forged = copy_run(run, out)
    point = _cut(forged, anchor)
    TrainingRun(forged, forged.spec(), trainer).resume(point)


def interpolate(start: State, end: State, share: float, index: int) -> dict[str, Tensor]:
    """The state at the fraction `share` of the line from `start` to `end`, with the counters of step `index`."""
    return {name: _between(name, start[name], end[name], share, index) for name in start}


def _between(name: str, start: Tensor, end: Tensor, share: float, index: int) -> Tensor:
    if name == POSITION:
        return Tensor.of(np.asarray(index, np.int64))
    if name.endswith(".step"):
        return Tensor.of(np.asarray(index, np.float32))
    if start.dtype != "F32":
        return start
    first, last = start.array(), end.array()
    return Tensor.of((first + np.float32(share) * (last - first)).astype(np.float32))


def _cut(run: RunDirectory, anchor: int) -> ResumePoint:
    """Delete everything after an anchor, including the claim."""
    lines, summary = [], None
    for line in read_lines(run.transcript_path):
        lines.append(line)
        record = read_record(line, "transcript.jsonl")
        if isinstance(record, StepRecord):
            summary = record.post
        if isinstance(record, AnchorRecord) and record.index == anchor:
            summary = summary or record.summary
            break
    assert summary is not None  # the caller found this anchor in the records
    trace = list(read_lines(run.trace_path))[:anchor]
    for path, kept in ((run.transcript_path, lines), (run.trace_path, trace)):
        write_atomically(path, b"".join(line + b"\n" for line in kept))
    shutil.rmtree(run.path / "tiles")
    run.claim_path.unlink()
    for file in (run.path / "anchors").iterdir():
        if file.name > Path(anchor_file(anchor)).name:
            file.unlink()
    return ResumePoint(anchor, run.anchors.read(anchor), summary, [])
