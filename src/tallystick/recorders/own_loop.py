"""Records a custom PyTorch training loop; three lines of it change.

    import tallystick
    with tallystick.record_training("run", model, optimizer) as recorder:
        for inputs, targets in loader:
            loss = ...; loss.backward(); optimizer.step()
            recorder.step(loss, batch=(inputs, targets))

Kernels, order and precision of the loop are not changed. With the loss and an example batch, the step is captured as a
graph, and the run can be replayed from it:

    with tallystick.record_training("run", model, optimizer, loss=loss_of, example=batch) as recorder:
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from tallystick.errors import UnavailableError, UsageError
from tallystick.frameworks.torch.wrappers import inner_model, inner_optimizer, sharding_of
from tallystick.recorders.boundary import say
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
        loss: `loss(model, batch)` as the loop computes it. With it and an `example`, the step is captured as a graph
            from which a verifier replays. If that fails, a warning gives the reason and the run has no graph.
        example: a batch with the shapes and dtypes of all batches. With `accumulation`, a list of micro-batches.
        clip_norm: the limit to which the loop clips the gradient norm.
        accumulation: the number of micro-batches in a step; each loss is divided by it.
        **recorded: the fields of `RecordRecipe`: `anchor_stride`, `summaries`, `bucket_mode`, …

    Raises:
        UsageError: `out` is not empty, or a setting is unknown.
        UnavailableError: another process records into `out`.

    From then on nothing is raised into the loop: if recording fails, a `RuntimeWarning` is issued.
    """
    settings = RecordRecipe.from_json(dict(recorded), "record_training")  # type: ignore[arg-type]
    if (loss is None) != (example is None):
        raise UsageError("record_training: a step graph takes `loss` and `example`")
    with lock_new_run(Path(out)):
        graph = None
        if loss is not None:
            graph = captured_or_none(model, loss, optimizer, example, clip_norm, accumulation)
        loop = OwnLoopRecorder(RunDirectory(Path(out)), model, optimizer, settings, description or {}, graph)
        try:
            yield loop
        except BaseException as error:
            loop.fail(error)
            raise
        loop.finish()


def captured_or_none(
    model: torch.nn.Module,
    loss: LossOfBatch,
    optimizer: torch.optim.Optimizer,
    example: Any,
    clip_norm: float | None,
    accumulation: int,
) -> StepGraph | None:
    """The step graph of a loop; without one, `None` and a warning of one line that gives the reason."""
    if sharding_of(inner_model(model)):
        return None  # the recorder refuses a sharded model with its own warning
    try:
        return capture_loop(
            inner_model(model),
            loss,
            inner_optimizer(optimizer),
            example,
            clip_norm=clip_norm,
            accumulation=accumulation,
        )
    except UnavailableError as error:
        say(f"the run has no step graph and cannot be replayed: {error}")
        return None
