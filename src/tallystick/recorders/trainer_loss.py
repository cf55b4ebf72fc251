"""The loss of a Trainer that its model does not compute: label smoothing, or one of somebody's own.

Such a loss reads labels that the model is never given. So calls of `compute_loss` show the batches of a step in place
of calls of the model, and `compute_loss` itself is the loss that is captured.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any, Final

import torch
from accelerate.utils import convert_to_fp32  # type: ignore[import-untyped]
from transformers import Trainer

from tallystick.frameworks.torch.capture.step import Precision

ITEMS: Final = "num_items_in_batch"
"""The argument with the number by which the Trainer divides a summed loss, over all micro-batches of a step."""


def trainer_around() -> Trainer | None:
    """The Trainer that calls a callback, found among the callers: it passes itself to none."""
    frame = inspect.currentframe()
    while frame is not None:
        found = frame.f_locals.get("self")
        if isinstance(found, Trainer):
            return found
        frame = frame.f_back
    return None


def has_own_loss(trainer: Trainer) -> bool:
    """Whether the loss is another than the one that the model returns."""
    is_overridden = type(trainer).compute_loss is not Trainer.compute_loss
    return is_overridden or trainer.label_smoother is not None or trainer.compute_loss_func is not None


class TrainerLoss:
    """Watches the calls of `compute_loss` in training, from `start` to `stop`; called, it computes a loss by it."""

    def __init__(
        self,
        trainer: Trainer,
        before: Callable[[Mapping[str, Any]], None],
        after: Callable[[torch.Tensor], None],
        precision: Precision,
    ) -> None:
        self._trainer, self._before, self._after, self._precision = trainer, before, after, precision
        self._compute = trainer.compute_loss

    def start(self) -> None:
        """Watch from now on."""
        self._trainer.compute_loss = self._watched

    def stop(self) -> None:
        """Give the Trainer back its own method."""
        if self._trainer.__dict__.get("compute_loss") == self._watched:
            del self._trainer.compute_loss

    def is_scaled(self, batch: Mapping[str, Any]) -> bool:
        """Whether the loss of a micro-batch is already its share of the step's loss, as `training_step` decides it."""
        stated = getattr(self._trainer, "loss_is_scaled_for_ga", None)
        if stated is not None:
            return bool(stated)
        is_divided = self._trainer.model_accepts_loss_kwargs and ITEMS in batch
        return is_divided or self._trainer.compute_loss_func is not None

    def __call__(self, model: Any, batch: Mapping[str, Any]) -> torch.Tensor:
        """The loss of a batch as it was watched, on the model or a stand-in for it."""
        inputs = {name: value for name, value in batch.items() if name != ITEMS}
        called = model if self._precision is nullcontext else _InPrecision(model, self._precision)
        loss: torch.Tensor = self._compute(called, inputs, num_items_in_batch=batch.get(ITEMS))
        return loss

    def _watched(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        is_step = model.training and torch.is_grad_enabled()
        if is_step:
            items = kwargs.get(ITEMS)
            self._before(dict(inputs) if items is None else {**inputs, ITEMS: items})
        result = self._compute(model, inputs, *args, **kwargs)
        if is_step:
            self._after(result[0] if isinstance(result, tuple) else result)
        return result


class _InPrecision:
    """A model, or a stand-in for one, in the mixed precision of accelerate: it gives results in float32."""

    def __init__(self, model: Any, precision: Precision) -> None:
        self._model, self._precision = model, precision

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """That of the model, because losses of libraries ask what kind of model they have."""
        return self._model.__class__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model."""
        with self._precision():
            result = self._model(*args, **kwargs)
        return convert_to_fp32(result)
