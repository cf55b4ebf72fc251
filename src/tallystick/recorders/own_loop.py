"""Records a custom PyTorch training loop; three lines of it change.

    import tallystick
    with tallystick.record_training("run", model, optimizer) as recorder:
        for inputs, targets in loader:
            loss = ...; loss.backward(); optimizer.step()
            recorder.step(loss, batch=(inputs, targets))

Kernels, order and precision of the loop are not changed, except that an LSTM on a CPU does not run with oneDNN
(`own_kernels.py`). The operators of the first step are watched; from them the recorder finds the loss as a function of
model and batch, clipping, and accumulation, and captures the step as a graph, from which the run can be replayed. They
can also be given:

    with tallystick.record_training("run", model, optimizer, loss=loss_of, example=batch) as recorder:
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from tallystick.errors import UsageError
from tallystick.frameworks.torch.ema import Ema
from tallystick.frameworks.torch.wrappers import inner_model, sharding_of
from tallystick.recorders.attachments import Attachments
from tallystick.recorders.draws import require_seed
from tallystick.recorders.first_step import GivenLoss
from tallystick.recorders.graph_source import GraphSource, known_blockers, watched
from tallystick.recorders.loop_recorder import SHARE, OwnLoopRecorder
from tallystick.recorders.own_kernels import own_kernels
from tallystick.recorders.step_graph import LossOfBatch
from tallystick.store.lock import lock_new_run
from tallystick.store.run import RunDirectory
from tallystick.transcripts.recipe import RecordRecipe


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
