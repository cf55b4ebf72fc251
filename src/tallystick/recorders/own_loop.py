"""Records a custom PyTorch training loop; three lines of it change.

    import tallystick
    with tallystick.record_training("run", model, optimizer) as recorder:
        for inputs, targets in loader:
            loss = ...; loss.backward(); optimizer.step()
            recorder.step(loss, batch=(inputs, targets))

Kernels, order and precision of the loop are not changed. The operators of the first step are watched; from them the
recorder finds the loss as a function of model and batch, clipping, and accumulation, and captures the step as a graph,
from which the run can be replayed. They can also be given:

    with tallystick.record_training("run", model, optimizer, loss=loss_of, example=batch) as recorder:
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from tallystick.errors import UsageError
from tallystick.frameworks.torch.wrappers import inner_model, inner_optimizer, sharding_of
from tallystick.recorders.graph_source import GraphSource, captured, known_blockers, watched
from tallystick.recorders.loop_recorder import OwnLoopRecorder
from tallystick.recorders.step_graph import LossOfBatch, StepGraph, capture_loop
from tallystick.store.lock import lock_new_run
from tallystick.store.run import RunDirectory
from tallystick.transcripts.recipe import RecordRecipe


@contextmanager
def record_training(
    out: str | Path,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    description: Mapping[str, str] | None = None,
    loss: LossOfBatch | None = None,
    example: Any = None,
    clip_norm: float | None = None,
    accumulation: int = 1,
    **recorded: object,
) -> Iterator[OwnLoopRecorder]:
    """Record a training loop into the run directory `out`.

    Args:
        out: a directory that is empty or not there.
        model: in the mode it is trained in.
        optimizer: over parameters of `model`.
        description: anything a reader of the run should know.
        loss: `loss(model, batch)` as the loop computes it, for a step that cannot be watched; it takes an `example`.
            If no step graph can be captured, a warning gives the reasons, and an audit repeats them.
        example: a batch with the shapes and dtypes of all batches. With `accumulation`, a list of micro-batches.
        clip_norm: with `loss`, the limit to which the loop clips the gradient norm.
        accumulation: with `loss`, the number of micro-batches in a step; each loss is divided by it.
        **recorded: the fields of `RecordRecipe`: `anchor_stride`, `summaries`, `bucket_mode`, …

    Raises:
        UsageError: `out` is not empty, a setting is unknown, or several optimizers are given.
        UnavailableError: another process records into `out`.

    From then on nothing is raised into the loop: if recording fails, a `RuntimeWarning` is issued.
    """
    settings = RecordRecipe.from_json(dict(recorded), "record_training")  # type: ignore[arg-type]
    if (loss is None) != (example is None):
        raise UsageError("record_training: a step graph takes `loss` and `example`")
    if isinstance(optimizer, list | tuple):
        raise UsageError("record_training: give one optimizer, with a parameter group for each of several settings")
    with lock_new_run(Path(out)):
        source = GraphSource()
        if not sharding_of(inner_model(model)):  # the recorder refuses a sharded model with its own warning
            blockers = known_blockers(model, optimizer)
            how = {"clip_norm": clip_norm, "accumulation": accumulation}
            source = (
                watched(blockers)
                if loss is None
                else captured(_capture(model, loss, optimizer, example, how), blockers)
            )
        loop = OwnLoopRecorder(RunDirectory(Path(out)), model, optimizer, settings, description or {}, source)
        try:
            yield loop
        except BaseException as error:
            loop.fail(error)
            raise
        loop.finish()


def _capture(
    model: torch.nn.Module, loss: LossOfBatch, optimizer: torch.optim.Optimizer, example: Any, how: Any
) -> Callable[[], StepGraph]:
    return lambda: capture_loop(inner_model(model), loss, inner_optimizer(optimizer), example, **how)
