"""Trains from a recipe and records every step; resumes interrupted runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from tallystick.commitments.digests import Digest
from tallystick.datasets.corpus_preparation import prepare_corpus
from tallystick.datasets.order import BatchPlan
from tallystick.datasets.preparation import prepare
from tallystick.datasets.samples import Dataset
from tallystick.datasets.shards import Hashed, silent as unseen
from tallystick.errors import UnavailableError, UsageError
from tallystick.frameworks.tokenizer_files import TokenizerFile
from tallystick.frameworks.tokenizers import train_bpe
from tallystick.frameworks.torch.capture.module_trail import ModuleTrail
from tallystick.frameworks.torch.environment import describe_environment
from tallystick.frameworks.torch.training.recipe_step import capture_recipe_step
from tallystick.frameworks.torch.training.summaries import Summariser
from tallystick.frameworks.torch.training.trainer import CRASHES, Observation, Trainer, first_line
from tallystick.graphs.files import save_program
from tallystick.graphs.root import graph_root
from tallystick.recorders.first_weights import begin_with
from tallystick.recorders.resumption import ResumePoint, find_resume_point
from tallystick.recorders.run_recorder import RunRecorder
from tallystick.store.keeping import ALL_HERE, AnchorKeeping
from tallystick.store.lock import RunLock, is_free, lock_new_run
from tallystick.store.origin import open_origin
from tallystick.store.run import RunDirectory
from tallystick.transcripts.claim import Claim
from tallystick.transcripts.dataset import DatasetCommitment
from tallystick.transcripts.recipe import Recipe
from tallystick.transcripts.record import Batch
from tallystick.transcripts.spec import Spec
from tallystick.workloads.origin import Origin
from tallystick.workloads.plan import batch_plan, classes, micro_batches, open_data, projection_seed

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
        self.recorder = self._recorder(keeping)

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
        batch = Batch(indices=tuple(int(position) for position in indices))
        self._record(index, batch, seen, time.perf_counter() - started)
        return seen

    def _record(self, index: int, batch: Batch, seen: Observation, seconds: float) -> None:
        """Record a step. A crash here leaves no `failed` record: the step succeeded, and a resumed run repeats it."""
        try:
            self.recorder.step(
                index,
                batch,
                loss=seen.loss,
                learning_rate=seen.learning_rate,
                gradient_norm=seen.gradient_norm,
                activation=seen.activation,
                seconds=seconds,
                is_last=index == self.recipe.training.steps,
                tags=() if seen.learning_rate else ("noop",),
            )
        except CRASHES as error:
            raise UnavailableError(f"step {index} could not be recorded: {first_line(error)}") from error

    def _recorder(self, keeping: AnchorKeeping) -> RunRecorder:
        trainer = self.trainer
        summariser = Summariser(
            self.recipe.record,
            projection_seed(self.spec),
            trainer.weights(),
            trainer.state,
            self.run.write_blob,
        )
        environment = describe_environment(self.recipe.training.device)
        return RunRecorder(self.run, self.spec, environment, summariser, trainer.state, keeping)


Say = Callable[[str], None]


def train(
    recipe: Recipe,
    source: Path | None,
    out: Path,
    progress: Progress = silent,
    capture_with: Say | None = None,
    keeping: AnchorKeeping = ALL_HERE,
    *,
    tokenizer: Path | None = None,
    initial: Path | None = None,
    tokenized: Hashed = unseen,
) -> Claim:
    """Commit to the data, train by `recipe` and record every step under `out`.

    With `capture_with` the step is captured as a graph first. If that fails, `capture_with` is called with the reason
    as one line, and the run has no graph. `keeping` says where anchors stay. `tokenizer` is the file that a recipe
    names by its digest, and `initial` the directory of the weights that it begins with; `tokenized` is told how many
    more bytes of a corpus were tokenized.

    Raises:
        UsageError: `out` holds anything but a run that was interrupted before its first record.
        UnavailableError: the source, the device, a library or the disk is missing, another process records into `out`,
            or a step crashed.
    """
    origin = _origin(recipe, initial)
    with lock_new_run(out):
        run = RunDirectory(out)
        commitment = commit_data(recipe, source, tokenizer, run.data_path, tokenized)
        graph = None if capture_with is None else capture_step(run, recipe, commitment, capture_with)
        return TrainingRun(run, Spec.of(recipe, commitment, graph), keeping=keeping, origin=origin).record(progress)


def _origin(recipe: Recipe, initial: Path | None) -> Origin | None:
    """The weights that a recipe names; raises `UsageError` where others are given, or none."""
    named = recipe.model.initial
    if initial is None and named is None:
        return None
    if initial is None:
        raise UsageError(f"the recipe begins with the weights {named}: name their directory")
    origin = open_origin(initial)
    if origin.digest != named:
        raise UsageError(
            f"{initial}: holds the weights {origin.digest}, and the recipe begins with {named or 'its seed'}"
        )
    return origin


def commit_data(
    recipe: Recipe, source: Path | None, tokenizer: Path | None, folder: Path, tokenized: Hashed = unseen
) -> DatasetCommitment:
    """Prepare the data of a recipe in `folder` and commit to it; raises what `prepare` and `prepare_corpus` raise."""
    if recipe.data.kind == "corpus":
        if source is None:
            raise UsageError("a corpus is a directory of shards: name it")
        return prepare_corpus(recipe, source, tokenizer, folder, TokenizerFile, tokenized)
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
        return _resume(run, spec, progress, keeping)


def _resume(run: RunDirectory, spec: Spec, progress: Progress, keeping: AnchorKeeping) -> Claim:
    if run.claim_path.exists():
        raise UsageError(f"{run.path}: this run is finished; its claim is {run.claim().identity}")
    if spec.recipe is None:
        raise UsageError(f"{run.path}: recorded from a custom training loop, which no command can resume")
    point = find_resume_point(run)
    training = TrainingRun(run, spec, keeping=keeping)
    if point is None:
        return _start_over(training, progress)
    differences = run.environment().differences(training.recorder.environment)
    if differences:
        raise UnavailableError(f"resume: another stack than the interrupted run's ({differences[0]})")
    return training.resume(point, progress)


def _start_over(training: TrainingRun, progress: Progress) -> Claim:
    if training.recipe.model.initial is not None:
        raise UnavailableError(f"{training.run.path} was interrupted before its first record: train it again")
    training.run.transcript_path.unlink(missing_ok=True)
    training.run.trace_path.unlink(missing_ok=True)
    return training.record(progress)
