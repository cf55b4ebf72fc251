"""Trains from a recipe and records every step; resumes interrupted runs and draws their curves."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from tallystick.core.digests import Digest, digest
from tallystick.core.documents import parse_toml
from tallystick.core.errors import MalformedError, ProofError, UnavailableError, UsageError
from tallystick.core.files import read_document
from tallystick.core.plots import LIGHT, dress, new_figure, write_png
from tallystick.core.tensor_digests import state_digest
from tallystick.core.tensors import Tensor
from tallystick.engines.tokenizers import TokenizerFile, train_bpe
from tallystick.engines.torch.capture.module_trail import ModuleTrail
from tallystick.engines.torch.environment import describe_environment
from tallystick.engines.torch.training.trainer import CRASHES, Observation, Summariser, Trainer, first_line
from tallystick.engines.torch.training.verifier_stack import capture_recipe_step
from tallystick.formats.claims import Claim
from tallystick.formats.data.corpus import Hashed, silent as unseen
from tallystick.formats.data.preparation import prepare, prepare_corpus
from tallystick.formats.data.samples import BatchPlan, Dataset
from tallystick.formats.data.step_program import batch_plan, classes, micro_batches, open_data, projection_seed
from tallystick.formats.data.tokenizer import TOKENIZER_BYTES_MAX
from tallystick.formats.dataset import DatasetCommitment
from tallystick.formats.recipe import Recipe
from tallystick.formats.records import AnchorRecord, Batch, StateSummary, StepRecord, read_record
from tallystick.formats.spec import Origin, Spec
from tallystick.formats.store.directories import open_origin
from tallystick.formats.store.keeping import ALL_HERE, ANCHOR_MARK, AnchorKeeping
from tallystick.formats.store.log import mend_tail, read_lines
from tallystick.formats.store.run import Anchors, RunDirectory, RunLock, is_free, lock_new_run
from tallystick.programs.encoding import graph_root
from tallystick.programs.files import save_program
from tallystick.recording.attachments import begin_with
from tallystick.recording.run_recorder import RunRecorder

# Reads the TOML file with a recipe and the path of its data.


class Config(NamedTuple):
    """A recipe, the file or corpus to train on, the file of a tokenizer and the weights that were made elsewhere."""

    recipe: Recipe
    source: Path | None = None
    tokenizer: Path | None = None
    initial: Path | None = None


def read_config(path: Path) -> Config:
    """The recipe in `path`, with what `data.path` and `tokenizer.path` name, relative to the config.

    The recipe names the tokenizer by its digest, which is read from the file where the config does not state it, and
    the weights of the directory `model.initial` by theirs.

    Raises:
        MalformedError: the file is no valid TOML, or a field is unknown, missing or out of range.
        UsageError: the kind of data needs a source, and none is named.
        UnavailableError: there is no such file.
    """
    table = parse_toml(read_document(path), str(path))
    source, tokenizer = (_pop_path(table, section, path) for section in ("data", "tokenizer"))
    if tokenizer is not None:
        table["tokenizer"].setdefault("digest", digest("blob", read_document(tokenizer, TOKENIZER_BYTES_MAX)))
    initial = _pop_path(table, "model", path, "initial")
    if initial is not None:
        table["model"]["initial"] = open_origin(initial).digest
    recipe = Recipe.from_json(table, str(path))
    if recipe.data.kind != "digits" and source is None:
        raise UsageError(f"{path}: data.path: name the file to train on")
    return Config(recipe, source, tokenizer, initial)


def _pop_path(table: dict[str, Any], section: str, config: Path, field: str = "path") -> Path | None:
    settings = table.get(section)
    named = settings.pop(field, None) if isinstance(settings, dict) else None
    return config.parent / named if isinstance(named, str) else None


# Draws the loss curve of a run as a picture beside its records.


def draw_losses(run: RunDirectory) -> None:
    """Write `loss.png`: the recorded loss in nats over the steps, without losses that are not finite."""
    records = (read_record(line, "transcript.jsonl") for line in read_lines(run.transcript_path))
    steps = [record for record in records if isinstance(record, StepRecord)]
    finite = [(step.index, step.loss) for step in steps if not isinstance(step.loss, str)]
    figure = new_figure(7, 3.5)
    axes = figure.subplots()
    axes.plot([index for index, _ in finite], [loss for _, loss in finite], linewidth=1.4, color=LIGHT.good)
    axes.set(xlabel="step", ylabel="loss (nats)")
    dress(axes, "Recorded loss")
    write_png(figure, run.path / "loss.png")


# Finds the anchor from which an interrupted run can be resumed.
#
# One pass keeps the line numbers of the anchors. Only the lines after the chosen anchor are held in memory, so memory
# use is small for runs of any length.


@dataclass(frozen=True)
class ResumePoint:
    """The last intact anchor of a run, and the records that were appended after it."""

    index: int
    state: Mapping[str, Tensor]
    summary: StateSummary
    lines_after: list[bytes]


def find_resume_point(run: RunDirectory) -> ResumePoint | None:
    """The last anchor whose record and file are both complete, or `None` if there is none yet."""
    if not run.transcript_path.exists():
        return None
    mend_tail(run.transcript_path)
    places = [place for place, line in enumerate(read_lines(run.transcript_path)) if ANCHOR_MARK in line]
    for place in reversed(places):
        lines = islice(read_lines(run.transcript_path), max(0, place - 1), None)
        before = next(lines)
        anchor = read_record(next(lines) if place else before, f"transcript.jsonl: line {place + 1}")
        if isinstance(anchor, AnchorRecord) and (state := _intact(run, anchor)) is not None:
            if anchor.index == 0:
                return ResumePoint(0, state, anchor.summary, list(lines))
            step = read_record(before, f"transcript.jsonl: line {place}")
            if not isinstance(step, StepRecord):
                raise MalformedError(f"transcript.jsonl: line {place} should be step {anchor.index}")
            return ResumePoint(anchor.index, state, step.post, list(lines))
    return None


def _intact(run: RunDirectory, anchor: AnchorRecord) -> Mapping[str, Tensor] | None:
    try:
        state = Anchors(run.path).read(anchor.index)
    except (MalformedError, UnavailableError, ProofError):
        return None
    return state if state_digest(state) == anchor.digest else None


# Trains from a recipe and records every step; resumes interrupted runs.

Progress = Callable[[int, Observation, float], None]
"""Called after each step with its index, its observation, and the share of time spent on recording."""


def silent(_index: int, _seen: Observation, _overhead: float) -> None:
    """Report nothing."""


class TrainingRun:
    """One recipe with its committed data and its trainer, recorded into a run directory."""

    def __init__(
        self,
        run: RunDirectory,
        spec: Spec,
        trainer: Trainer | None = None,
        keeping: AnchorKeeping = ALL_HERE,
        origin: Origin | None = None,
    ) -> None:
        recipe = spec.recipe
        assert recipe is not None  # only specs with a recipe come here
        self.run, self.spec, self.recipe = run, spec, recipe
        self.dataset: Dataset = open_data(spec, run.data_path)
        self.plan: BatchPlan = batch_plan(spec, self.dataset)
        self.trainer = trainer or Trainer(recipe, classes(spec))
        if origin is not None:
            begin_with(self.trainer, origin)
        trainer = self.trainer
        summariser = Summariser(recipe.record, projection_seed(spec), trainer.weights(), trainer.state, run.write_blob)
        environment = describe_environment(recipe.training.device)
        self.recorder = RunRecorder(run, spec, environment, summariser, trainer.state, keeping)

    def record(self, progress: Progress = silent) -> Claim:
        """Train from the seeded initial state to the last step."""
        with closing(self.recorder):
            self.recorder.begin()
            return self._take_steps(progress)

    def resume(self, point: ResumePoint, progress: Progress = silent) -> Claim:
        """Continue the training from an anchor of an interrupted run."""
        self.trainer.restore(point.state)
        with closing(self.recorder):
            self.recorder.resume(point.summary, point.lines_after)
            return self._take_steps(progress)

    def _take_steps(self, progress: Progress) -> Claim:
        started = time.perf_counter()
        while self.trainer.index < self.recipe.training.steps:
            index = self.trainer.index + 1
            seen = self._step(index)
            elapsed = time.perf_counter() - started
            progress(index, seen, self.recorder.seconds_recording / elapsed)
        return self.recorder.finish()

    def _step(self, index: int) -> Observation:
        started = time.perf_counter()
        indices = self.plan.indices(index)
        try:
            seen = self.trainer.step(micro_batches(self.recipe, self.dataset, indices))
        except CRASHES as error:
            self.recorder.fail(index, error)
            raise UnavailableError(f"step {index} crashed: {first_line(error)}") from error
        try:
            self.recorder.step(
                index,
                Batch(indices=tuple(int(position) for position in indices)),
                seen.loss,
                seconds=time.perf_counter() - started,
                is_last=index == self.recipe.training.steps,
                gradient_norm=seen.gradient_norm,
                activation=seen.activation,
                learning_rate=seen.learning_rate,
                tags=() if seen.learning_rate else ("noop",),
            )
        except CRASHES as error:  # no `failed` record: the step succeeded, and a resumed run repeats it
            raise UnavailableError(f"step {index} could not be recorded: {first_line(error)}") from error
        return seen


Say = Callable[[str], None]


def train(
    config: Config,
    out: Path,
    progress: Progress = silent,
    capture_with: Say | None = None,
    keeping: AnchorKeeping = ALL_HERE,
    tokenized: Hashed = unseen,
) -> Claim:
    """Commit to the data, train by the recipe of `config` and record every step under `out`.

    With `capture_with` the step is captured as a graph first. If that fails, `capture_with` is called with the reason
    as one line, and the run has no graph. `keeping` says where anchors stay; `tokenized` is called with the number of
    bytes of a corpus that were tokenized since the last call.

    Raises:
        UsageError: `out` holds anything but a run that was interrupted before its first record.
        UnavailableError: the source, the device, a library or the disk is missing, another process records into `out`,
            or a step crashed.
    """
    recipe, origin = config.recipe, _origin(config)
    with lock_new_run(out):
        run = RunDirectory(out)
        commitment = _commit_data(config, run.data_path, tokenized)
        graph = None if capture_with is None else capture_step(run, recipe, commitment, capture_with)
        return TrainingRun(run, Spec.of(recipe, commitment, graph), keeping=keeping, origin=origin).record(progress)


def _origin(config: Config) -> Origin | None:
    """The weights that a recipe names; raises `UsageError` where others are given, or none."""
    initial, named = config.initial, config.recipe.model.initial
    if initial is None:
        if named is not None:
            raise UsageError(f"the recipe begins with the weights {named}: name their directory")
        return None
    origin = open_origin(initial)
    if origin.digest != named:
        raise UsageError(
            f"{initial}: holds the weights {origin.digest}, and the recipe begins with {named or 'its seed'}"
        )
    return origin


def _commit_data(config: Config, folder: Path, tokenized: Hashed) -> DatasetCommitment:
    """Prepare the data of a recipe in `folder` and commit to it; raises what `prepare` and `prepare_corpus` raise."""
    recipe, source = config.recipe, config.source
    if recipe.data.kind == "corpus":
        if source is None:
            raise UsageError("a corpus is a directory of shards: name it")
        return prepare_corpus(recipe, source, config.tokenizer, folder, TokenizerFile, tokenized)
    return prepare(
        recipe.data.kind,
        source,
        folder,
        tokenization="bpe" if recipe.tokenizer.kind == "bpe" else "bytes",
        vocabulary=recipe.tokenizer.vocabulary,
        train_bpe=train_bpe,
    )


def capture_step(run: RunDirectory, recipe: Recipe, commitment: DatasetCommitment, say: Say) -> Digest | None:
    """Write the step graph of a recipe into the run directory and return its root.

    If the step cannot be captured, call `say` with the reason and return `None`.
    """
    try:
        captured = capture_recipe_step(recipe, classes(Spec.of(recipe, commitment)), ModuleTrail())
    except UnavailableError as error:
        say(f"the run has no step graph, and is replayed from its recipe: {error}")
        return None
    save_program(run.graph_path, captured.graph, captured.constants, captured.modules)
    return graph_root(captured.graph)


def resume(out: Path, progress: Progress = silent, keeping: AnchorKeeping = ALL_HERE) -> Claim:
    """Finish an interrupted run; the transcript root is that of an undisturbed one on the same stack.

    Raises:
        UsageError: the run is finished, or it was recorded from a custom training loop.
        UnavailableError: nothing was recorded yet, another process records into it, this is another stack, or for the
            reasons of `train`.
    """
    run = RunDirectory(out)
    if not run.spec_path.exists() and run.path.is_dir() and is_free(run.path) and any(run.path.iterdir()):
        raise UnavailableError(f"spec.json: not there; {out} was interrupted before its first record: train it again")
    spec = run.spec()
    with RunLock(out):
        if run.claim_path.exists():
            raise UsageError(f"{run.path}: this run is finished; its claim is {run.claim().identity}")
        if spec.recipe is None:
            raise UsageError(f"{run.path}: recorded from a custom training loop, which no command can resume")
        point = find_resume_point(run)
        training = TrainingRun(run, spec, keeping=keeping)
        if point is not None:
            if differences := run.environment().differences(training.recorder.environment):
                raise UnavailableError(f"resume: another stack than the interrupted run's ({differences[0]})")
            return training.resume(point, progress)
        if spec.recipe.model.initial is not None:
            raise UnavailableError(f"{run.path} was interrupted before its first record: train it again")
        run.transcript_path.unlink(missing_ok=True)
        run.trace_path.unlink(missing_ok=True)
        return training.record(progress)
