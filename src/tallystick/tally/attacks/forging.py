"""The common part of forgers: copy a run, edit it or train it again, make it consistent."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tallystick.core.errors import UsageError
from tallystick.core.files import require_empty_folder, write_atomically
from tallystick.core.safetensors import write_state
from tallystick.core.tensor_digests import state_digest
from tallystick.core.tensors import State, Tensor
from tallystick.engines.torch.tensors import from_tensor
from tallystick.engines.torch.training.trainer import Observation, Summariser, Trainer
from tallystick.formats.claims import Claim
from tallystick.formats.data.step_program import classes, projection_seed
from tallystick.formats.recipe import Recipe, learning_rate
from tallystick.formats.records import (
    AnchorRecord,
    HeaderRecord,
    Record,
    StateSummary,
    StepRecord,
    anchor_file,
    read_record,
)
from tallystick.formats.spec import Environment, Spec
from tallystick.formats.store.log import LogWriter, read_lines
from tallystick.formats.store.run import RunDirectory
from tallystick.programs.step_names import POSITION, weights_of
from tallystick.recording.run_recorder import header_of
from tallystick.recording.training import ResumePoint, TrainingRun

Forger = Callable[[Path, Path], None]
"""Reads the honest run directory that is its first argument, and writes the forged run to the second."""
SEGMENT_STEPS_MIN = 4

# A careful forger calls `seal`; a clumsy one does not. `seal` computes roots, tiles, offsets and claim from the edited
# records. After that, only a replay, a screen or a kept claim digest can detect the forgery.


@dataclass(frozen=True)
class Scene:
    """The place of a forgery in a run, as anchor numbers: the segment that starts at the middle anchor."""

    before: int
    middle: int
    after: int
    last: int

    @property
    def step(self) -> int:
        """A step in the middle of the segment, with recorded steps of the same segment on both sides."""
        return (self.middle + self.after) // 2


def find_scene(run: RunDirectory) -> Scene:
    """The scene of a run; raises `UsageError` if the run is too short to be forged in its middle."""
    marks = [record.index for record in read_records(run) if isinstance(record, AnchorRecord)]
    place = (len(marks) - 1) // 2
    if len(marks) < 3 or marks[place + 1] - marks[place] < SEGMENT_STEPS_MIN:
        raise UsageError(f"{run.path}: too short to be forged; it takes three anchors, four steps apart")
    return Scene(marks[place - 1], marks[place], marks[place + 1], marks[-1])


def copy_run(run: Path, out: Path) -> RunDirectory:
    """Copy a finished run to `out` for editing; raises `UsageError` if `out` is not empty."""
    RunDirectory(run).claim()
    require_empty_folder(out)
    shutil.copytree(run, out, dirs_exist_ok=True)
    return RunDirectory(out)


def copy_data(run: Path, out: Path) -> RunDirectory:
    """A new run directory with only the data of `run`, and its step graph if there is one."""
    require_empty_folder(out)
    honest, forged = RunDirectory(run), RunDirectory(out)
    shutil.copytree(honest.data_path, forged.data_path)
    if honest.graph_path.exists():
        shutil.copytree(honest.graph_path.parent, forged.graph_path.parent)
    return forged


def recipe_of(spec: Spec) -> Recipe:
    """The recipe of a spec; raises `UsageError` for a run of a custom training loop."""
    if spec.recipe is None:
        raise UsageError("a run of a custom training loop has no recipe, and this forgery trains from one")
    return spec.recipe


def read_records(run: RunDirectory) -> list[Record]:
    """All records of a run, in order."""
    return [read_record(line, "transcript.jsonl") for line in read_lines(run.transcript_path)]


def place_of_step(records: Iterable[Record], step: int) -> int:
    """The position of step `step` in the list of records."""
    return next(place for place, r in enumerate(records) if isinstance(r, StepRecord) and r.index == step)


def write_records(run: RunDirectory, records: Iterable[Record]) -> Claim:
    """Rewrite the transcript, relink the steps, and seal the run."""
    lines = [record.to_bytes() for record in relink(records)]
    run.transcript_path.write_bytes(b"".join(line + b"\n" for line in lines))
    return seal(run)


def seal(run: RunDirectory) -> Claim:
    """Write tiles, offsets and claim as the recorder would have written them for these records."""
    spec, environment = run.spec(), run.environment()
    shutil.rmtree(run.path / "tiles", ignore_errors=True)
    anchors = [record for record in read_records(run) if isinstance(record, AnchorRecord)]
    claim = Claim(
        spec=spec.identity,
        environment=environment.digest_as("environment"),
        data=spec.data_root,
        transcript=LogWriter(run.transcript_path).close(),
        trace=LogWriter(run.trace_path).close(),
        final_state=anchors[-1].digest if anchors else run.claim().final_state,
        weights=state_digest(weights_of(read_anchor(run, anchors[-1].index))) if anchors else run.claim().weights,
    )
    write_atomically(run.claim_path, claim.to_bytes())
    return claim


def clumsy_and_careful(edit: Callable[[list[Record], int, Spec], list[Record]]) -> tuple[Forger, Forger]:
    """Two forgers who edit the records, of which a step's is at the given position; the second one seals the run."""

    def edited(run: Path, out: Path) -> tuple[RunDirectory, list[Record]]:
        forged = copy_run(run, out)
        records = read_records(forged)
        return forged, edit(records, place_of_step(records, find_scene(forged).step), forged.spec())

    def clumsy(run: Path, out: Path) -> None:
        forged, records = edited(run, out)
        forged.transcript_path.write_bytes(b"".join(record.to_bytes() + b"\n" for record in records))

    def careful(run: Path, out: Path) -> None:
        write_records(*edited(run, out))

    return clumsy, careful


def resealed(edit: Callable[[list[Record], Scene], Iterable[Record]]) -> Forger:
    """A forger who edits the records of a run and seals it."""

    def forge(run: Path, out: Path) -> None:
        forged = copy_run(run, out)
        write_records(forged, edit(read_records(forged), find_scene(forged)))

    return forge


def relink(records: Iterable[Record]) -> list[Record]:
    """The records with every `pre` summary set to the `post` of the step before it."""
    linked: list[Record] = []
    summary: StateSummary | None = None
    for record in records:
        if isinstance(record, StepRecord):
            assert summary is not None  # an anchor stands before the first step
            linked.append(record.model_copy(update={"pre": summary}))
            summary = record.post
        else:
            linked.append(record)
            if isinstance(record, AnchorRecord) and summary is None:
                summary = record.summary
    return linked


def replace_environment(run: RunDirectory, environment: Environment) -> None:
    """Write another environment to its file, the header and the claim."""
    write_atomically(run.environment_path, environment.to_bytes())
    header = header_of(run.spec(), environment)
    write_records(run, [header if isinstance(record, HeaderRecord) else record for record in read_records(run)])


def read_anchor(run: RunDirectory, mark: int) -> dict[str, Tensor]:
    """The state of anchor `mark`."""
    return run.anchors.read(mark)


def anchor_before(run: RunDirectory, mark: int) -> int:
    """The last anchor before anchor `mark`."""
    return max(r.index for r in read_records(run) if isinstance(r, AnchorRecord) and r.index < mark)


def with_final_state(edit: Callable[[RunDirectory, int], State]) -> Forger:
    """A forger who edits the last anchor, whose number `edit` is given, and everything that is written about it."""

    def forge(run: Path, out: Path) -> None:
        forged = copy_run(run, out)
        last = find_scene(forged).last
        replace_anchor(forged, last, edit(forged, last))

    return forge


def with_value(state: State, name: str, place: int, value: float) -> dict[str, Tensor]:
    """The state with another value at one place of one tensor."""
    values = np.array(state[name].array())
    values.flat[place] = value
    return {**state, name: Tensor.of(values)}


def replace_anchor(run: RunDirectory, mark: int, state: State) -> None:
    """Put another state into anchor `mark`: file, record, summaries, roots and claim."""
    for later in (r.index for r in read_records(run) if isinstance(r, AnchorRecord) and r.index > mark):
        if mark in run.anchors.elsewhere(later).values():  # it keeps the tensors that it had
            write_state(run.path / anchor_file(later), run.anchors.read(later))
    write_state(run.path / anchor_file(mark), state)
    summariser = summariser_of(run, state)
    at_step, at_anchor = summariser.after_step(max(1, mark)), summariser.at_anchor()
    digest = state_digest(state)

    def replaced(record: Record) -> Record:
        if isinstance(record, AnchorRecord) and record.index == mark:
            return record.model_copy(update={"digest": digest, "summary": at_anchor})
        if isinstance(record, StepRecord) and record.index == mark:
            return record.model_copy(update={"post": at_step})
        return record

    write_records(run, [replaced(record) for record in read_records(run)])


def summariser_of(run: RunDirectory, state: State) -> Summariser:
    """A summariser that computes what the recorder would write about a model in `state`."""
    spec = run.spec()
    weights = {name: from_tensor(tensor) for name, tensor in state.items() if name.startswith("weights.")}
    return Summariser(spec.recorded, projection_seed(spec), weights, lambda: state, run.write_blob)


# Trainers that do not follow the recipe, recorded as if they did.
#
# An honest recorder records each of them under the honest spec. So records, summaries, anchors, roots and claim are as
# consistent as those of an honest run, and only the computation is wrong.

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


def from_the_middle(trainer: Callable[[Spec, Scene], Trainer]) -> Forger:
    """A forger who continues the training from the middle anchor with another trainer."""

    def forge(run: Path, out: Path) -> None:
        honest = RunDirectory(run)
        scene = find_scene(honest)
        train_on(run, out, scene.middle, trainer(honest.spec(), scene))

    return forge


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
