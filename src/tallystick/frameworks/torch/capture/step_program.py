"""The step as a function from named tensors to named tensors, which is traced.

It differentiates the exported model with `torch.autograd.grad`, which sums in the order of `backward()`, and then
applies the optimizer's arithmetic.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import nn

from tallystick.frameworks.torch.capture.exported_calls import Replaying
from tallystick.frameworks.torch.capture.step import TrainingStep
from tallystick.frameworks.torch.capture.step_names import batch_of, group_suffix, is_state
from tallystick.frameworks.torch.capture.trail import CLIPPING, UPDATE, Trail
from tallystick.frameworks.torch.dtypes import spec_of
from tallystick.frameworks.torch.generator_operators import mt19937_move
from tallystick.frameworks.torch.optimizers.catalogue import updates_of
from tallystick.frameworks.torch.optimizers.known import Scalars, Tensors, arithmetic_dtype
from tallystick.frameworks.torch.randomness import (
    ExplicitRandomness,
    GeneratorRandomness,
    explicit_randomness,
)
from tallystick.transcripts.rule import GroupRule
from tallystick.workloads.names import BATCH, GENERATOR, GENERATOR_MOVE, POSITION, SEED, UPDATED, WEIGHTS
from tallystick.workloads.optimizer import schedule_scalars


@dataclass(frozen=True)
class StepFunction:
    """One step, called with its tensors in the order of `names`; `unallocated` are slots that may stay unused."""

    step: TrainingStep
    calls: Sequence[nn.Module]
    names: Sequence[str]
    unallocated: frozenset[str]
    trail: Trail

    def __call__(self, *values: torch.Tensor) -> dict[str, torch.Tensor]:
        """The outputs of one step by name."""
        tensors = dict(zip(self.names, values, strict=True))
        with self._drawing(tensors) as stream:
            gradients, buffers, seen = self._gradients(tensors)
        self.trail.enter(CLIPPING)
        with torch.no_grad():
            norm, gradients = _clipped(gradients, self.step.clip_norm)
            gradients |= self.step.edits.edited(gradients, tensors)
            kept = {name: value for name, value in tensors.items() if is_state(name) and name not in self.unallocated}
            kept |= buffers | self._updated(tensors, gradients) | {POSITION: tensors[POSITION] + 1}
            kept |= {GENERATOR: stream.place} if self.step.draws == "generator" and stream is not None else {}
            edited = self.step.edits.edited_weights(gradients, kept)
            updated = {UPDATED + name.removeprefix(WEIGHTS): kept[name] for name in edited}
            kept |= edited
            kept |= {} if self.step.ema is None else self.step.ema.updated(kept)
        shown = {f"gradients.{name}": value for name, value in gradients.items()}
        return {**kept, **updated, **shown, **seen, "gradient_norm": norm}

    def _drawing(self, tensors: Tensors) -> AbstractContextManager[ExplicitRandomness | None]:
        if self.step.draws == "seed":
            return explicit_randomness(tensors[SEED])
        if self.step.draws == "generator":
            return GeneratorRandomness(mt19937_move(tensors[GENERATOR], tensors[BATCH + GENERATOR_MOVE]))
        return nullcontext()

    def _gradients(self, tensors: Tensors) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor], Tensors]:
        """Gradients and buffers after all micro-batches, and the observed values."""
        model, count = self.step.model, self.step.accumulation
        leaves = {name: tensors[f"weights.{name}"].detach() for name, _ in model.named_parameters()}
        trained = {name: leaves[name].requires_grad_() for name in self.step.trained}
        buffers = {name: tensors[f"buffers.{name}"].clone() for name, _ in model.named_buffers()}
        replaying = Replaying(model, itertools.cycle(self.calls), leaves | buffers, self.trail)
        total: dict[str, torch.Tensor] = {}
        losses, watched = [], None
        for index in range(count):
            with torch.enable_grad(), self.step.precision():
                loss, watched = self.step.objective(replaying, batch_of(tensors, index, count))
            share = self.step.share(loss)
            self.trail.follow(share)
            _accumulate(total, trained, share)
            losses.append(loss.detach())
        state = {f"buffers.{name}": value for name, value in buffers.items()}
        return total, state, {"loss": self.step.reduced(losses)} | _moments(watched)

    def _updated(self, tensors: Tensors, gradients: Tensors) -> dict[str, torch.Tensor]:
        """The weights with a gradient, and their slots, after the optimizer's update."""
        changed: dict[str, torch.Tensor] = {}
        rules, groups = self.step.rules, self.step.groups
        updates = updates_of(self.step.optimizer)
        for index, (rule, names, update) in enumerate(zip(rules, groups, updates, strict=True)):
            scalars = _GroupScalars(rule, tensors, group_suffix(index, len(rules)))
            for name in (name for name in names if name in gradients):
                self.trail.enter(UPDATE + name)
                weight = tensors[f"weights.{name}"]
                slots = {slot: tensors[f"optimizer.{name}.{slot}"] for slot in rule.slots(spec_of(weight))}
                moved, kept = update(rule, weight, gradients[name], slots, scalars.of(weight.dtype))
                changed[f"weights.{name}"] = moved
                changed |= {f"optimizer.{name}.{slot}": value for slot, value in kept.items()}
        return changed


class _GroupScalars:
    """The schedule of one parameter group; each scalar is rounded once to each dtype of its weights."""

    def __init__(self, rule: GroupRule, tensors: Tensors, suffix: str) -> None:
        self._named = {name: tensors[f"schedule.{name}{suffix}"] for name in schedule_scalars(rule, 0.0, 1)}
        self._rounded: dict[torch.dtype, Tensors] = {}

    def of(self, dtype: torch.dtype) -> Scalars:
        """The scalars as they are, in `dtype`, and in the dtype that kernels compute in on weights of `dtype`."""
        return Scalars(self._named, self._in(dtype), self._in(arithmetic_dtype(dtype)))

    def _in(self, dtype: torch.dtype) -> Tensors:
        if dtype not in self._rounded:
            self._rounded[dtype] = {name: value.to(dtype) for name, value in self._named.items()}
        return self._rounded[dtype]


def _accumulate(total: dict[str, torch.Tensor], trained: Tensors, loss: torch.Tensor) -> None:
    """Add the gradients of one backward pass, each with the strides of its parameter, as `backward()` stores them."""
    found = torch.autograd.grad(loss, list(trained.values()), allow_unused=True)
    for (name, parameter), gradient in zip(trained.items(), found, strict=True):
        if gradient is not None:
            same = gradient.stride() == parameter.stride()
            laid = gradient if same else gradient.clone(memory_format=torch.contiguous_format)
            total[name] = total[name] + laid if name in total else laid


def _clipped(gradients: Tensors, clip_norm: float | None) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """As `torch.nn.utils.clip_grad_norm_`, gradient by gradient."""
    norm = torch.nn.utils.get_total_norm(list(gradients.values()), foreach=False)
    if clip_norm is None:
        return norm, dict(gradients)
    share = torch.clamp(clip_norm / (norm + 1e-6), max=1.0)
    return norm, {name: value * share for name, value in gradients.items()}


def _moments(watched: torch.Tensor | None) -> dict[str, torch.Tensor]:
    """Mean and root mean square in float64, as the trainer records them."""
    if watched is None:
        return {}
    values = watched.detach().double()
    return {"activation.mean": values.mean(), "activation.rms": values.square().mean().sqrt()}
