"""Records somebody's own PyTorch loop; three lines of it change.

    import tallystick
    with tallystick.record_training("run", model, optimizer) as recorder:
        for inputs, targets in loader:
            loss = ...; loss.backward(); optimizer.step()
            recorder.step(loss, batch=(inputs, targets))

Kernels, order and precision stay the loop's own.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from tallystick.commitments import Digest, digest, encode
from tallystick.errors import UsageError
from tallystick.frameworks.torch.environment import describe_environment
from tallystick.frameworks.torch.state import generator_state, live_tensors, to_tensor
from tallystick.frameworks.torch.summaries import Summariser
from tallystick.recorders.run_recorder import RunRecorder
from tallystick.store import RunDirectory
from tallystick.tensors import Tensor, tensor_digest
from tallystick.transcripts import Batch, RecordRecipe, Spec, projection_seed

Examples = torch.Tensor | Sequence[torch.Tensor] | Mapping[str, torch.Tensor] | Sequence[int]


class OwnLoopRecorder:
    """Records the steps of a loop it does not control."""

    def __init__(
        self,
        run: RunDirectory,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        recorded: RecordRecipe,
        description: Mapping[str, str],
    ) -> None:
        self.index = 0
        self._model, self._optimizer, self._recorded = model, optimizer, recorded
        self._device = "cuda" if next(model.parameters()).is_cuda else "cpu"
        spec = Spec(description={"model": type(model).__name__} | dict(description), record=recorded)
        weights = {f"weights.{name}": value for name, value in model.named_parameters()}
        summariser = Summariser(recorded, projection_seed(spec), weights, self._state, run.write_blob)
        environment = describe_environment("cuda" if self._device == "cuda" else "cpu")
        self.recorder = RunRecorder(run, spec, environment, summariser, self._state).begin()
        self._last_step = time.perf_counter()

    def step(self, loss: float | torch.Tensor, batch: Examples, gradient_norm: float | None = None) -> None:
        """Record one optimizer step that was just taken.

        Args:
            loss: the step's loss in the loop's own units.
            batch: the tensors the step consumed (recorded by digest), or the positions of its examples.
            gradient_norm: the norm of the gradient, if the loop computed it.
        """
        self.index += 1
        now = time.perf_counter()
        self.recorder.step(
            self.index,
            describe_batch(batch),
            loss=float(loss.detach() if isinstance(loss, torch.Tensor) else loss),
            learning_rate=float(self._optimizer.param_groups[0]["lr"]),
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

    def _state(self) -> dict[str, Tensor]:
        state = {name: to_tensor(value) for name, value in live_tensors(self._model, self._optimizer).items()}
        state |= generator_state(self._device, foreign=True)
        state["position.step"] = Tensor.of(np.asarray(self.index, np.int64))
        return state


@contextmanager
def record_training(
    out: str | Path,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    description: Mapping[str, str] | None = None,
    **recorded: object,
) -> Iterator[OwnLoopRecorder]:
    """Record a training loop into the run directory `out`.

    Keyword arguments are the fields of `RecordRecipe`: `anchor_stride`, `summaries`, `bucket_mode`, …

    Raises:
        UsageError: `out` is not empty, a setting is unknown, or no step was recorded.
    """
    run = RunDirectory(Path(out))
    if run.path.exists() and any(run.path.iterdir()):
        raise UsageError(f"{out}: not empty; choose another directory")
    settings = RecordRecipe.from_json(dict(recorded), "record_training")  # type: ignore[arg-type]
    loop = OwnLoopRecorder(run, model, optimizer, settings, description or {})
    try:
        yield loop
    except BaseException as error:
        loop.recorder.fail(loop.index + 1, error)
        raise
    loop.finish()


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
