"""Records somebody's own PyTorch loop; three lines of it change.

    import tallystick
    with tallystick.record_training("run", model, optimizer) as recorder:
        for inputs, targets in loader:
            loss = ...; loss.backward(); optimizer.step()
            recorder.step(loss, batch=(inputs, targets))

Kernels, order and precision stay the loop's own. Given the loss and an example batch, the step is captured as a graph,
and the run can be replayed from it:

    with tallystick.record_training("run", model, optimizer, loss=loss_of, example=batch) as recorder:
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tallystick.commitments import Digest, digest, encode
from tallystick.errors import UnavailableError, UsageError
from tallystick.frameworks.torch.environment import describe_environment
from tallystick.frameworks.torch.state import generator_state, live_tensors, to_tensor
from tallystick.frameworks.torch.summaries import Summariser
from tallystick.recorders.run_recorder import RunRecorder
from tallystick.recorders.step_graph import LossOfBatch, StepGraph, capture_loop, keep_batch
from tallystick.store import RunDirectory
from tallystick.tensors import Tensor, tensor_digest
from tallystick.transcripts import Batch, RecordRecipe, Spec, projection_seed

Examples = torch.Tensor | Sequence[torch.Tensor] | Mapping[str, torch.Tensor] | Sequence[int]
State = dict[str, Tensor]


class OwnLoopRecorder:
    """Records the steps of a loop it does not control.

    With a step `graph` the state holds exactly what the graph carries from step to step, and every batch is kept.
    """

    def __init__(
        self,
        run: RunDirectory,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        recorded: RecordRecipe,
        description: Mapping[str, str],
        graph: StepGraph | None = None,
    ) -> None:
        self.index = 0
        self._run, self._graph = run, graph
        self._model, self._optimizer, self._recorded = model, optimizer, recorded
        self._device = "cuda" if next(model.parameters()).is_cuda else "cpu"
        spec = Spec(
            description={"model": type(model).__name__} | dict(description),
            record=recorded,
            graph=None if graph is None else graph.root,
            optimizer=None if graph is None else graph.rules,
        )
        if graph is not None:
            graph.save(run)
        weights = {f"weights.{name}": value for name, value in model.named_parameters()}
        summariser = Summariser(recorded, projection_seed(spec), weights, self._state, run.write_blob)
        environment = describe_environment("cuda" if self._device == "cuda" else "cpu")
        self.recorder = RunRecorder(run, spec, environment, summariser, self._state).begin()
        self._last_step = time.perf_counter()

    def step(
        self,
        loss: float | torch.Tensor,
        batch: Any,
        gradient_norm: float | None = None,
        learning_rates: Sequence[float] | None = None,
    ) -> None:
        """Record one optimizer step that was just taken.

        Args:
            loss: the step's loss in the loop's own units.
            batch: the tensors the step consumed (recorded by digest), or the positions of its examples; a list of
                micro-batches where the step was captured with several.
            gradient_norm: the norm of the gradient before clipping, if the loop computed it.
            learning_rates: one for each parameter group; those of the optimizer now if not given.
        """
        rates = tuple(float(rate) for rate in learning_rates or self._rates())
        self.index += 1
        now = time.perf_counter()
        self.recorder.step(
            self.index,
            describe_batch(batch) if self._graph is None else self._kept(self._graph, batch),
            loss=float(loss.detach() if isinstance(loss, torch.Tensor) else loss),
            learning_rate=rates[0],
            learning_rates=rates if len(set(rates)) > 1 else None,
            gradient_norm=gradient_norm,
            seconds=now - self._last_step,
        )
        self._last_step = time.perf_counter()

    def finish(self) -> None:
        """Keep the last state and write the claim."""
        if self.index == 0:
            self.recorder.close()
            raise UsageError("no step was recorded: call `recorder.step(loss, batch)` after each optimizer step")
        if self.index % self._recorded.anchor_stride:
            self.recorder.anchor(self.index)
        self.recorder.finish()

    def _kept(self, graph: StepGraph, batch: Any) -> Batch:
        named = graph.named(batch)
        if misfit := graph.misfit(named):
            warnings.warn(f"step {self.index} cannot be replayed: {misfit}", RuntimeWarning, stacklevel=3)
        return Batch(digest=keep_batch(self._run, named))

    def _rates(self) -> list[float]:
        return [group["lr"] for group in self._optimizer.param_groups]

    def _state(self) -> State:
        state = {name: to_tensor(value) for name, value in live_tensors(self._model, self._optimizer).items()}
        state["position.step"] = Tensor.of(np.asarray(self.index, np.int64))
        if self._graph is None:
            return state | generator_state(self._device, foreign=True)
        return state | {name: empty for name, empty in self._graph.empty_slots().items() if name not in state}


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
            from which a verifier replays; where that fails, a warning says why and the run goes on without.
        example: a batch; its shapes and dtypes count. With `accumulation`, a list of micro-batches.
        clip_norm: the limit to which the loop clips the gradient norm.
        accumulation: micro-batches a step, whose losses are divided by their number.
        **recorded: the fields of `RecordRecipe`: `anchor_stride`, `summaries`, `bucket_mode`, …

    Raises:
        UsageError: `out` is not empty, a setting is unknown, or no step was recorded.
    """
    run, settings = new_run(out), RecordRecipe.from_json(dict(recorded), "record_training")  # type: ignore[arg-type]
    if (loss is None) != (example is None):
        raise UsageError("record_training: a step graph takes `loss` and `example`")
    graph = None
    if loss is not None:
        graph = captured_or_none(model, loss, optimizer, example, clip_norm, accumulation)
    loop = OwnLoopRecorder(run, model, optimizer, settings, description or {}, graph)
    try:
        yield loop
    except BaseException as error:
        loop.recorder.fail(loop.index + 1, error)
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
    """The step graph of a loop, or a warning of one line that says why there is none."""
    try:
        return capture_loop(model, loss, optimizer, example, clip_norm=clip_norm, accumulation=accumulation)
    except UnavailableError as error:
        warnings.warn(f"the run has no step graph and cannot be replayed: {error}", RuntimeWarning, stacklevel=4)
        return None


def new_run(out: str | Path) -> RunDirectory:
    """A run directory to write; raises `UsageError` where something is there already."""
    run = RunDirectory(Path(out))
    if run.path.exists() and any(run.path.iterdir()):
        raise UsageError(f"{out}: not empty; choose another directory")
    return run


def describe_batch(batch: Examples) -> Batch:
    """Positions as they are, tensors by one digest over all of them."""
    if isinstance(batch, Mapping):
        return Batch(digest=_digest_of([batch[name] for name in sorted(batch)]))
    if isinstance(batch, torch.Tensor):
        return Batch(digest=_digest_of([batch]))
    tensors = [item for item in batch if isinstance(item, torch.Tensor)]
    if tensors:
        return Batch(digest=_digest_of(tensors))
    return Batch(indices=tuple(int(item) for item in batch if isinstance(item, int)))


def _digest_of(tensors: Sequence[torch.Tensor]) -> Digest:
    return digest("batch", encode([str(tensor_digest(to_tensor(tensor))) for tensor in tensors]))
