"""Records a `transformers.Trainer`: one callback is passed, and its loss is that of the model or its own."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, Final

import torch
from accelerate.utils import convert_to_fp32  # type: ignore[import-untyped]
from transformers import Trainer, TrainerCallback

from tallystick.core.errors import UsageError
from tallystick.engines.torch.capture.step import Precision
from tallystick.engines.torch.wrappers import inner_model, inner_optimizer, plain_forward
from tallystick.recording.boundary import contain_errors
from tallystick.recording.loop.own_loop import TrainingCallback
from tallystick.recording.loop.preflight import Blocker
from tallystick.recording.loop.replaced import ModelHook
from tallystick.recording.loop.step_graph import LoopStep, StepGraph, as_mapping

# The loss of a Trainer that its model does not compute: label smoothing, or one of somebody's own.
#
# Such a loss reads labels that the model is never given. So calls of `compute_loss` show the batches of a step in place
# of calls of the model, and `compute_loss` itself is the loss that is captured.

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


class _TrainerLoss:
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


# Records a `transformers.Trainer`: one callback is passed, nothing else of the loop changes.
#
#     Trainer(model, args, train_dataset=data, callbacks=[TallyCallback("run", anchor_stride=50)]).train()
#
# The Trainer does not pass batches to a callback. They are read from the calls of the model, which show what was
# consumed and the number by which a loss is divided. A data collator would not do: it runs ahead of the steps, often in
# other processes.

FUSED_HEAD = "trl computes log-probabilities by a kernel with a backward pass of its own (fused_lm_head)"
FUSED_MENDS = (
    "train by a subclass of SFTTrainer with `compute_loss = transformers.Trainer.compute_loss`, and record DPO or GRPO "
    "as a loop of your own with record_training"
)


class TallyCallback(TrainingCallback, TrainerCallback):  # type: ignore[misc]
    """Records every optimizer step of a Trainer into `run_dir`, and captures the step as a graph if that is possible.

    Keyword arguments are the fields of `RecordRecipe`, and `seed`: a whole number from which dropout, NEFTune's noise
    and other uniform numbers of the model then follow. The training draws other numbers than without the callback,
    from the same distributions, and can be replayed. The step is captured for the optimizers that `spec/optimizer.md`
    names, once for each shape of batches; otherwise a warning gives the reason why the run cannot be replayed. With
    `initial`, the directory that the model was loaded from, or an earlier run, the first weights are compared, and the
    spec states their digest. `data` is the folder of rows (`tallystick.rows`) that are trained on. `keep` and
    `anchors` say which anchors stay on the disk and where copies go, as with `tallystick.train`. Where several
    processes train together, the first one records its steps, without a graph.

    Raises `UsageError` if `run_dir` is not empty or a setting is unknown. Nothing is raised into the training: if
    recording fails, a `RuntimeWarning` is issued. One callback records one `train()`.
    """

    _who = "TallyCallback"
    _watching: Sequence[Any] = ()
    _loss: _TrainerLoss | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **live: Any) -> None:
        """Check that the training can be recorded, and hook the model."""
        with contain_errors(self._stop):
            if self._recording.has_begun:
                self._recording.refuse_another()
                return
            if not state.is_world_process_zero:
                self._recording.has_begun = True  # another process records the training
                return
            if args.n_gpu > 1:
                raise UsageError("TallyCallback records a model on one device")
            self._args, self._model, self._optimizer = args, live["model"], live["optimizer"]
            trainer = trainer_around()
            if trainer is not None and has_own_loss(trainer):
                self._loss = _TrainerLoss(
                    trainer, self._reads, self._gives, self._precision if args.bf16 else nullcontext
                )
            self._watch()

    def on_step_end(self, args: Any, state: Any, control: Any, **live: Any) -> None:
        """Record the step that was just taken."""
        with contain_errors(self._stop):
            if self._recording.is_open:
                self._recording.step(self._losses, self._is_scaled, self._batches)
            self._batches, self._losses = [], []

    def on_train_end(self, args: Any, state: Any, control: Any, **live: Any) -> None:
        """Save the last state and write the claim."""
        with contain_errors(self._stop):
            self._unwatch()
            self._recording.finish()

    @property
    def _is_scaled(self) -> bool:
        """Whether each loss is already its share of the step's loss, and not the mean of its own micro-batch."""
        return ITEMS in self._batches[0] if self._loss is None else self._loss.is_scaled(self._batches[0])

    def _stop(self, reason: str) -> None:
        self._unwatch()
        self._recording.stop(reason)

    def _watch(self) -> None:
        if self._loss is not None:
            self._loss.start()
        before = self._model.register_forward_pre_hook(ModelHook(self._called), with_kwargs=True)
        self._watching = [before, self._model.register_forward_hook(ModelHook(self._answered))]

    def _unwatch(self) -> None:
        for handle in self._watching:
            handle.remove()
        self._watching = ()
        if self._loss is not None:
            self._loss.stop()

    def _called(self, model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        with contain_errors(self._stop):
            if not (model.training and torch.is_grad_enabled()):
                return
            given = dict(kwargs) | {f"x{number}": value for number, value in enumerate(args)}
            if self._loss is None:
                self._reads(given)
            if not self._recording.has_begun:
                self._begin(given)

    def _answered(self, model: torch.nn.Module, args: tuple[Any, ...], output: Any) -> None:
        with contain_errors(self._stop):
            if self._loss is None and model.training and torch.is_grad_enabled():
                self._gives(loss_of(output))

    def _reads(self, batch: Mapping[str, Any]) -> None:
        """Note a micro-batch whose loss is computed next."""
        with contain_errors(self._stop):
            self._batches.append(dict(batch))

    def _gives(self, loss: torch.Tensor) -> None:
        """Note the loss of a micro-batch."""
        with contain_errors(self._stop):
            self._losses.append(loss.detach())

    def _begin(self, given: Mapping[str, Any]) -> None:
        """Capture the step for the first batch, and save the state before it."""
        self._unwatch()
        described = {"loop": "transformers.Trainer", "optim": str(self._args.optim)}
        self._recording.begin(
            self._model,
            self._optimizer,
            described,
            lambda: self._captured(self._batches[:1] * int(self._args.gradient_accumulation_steps)),
            self._blockers(given),
        )
        self._watch()
        self._recording.enter_forward(given)

    def _captured(self, calls: Sequence[Mapping[str, Any]]) -> StepGraph:
        """The step of these micro-batches."""
        model = inner_model(self._model)
        step = LoopStep(
            model,
            self._loss or (lambda called, batch: loss_of(called(**batch))),
            inner_optimizer(self._optimizer),
            clip_norm=self._args.max_grad_norm or math.inf,  # without a limit it scales by 1, for the norm's sake
            accumulation=len(calls),
            precision=self._precision if self._loss is None else nullcontext,
            reduction="sum" if self._is_scaled else "mean",
            seed=self._recording.seed,
        )
        with plain_forward(model):
            return replace(step.capture(calls), recapture=self._captured)

    def _precision(self) -> AbstractContextManager[object]:
        """What accelerate runs the model in."""
        device = next(self._model.parameters()).device.type
        return torch.autocast(device, torch.bfloat16) if self._args.bf16 else nullcontext()

    def _blockers(self, given: Mapping[str, Any]) -> Iterator[Blocker]:
        """Reasons why the run cannot be replayed that the Trainer's arguments show, by their names."""
        args = self._args
        if args.fp16:
            yield Blocker("the scaling of losses for fp16 is not captured", "take bf16, or leave fp16 off")
        if args.torch_compile:
            yield Blocker("kernels of torch_compile=True round otherwise than those of a graph", "leave it off")
        if "fused_lm_head" in given:
            yield Blocker(FUSED_HEAD, FUSED_MENDS)
        if any(name.startswith("x") and name[1:].isdigit() for name in as_mapping(self._batches[0])):
            yield Blocker("the model is called with positional arguments", "call it with arguments by name")


def loss_of(output: Any) -> torch.Tensor:
    """The loss in the output of a model; raises `UsageError` if the model returns none."""
    found = output.get("loss") if isinstance(output, Mapping) else output[0] if isinstance(output, tuple) else None
    if not isinstance(found, torch.Tensor) or found.ndim:
        raise UsageError("TallyCallback: the model returns no loss; record a loop of your own with record_training")
    return found
