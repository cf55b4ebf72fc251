"""Records a loop that calls hooks around each batch, as PyTorch Lightning does.

    class Recorder(tallystick.BatchHooks, lightning.Callback): pass
    Trainer(callbacks=[Recorder("run", anchor_stride=50)]).fit(module, data)

Nothing here imports Lightning; any loop that calls these hooks is recorded.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from tallystick.errors import UsageError
from tallystick.frameworks.torch.capture.edits import NO_EDITS, ClippedValues, Edits
from tallystick.frameworks.torch.wrappers import inner_model, inner_optimizer
from tallystick.recorders.attachments import Attachments
from tallystick.recorders.boundary import sheltered
from tallystick.recorders.callback import CallbackRecording
from tallystick.recorders.graph_source import known_blockers
from tallystick.recorders.step_graph import StepGraph, capture_loop


class BatchHooks:
    """Records every optimizer step into `run_dir`; the step is captured from `training_step` of the module.

    `initial` is the directory that the first weights come from, or an earlier run; the spec states their digest. `data`
    is the folder of rows that are trained on. Random numbers follow from `seed`, and anchors stay where `keep` and
    `anchors` say, as with `record_training`. Other keyword arguments are the fields of `RecordRecipe`.
    Raises `UsageError` if `run_dir` is not empty. Nothing is raised into the training: if recording fails, a
    `RuntimeWarning` is issued.
    """

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
        self._recording = CallbackRecording(run_dir, "BatchHooks", description, recorded, seed, attached)
        self._batches: list[Any] = []
        self._losses: list[torch.Tensor] = []

    def on_train_start(self, trainer: Any, module: Any) -> None:
        """Refuse a second training; the first run stays as it is."""
        with sheltered(self._recording.stop):
            if self._recording.has_begun:
                self._recording.refuse_another()

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        """Before the first batch: capture the step and save the state."""
        with sheltered(self._recording.stop):
            if not self._recording.has_begun:
                self._begin(trainer, module, batch)

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Record the step after its last micro-batch."""
        with sheltered(self._recording.stop):
            if not self._recording.is_open:
                return
            self._batches.append(batch)
            self._losses.append(_loss(outputs))
            if len(self._batches) == _accumulation(trainer):
                self._recording.step(self._losses, False, self._batches)
                self._batches, self._losses = [], []

    def on_train_end(self, trainer: Any, module: Any) -> None:
        """Save the last state and write the claim."""
        with sheltered(self._recording.stop):
            self._recording.finish()

    def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None:
        """Record that a step crashed."""
        with sheltered(self._recording.stop):
            self._recording.fail(exception)

    def _begin(self, trainer: Any, module: Any, batch: Any) -> None:
        if len(trainer.optimizers) != 1:
            raise UsageError("BatchHooks records one optimizer")
        optimizer, count = trainer.optimizers[0], _accumulation(trainer)

        def loss(model: Any, examples: Any) -> torch.Tensor:
            return _loss(type(module).training_step(model, examples, 0), is_live=True)

        def capture() -> StepGraph:
            seed = self._recording.seed
            limit: float | None = getattr(trainer, "gradient_clip_val", None)
            by_value = "value" in str(getattr(trainer, "gradient_clip_algorithm", None)).lower()
            edits = Edits(ClippedValues(limit), default_writes=2) if by_value and limit is not None else NO_EDITS
            example = batch if count == 1 else [batch] * count
            model, inner = inner_model(module), inner_optimizer(optimizer)
            return capture_loop(
                model,
                loss,
                inner,
                example,
                clip_norm=None if by_value else limit,
                accumulation=count,
                seed=seed,
                edits=edits,
            )

        blockers = known_blockers(module, optimizer, self._recording.seed)
        self._recording.begin(module, optimizer, {"loop": "batch hooks"}, capture, blockers)


def _accumulation(trainer: Any) -> int:
    return int(getattr(trainer, "accumulate_grad_batches", 1))


def _loss(outputs: Any, is_live: bool = False) -> torch.Tensor:
    found = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
    if not isinstance(found, torch.Tensor):
        raise UsageError("BatchHooks: training_step returns no loss")
    return found if is_live else found.detach()
