"""Checks that a captured step gives the bits of the eager step: both run once on the same values.

A model can behave differently during export, because libraries branch on it. Then the graph is another program than the
one that trains. Comparing loss and gradients is enough, because the optimizer's arithmetic is this project's own.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from contextlib import nullcontext

import torch
from torch import nn

from tallystick.errors import UnavailableError
from tallystick.frameworks.torch.capture.captured_step import CapturedStep
from tallystick.frameworks.torch.capture.step import Batch, TrainingStep
from tallystick.frameworks.torch.engine import TorchEngine
from tallystick.frameworks.torch.randomness import explicit_randomness, seed_tensor

SEED_OF_CHECK = bytes(range(16))


def check_bits(
    captured: CapturedStep, step: TrainingStep, batches: Sequence[Batch], given: Mapping[str, torch.Tensor]
) -> None:
    """Raise `UnavailableError` unless graph and eager model give the same loss, norm and gradients, bit by bit.

    Args:
        captured: the captured graph of `step`.
        step: the eager step; a copy of its model takes it.
        batches: the micro-batches.
        given: the inputs of the graph; weights and buffers are replaced by the model's tensors.
    """
    replayed = _replayed(captured, step.model, given)
    with torch.random.fork_rng(devices=[]):
        expected = _eager(copy.deepcopy(step.model), step, batches)
    for name, value in expected.items():
        if not torch.equal(value, replayed[name]) and not value.isnan().any():
            raise UnavailableError(
                f"the captured step has not the bits of the eager one, first in {name}: "
                "the model behaves differently while it is exported (try attn_implementation='eager')"
            )


def _replayed(
    captured: CapturedStep, model: nn.Module, given: Mapping[str, torch.Tensor]
) -> Mapping[str, torch.Tensor]:
    engine = TorchEngine(next(model.parameters()).device.type)
    live = {f"weights.{name}": value.detach() for name, value in model.named_parameters()}
    live |= {f"buffers.{name}": value.detach() for name, value in model.named_buffers()}
    fixed = {name: engine.load(tensor) for name, tensor in captured.constants.items()}
    return engine.compile(captured.graph)({**given, **fixed, **live})


def _eager(model: nn.Module, step: TrainingStep, batches: Sequence[Batch]) -> dict[str, torch.Tensor]:
    """Loss, gradient norm and gradients of the eager loop over micro-batches, by the names of the graph's outputs."""
    losses = []
    model.zero_grad(set_to_none=True)
    with explicit_randomness(seed_tensor(SEED_OF_CHECK)) if step.seeded else nullcontext():
        for batch in batches:
            with step.precision():
                loss, _ = step.objective(model, batch)
            (loss / len(batches)).backward()  # type: ignore[no-untyped-call]
            losses.append(loss.detach())
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    norm = torch.nn.utils.get_total_norm(list(gradients.values()))
    if step.clip_norm is not None:
        norm = torch.nn.utils.clip_grad_norm_(list(model.parameters()), step.clip_norm)
    shown = {f"gradients.{name}": value for name, value in gradients.items()}
    return {"loss": torch.stack(losses).mean(), "gradient_norm": norm} | shown
