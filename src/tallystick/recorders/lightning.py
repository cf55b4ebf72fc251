"""Records a loop that announces its batches by hooks, as PyTorch Lightning does.

    class Recorder(BatchHooks, lightning.Callback): pass
    Trainer(callbacks=[Recorder("run", anchor_stride=50)]).fit(module, data)

Nothing here imports Lightning; any loop that calls these hooks is recorded.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from tallystick.errors import UsageError
from tallystick.recorders.own_loop import OwnLoopRecorder, captured_or_none, new_run
from tallystick.transcripts import RecordRecipe


class BatchHooks:
    """Records every optimizer step into `run_dir`; the step is captured from `training_step` of the module.

    Keyword arguments are the fields of `RecordRecipe`. Raises `UsageError` where `run_dir` is not empty.
    """

    def __init__(
        self, run_dir: str | Path, *, description: Mapping[str, str] | None = None, **recorded: object
    ) -> None:
        self._run = new_run(run_dir)
        self._settings = RecordRecipe.from_json(dict(recorded), "BatchHooks")  # type: ignore[arg-type]
        self._description = {"loop": "batch hooks"} | dict(description or {})
        self._recorder: OwnLoopRecorder | None = None
        self._batches: list[Any] = []
        self._losses: list[torch.Tensor] = []
        self._rates: list[float] | None = None

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        """Before the first batch: capture the step and keep the state."""
        if self._recorder is None:
            self._recorder = self._begin(trainer, module, batch)

    def on_before_optimizer_step(self, trainer: Any, module: Any, optimizer: Any) -> None:
        """Note the learning rates before a schedule moves them."""
        self._rates = [float(group["lr"]) for group in optimizer.param_groups]

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Record the step once its last micro-batch is through; raises `UsageError` where there is no loss."""
        assert self._recorder is not None  # a batch was announced before
        self._batches.append(batch)
        self._losses.append(_loss(outputs))
        count = _accumulation(trainer)
        if len(self._batches) == count:
            given = self._batches[0] if count == 1 else self._batches
            self._recorder.step(torch.stack(self._losses).mean(), given, learning_rates=self._rates)
            self._batches, self._losses = [], []

    def on_train_end(self, trainer: Any, module: Any) -> None:
        """Keep the last state and write the claim."""
        if self._recorder is not None:
            self._recorder.finish()

    def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None:
        """Record that a step crashed."""
        if self._recorder is not None:
            self._recorder.recorder.fail(self._recorder.index + 1, exception)

    def _begin(self, trainer: Any, module: Any, batch: Any) -> OwnLoopRecorder:
        if len(trainer.optimizers) != 1:
            raise UsageError("BatchHooks records one optimizer")
        optimizer, count = trainer.optimizers[0], _accumulation(trainer)

        def loss(model: Any, examples: Any) -> torch.Tensor:
            return _loss(type(module).training_step(model, examples, 0), is_live=True)

        limit = getattr(trainer, "gradient_clip_val", None)
        graph = captured_or_none(module, loss, optimizer, batch if count == 1 else [batch] * count, limit, count)
        return OwnLoopRecorder(self._run, module, optimizer, self._settings, self._description, graph)


def _accumulation(trainer: Any) -> int:
    return int(getattr(trainer, "accumulate_grad_batches", 1))


def _loss(outputs: Any, is_live: bool = False) -> torch.Tensor:
    found = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
    if not isinstance(found, torch.Tensor):
        raise UsageError("BatchHooks: training_step returns no loss")
    return found if is_live else found.detach()
