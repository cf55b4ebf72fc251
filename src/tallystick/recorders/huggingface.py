"""Records a `transformers.Trainer`: one callback is passed, nothing else of the loop changes.

    Trainer(model, args, train_dataset=data, callbacks=[TallyCallback("run", anchor_stride=50)]).train()

The Trainer does not pass batches to a callback. They are read from the calls of the model, which show what was consumed
and the number by which a loss is divided. A data collator would not do: it runs ahead of the steps, often in other
processes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from tallystick.errors import UsageError
from tallystick.frameworks.torch.wrappers import inner_model, inner_optimizer
from tallystick.recorders.boundary import sheltered
from tallystick.recorders.callback import CallbackRecording
from tallystick.recorders.graph_source import known_blockers
from tallystick.recorders.preflight import Blocker, of_loader
from tallystick.recorders.step_graph import StepGraph, as_mapping, capture_loop

ITEMS = "num_items_in_batch"
"""The argument with the number by which the Trainer divides a summed loss, over all micro-batches of a step."""


class TallyCallback(TrainerCallback):  # type: ignore[misc]
    """Records every optimizer step of a Trainer into `run_dir`, and captures the step as a graph if that is possible.

    Keyword arguments are the fields of `RecordRecipe`. The step is captured for `optim="adamw_torch"` or SGD in
    float32 on batches of one shape; otherwise a warning gives the reason why the run cannot be replayed.

    Raises `UsageError` if `run_dir` is not empty or a setting is unknown. Nothing is raised into the training: if
    recording fails, a `RuntimeWarning` is issued. One callback records one `train()`.
    """

    def __init__(
        self, run_dir: str | Path, *, description: Mapping[str, str] | None = None, **recorded: object
    ) -> None:
        self._recording = CallbackRecording(run_dir, "TallyCallback", description, recorded)
        self._watching: list[Any] = []
        self._calls: list[dict[str, Any]] = []
        self._losses: list[torch.Tensor] = []

    def on_train_begin(self, args: Any, state: Any, control: Any, **live: Any) -> None:
        """Check that the training can be recorded, and hook the model."""
        with sheltered(self._stop):
            if self._recording.has_begun:
                self._recording.refuse_another()
                return
            if args.world_size > 1 or args.n_gpu > 1:
                raise UsageError("TallyCallback records one process on one device")
            self._args, self._model, self._optimizer = args, live["model"], live["optimizer"]
            self._loader = live.get("train_dataloader")
            self._watch()

    def on_step_end(self, args: Any, state: Any, control: Any, **live: Any) -> None:
        """Record the step that was just taken."""
        with sheltered(self._stop):
            if self._recording.is_open:
                self._recording.step(self._losses, self._is_scaled, self._calls)
            self._calls, self._losses = [], []

    def on_train_end(self, args: Any, state: Any, control: Any, **live: Any) -> None:
        """Save the last state and write the claim."""
        with sheltered(self._stop):
            self._unwatch()
            self._recording.finish()

    @property
    def _accumulation(self) -> int:
        return int(self._args.gradient_accumulation_steps)

    @property
    def _is_scaled(self) -> bool:
        """Whether each loss is already its share of the step's loss, and not the mean of its own micro-batch."""
        return ITEMS in self._calls[0]

    def _stop(self, reason: str) -> None:
        self._unwatch()
        self._recording.stop(reason)

    def _watch(self) -> None:
        # the hooks run uncompiled even if the model is compiled
        called, answered = (torch.compiler.disable(hook) for hook in (self._called, self._answered))  # type: ignore[no-untyped-call]
        before = self._model.register_forward_pre_hook(called, with_kwargs=True)
        self._watching = [before, self._model.register_forward_hook(answered)]

    def _unwatch(self) -> None:
        for handle in self._watching:
            handle.remove()
        self._watching = []

    def _called(self, model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        with sheltered(self._stop):
            if not (model.training and torch.is_grad_enabled()):
                return
            self._calls.append(dict(kwargs) | {f"x{number}": value for number, value in enumerate(args)})
            if not self._recording.has_begun:
                self._begin()

    def _answered(self, model: torch.nn.Module, args: tuple[Any, ...], output: Any) -> None:
        with sheltered(self._stop):
            if model.training and torch.is_grad_enabled():
                self._losses.append(loss_of(output).detach())

    def _begin(self) -> None:
        """Capture the step for the first batch, and save the state before it."""
        self._unwatch()
        described = {"loop": "transformers.Trainer", "optim": str(self._args.optim)}
        self._recording.begin(self._model, self._optimizer, described, self._captured, self._blockers())
        self._watch()

    def _captured(self) -> StepGraph:
        first, count = self._calls[0], self._accumulation
        factor = count if self._is_scaled else 1

        def loss(model: Any, batch: Mapping[str, Any]) -> torch.Tensor:
            share = loss_of(model(**batch))
            return share if factor == 1 else share * factor  # exact: the captured step divides by `factor` again

        limit = self._args.max_grad_norm or None
        example = first if count == 1 else [first] * count
        model, optimizer = inner_model(self._model), inner_optimizer(self._optimizer)
        return capture_loop(model, loss, optimizer, example, clip_norm=limit, accumulation=count)

    def _blockers(self) -> list[Blocker]:
        """Every reason that is known before the first step why the run cannot be replayed, by the Trainer's names."""
        found = known_blockers(self._model, self._optimizer)
        if any(group.get("fused") for group in inner_optimizer(self._optimizer).param_groups):
            found = [each for each in found if "fused" not in each.what]
            name = getattr(self._args.optim, "value", self._args.optim)
            found.append(
                Blocker(f'the fused kernel of optim="{name}" adds in another order', 'use optim="adamw_torch"')
            )
        return found + list(self._of_arguments())

    def _of_arguments(self) -> Iterator[Blocker]:
        args, count = self._args, self._accumulation
        if args.bf16 or args.fp16:
            yield Blocker("mixed precision of the Trainer is not captured", "leave bf16 and fp16 off")
        if args.torch_compile:
            yield Blocker("kernels of torch_compile=True round otherwise than those of a graph", "leave it off")
        if self._is_scaled and count & (count - 1):
            yield Blocker(f"{count} micro-batches a step are not captured exactly", "take 1, 2, 4, 8, …")
        if any(name.startswith("x") and name[1:].isdigit() for name in as_mapping(self._calls[0])):
            yield Blocker("the model is called with positional arguments", "call it with arguments by name")
        yield from of_loader(self._loader, "set dataloader_drop_last=True")


def loss_of(output: Any) -> torch.Tensor:
    """The loss in the output of a model; raises `UsageError` if the model returns none."""
    found = output.get("loss") if isinstance(output, Mapping) else output[0] if isinstance(output, tuple) else None
    if not isinstance(found, torch.Tensor) or found.ndim:
        raise UsageError("TallyCallback: the model returns no loss; record a loop of your own with record_training")
    return found
