"""Records a custom PyTorch training loop by three lines in it, or by the callbacks of a library such as Lightning."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from tallystick.core.errors import UsageError
from tallystick.engines.torch.capture.step import NO_EDITS, ClippedValues, Edits
from tallystick.engines.torch.wrappers import Ema, inner_model, inner_optimizer, require_whole, sharding_of
from tallystick.formats.recipe import RecordRecipe
from tallystick.formats.store.run import RunDirectory, lock_new_run, require_free
from tallystick.recording.attachments import NOTHING, Attachments
from tallystick.recording.boundary import contain_errors, warn
from tallystick.recording.loop.draws import require_seed
from tallystick.recording.loop.loop_recorder import SHARE, OwnLoopRecorder
from tallystick.recording.loop.preflight import Blocker
from tallystick.recording.loop.program_watch import GivenLoss
from tallystick.recording.loop.replaced import own_kernels
from tallystick.recording.loop.step_graph import LoopStep, LossOfBatch, StepGraph
from tallystick.recording.loop.step_graphs import GraphSource, captured, known_blockers, watched

# Records a custom PyTorch training loop; three lines of it change.
#
#     import tallystick
#     with tallystick.record_training("run", model, optimizer) as recorder:
#         for inputs, targets in loader:
#             loss = ...; loss.backward(); optimizer.step()
#             recorder.step(loss, batch=(inputs, targets))
#
# Kernels, order and precision of the loop are not changed, except that an LSTM on a CPU does not run with oneDNN
# (`own_kernels`). The operators of the first step are watched; from them the recorder finds the loss as a function
# of model and batch, clipping, and accumulation, and captures the step as a graph, from which the run can be replayed.
# They can also be given:
#
#     with tallystick.record_training("run", model, optimizer, loss=loss_of, example=batch) as recorder:


@contextmanager
def record_training(
    out: str | Path,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    *,
    description: Mapping[str, str] | None = None,
    loss: LossOfBatch | None = None,
    example: Any = None,
    clip_norm: float | None = None,
    accumulation: int = 1,
    seed: int | None = None,
    initial: str | Path | None = None,
    data: str | Path | None = None,
    keep: str | None = None,
    anchors: str | None = None,
    ema: Ema | None = None,
    self_audit: float = SHARE,
    **recorded: object,
) -> Iterator[OwnLoopRecorder]:
    """Record a training loop into the run directory `out`.

    Args:
        out: a directory that is empty or not there.
        model: in the mode it is trained in.
        optimizer: over parameters of `model`, or a list of those that step in turn, once in each step of the loop.
        description: anything a reader of the run should know.
        loss: `loss(model, batch)` as the loop computes it, for a step that cannot be watched; it takes an `example`.
            If no step graph can be captured, a warning gives the reasons, and an audit repeats them.
        example: a batch with the shapes and dtypes of all batches. With `accumulation`, a list of micro-batches.
        clip_norm: with `loss`, the limit to which the loop clips the gradient norm, in case that its first step cannot
            be watched.
        accumulation: with `loss`, the number of micro-batches in a step; each loss is divided by it.
        seed: a whole number below 2**53 from which dropout and uniform numbers of the model follow. The training then
            draws other numbers than without the recorder, from the same distributions, and can be replayed.
        initial: the directory that the first weights come from: a model directory, or an earlier run. They are
            compared, and the spec states their digest.
        data: the folder of rows (`tallystick.write_rows`) that the batches are of; the records name their positions.
        keep: which anchors stay on the disk besides the first and the last: the last `N`, or `every:K`; by default all.
        anchors: the URL of a store that gets a copy of every anchor, as `file://…` or `s3://…`; `zstd::URL` compresses.
        ema: the averages of the weights that the loop updates between its step and the record (`tallystick.Ema`); the
            state holds them too, and the step graph updates them.
        self_audit: the share of the loop's time that goes into replays of what was recorded, after 20 seconds of them;
            steps that are not what their graph says are withdrawn. `math.inf` replays every step.
        **recorded: the fields of `RecordRecipe`: `anchor_stride`, `summaries`, `bucket_mode`, …

    Raises:
        UsageError: `out` is not empty, or a setting is unknown.
        UnavailableError: another process records into `out`, `initial` holds no weights, or `data` no rows.

    From then on nothing is raised into the loop: if recording fails, a `RuntimeWarning` is issued.
    """
    require_seed(seed, "record_training")
    settings = RecordRecipe.from_json(dict(recorded), "record_training")  # type: ignore[arg-type]
    if (loss is None) != (example is None):
        raise UsageError("record_training: a step graph takes `loss` and `example`")
    attached = replace(Attachments.open(initial, data, keep, anchors), ema=ema)
    if ema is not None:
        ema.live(inner_model(model))  # averages that are not there are said at once
    with lock_new_run(Path(out)), own_kernels(inner_model(model)):
        source = GraphSource()
        if not sharding_of(inner_model(model)):  # the recorder refuses a sharded model with its own warning
            blockers = known_blockers(model, optimizer, seed)
            given = None if loss is None else GivenLoss(loss, example, clip_norm, accumulation)
            source = watched(blockers, seed, given)
        run = RunDirectory(Path(out))
        loop = OwnLoopRecorder(run, model, optimizer, settings, description or {}, source, attached, self_audit)
        try:
            yield loop
        except BaseException as error:
            loop.fail(error)
            raise
        loop.finish()


# The common part of recorders that work by callbacks: the run begins at the first batch, inside the loop.


class CallbackRecording:
    """One run: settings are read before the training, and the recorder begins and ends inside it.

    Raises `UsageError` if `run_dir` is not empty or a setting is unknown. Nothing is raised after that.
    """

    def __init__(
        self,
        run_dir: str | Path,
        who: str,
        description: Mapping[str, str] | None,
        recorded: Mapping[str, object],
        seed: int | None = None,
        attached: Attachments = NOTHING,
    ) -> None:
        self._folder, self._who, self.seed = Path(run_dir), who, require_seed(seed, who)
        require_free(self._folder)
        self._settings = RecordRecipe.from_json(dict(recorded), who)  # type: ignore[arg-type]
        self._description = dict(description or {})
        self._attached = attached
        self._recorder: OwnLoopRecorder | None = None  # while steps are recorded
        self._while_open = ExitStack()
        self.has_begun = False
        """Whether a training is or was recorded."""

    @property
    def is_open(self) -> bool:
        """Whether steps are being recorded now."""
        return self._recorder is not None

    def begin(
        self,
        model: torch.nn.Module,
        optimizer: Any,
        loop: Mapping[str, str],
        capture: Callable[[], StepGraph],
        blockers: Iterable[Blocker] = (),
    ) -> None:
        """Lock the directory, capture the step, and save the state before it; `blockers` are those of the library.

        Raises `UnavailableError` for a sharded model, before anything is written.
        """
        require_whole(inner_model(model))
        known = known_blockers(model, optimizer, self.seed) + list(blockers)
        self._while_open.callback(lock_new_run(self._folder).release)
        described = {**loop, **self._description}
        run = RunDirectory(self._folder)
        self._while_open.enter_context(own_kernels(inner_model(model)))
        source = captured(capture, known)
        self._recorder = OwnLoopRecorder(run, model, optimizer, self._settings, described, source, self._attached)
        self.has_begun = True

    def enter_forward(self, given: Mapping[str, Any]) -> None:
        """Begin inside a hook of the model, which begins to run with what is `given`."""
        if self._recorder is not None:
            self._recorder.enter_forward(given)

    def step(self, losses: list[torch.Tensor], is_scaled: bool, batches: list[Any]) -> None:
        """Record a step over micro-batches; losses are added if `is_scaled`, and averaged otherwise."""
        assert self._recorder is not None
        total = torch.stack(losses).sum() if is_scaled else torch.stack(losses).mean()
        self._recorder.step(total, batches[0] if len(batches) == 1 else batches)

    def finish(self) -> None:
        """Save the last state and write the claim."""
        if self._recorder is not None:
            self._recorder.finish()
            self._end()

    def fail(self, error: BaseException) -> None:
        """Record that a step crashed."""
        if self._recorder is not None:
            self._recorder.fail(error)
            self._end()

    def stop(self, reason: str) -> None:
        """End the recording, and warn once with the reason."""
        if self._recorder is not None:
            self._recorder.stop(reason)
        elif not self.has_begun:
            warn(f"the training is not recorded and goes on: {reason}")
        self._end()

    def refuse_another(self) -> None:
        """Warn that a second training is not recorded; the first run stays as it is."""
        again = f"one {self._who} records one training; give the next one another, with a directory of its own"
        self.stop(again)
        warn(f"this training is not recorded and goes on: {again}")

    def _end(self) -> None:
        self._recorder, self.has_begun = None, True
        self._while_open.close()


class TrainingCallback:
    """What a user gives to a recorder that works by callbacks, whose name is `_who`."""

    _who: str

    def __init__(
        self,
        run_dir: str | Path,
        *,
        description: Mapping[str, str] | None = None,
        seed: int | None = None,
        initial: str | Path | None = None,
        data: str | Path | None = None,
        keep: str | None = None,
        anchors: str | None = None,
        **recorded: object,
    ) -> None:
        attached = Attachments.open(initial, data, keep, anchors)
        self._recording = CallbackRecording(run_dir, self._who, description, recorded, seed, attached)
        self._batches: list[Any] = []
        self._losses: list[torch.Tensor] = []


# Records a loop that calls hooks around each batch, as PyTorch Lightning does.
#
#     class Recorder(tallystick.BatchHooks, lightning.Callback): pass
#     Trainer(callbacks=[Recorder("run", anchor_stride=50)]).fit(module, data)
#
# Nothing here imports Lightning; any loop that calls these hooks is recorded.


class BatchHooks(TrainingCallback):
    """Records every optimizer step into `run_dir`; the step is captured from `training_step` of the module.

    `initial` is the directory that the first weights come from, or an earlier run; the spec states their digest. `data`
    is the folder of rows that are trained on. Random numbers follow from `seed`, and anchors stay where `keep` and
    `anchors` say, as with `record_training`. Other keyword arguments are the fields of `RecordRecipe`.
    Raises `UsageError` if `run_dir` is not empty. Nothing is raised into the training: if recording fails, a
    `RuntimeWarning` is issued.
    """

    _who = "BatchHooks"

    def on_train_start(self, trainer: Any, module: Any) -> None:
        """Refuse a second training; the first run stays as it is."""
        with contain_errors(self._recording.stop):
            if self._recording.has_begun:
                self._recording.refuse_another()

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        """Before the first batch: capture the step and save the state."""
        with contain_errors(self._recording.stop):
            if not self._recording.has_begun:
                self._begin(trainer, module, batch)

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Record the step after its last micro-batch."""
        with contain_errors(self._recording.stop):
            if not self._recording.is_open:
                return
            self._batches.append(batch)
            self._losses.append(_loss(outputs))
            if len(self._batches) == int(getattr(trainer, "accumulate_grad_batches", 1)):
                self._recording.step(self._losses, False, self._batches)
                self._batches, self._losses = [], []

    def on_train_end(self, trainer: Any, module: Any) -> None:
        """Save the last state and write the claim."""
        with contain_errors(self._recording.stop):
            self._recording.finish()

    def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None:
        """Record that a step crashed."""
        with contain_errors(self._recording.stop):
            self._recording.fail(exception)

    def _begin(self, trainer: Any, module: Any, batch: Any) -> None:
        if len(trainer.optimizers) != 1:
            raise UsageError("BatchHooks records one optimizer")
        optimizer, count = trainer.optimizers[0], int(getattr(trainer, "accumulate_grad_batches", 1))

        def loss(model: Any, examples: Any) -> torch.Tensor:
            return _loss(type(module).training_step(model, examples, 0), is_live=True)

        def capture() -> StepGraph:
            limit: float | None = getattr(trainer, "gradient_clip_val", None)
            by_value = "value" in str(getattr(trainer, "gradient_clip_algorithm", None)).lower()
            edits = Edits(ClippedValues(limit), default_writes=2) if by_value and limit is not None else NO_EDITS
            step = LoopStep(
                inner_model(module),
                loss,
                inner_optimizer(optimizer),
                clip_norm=None if by_value else limit,
                accumulation=count,
                seed=self._recording.seed,
                edits=edits,
            )
            return step.capture([batch] * count)

        self._recording.begin(module, optimizer, {"loop": "batch hooks"}, capture)


def _loss(outputs: Any, is_live: bool = False) -> torch.Tensor:
    found = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
    if not isinstance(found, torch.Tensor):
        raise UsageError("BatchHooks: training_step returns no loss")
    return found if is_live else found.detach()
