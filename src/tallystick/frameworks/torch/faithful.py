"""Whether a captured step gives the bits of the eager one: both are run once on the same values and compared.

A model can behave differently while it is exported (libraries branch on it), and then the graph is of another program
than the one that trains. The first gradient is enough to see it: the optimizer's arithmetic is this project's own.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from tallystick.errors import UnavailableError
from tallystick.frameworks.torch.engine import TorchEngine
from tallystick.frameworks.torch.randomness import explicit_randomness, seed_tensor
from tallystick.graphs.graph import Graph
from tallystick.tensors import Tensor

SEED_OF_CHECK = bytes(range(16))


def check_bits(
    graph: Graph,
    constants: Mapping[str, Tensor],
    model: nn.Module,
    gradients_of: Callable[[nn.Module], Mapping[str, torch.Tensor]],
    given: Mapping[str, torch.Tensor],
) -> None:
    """Raise `UnavailableError` unless `graph` gives the loss, norm and gradients that the eager model gives.

    Args:
        graph: a captured step.
        constants: its constants.
        model: left as it is; a copy takes the step.
        gradients_of: the eager forward and backward pass: observations by the names of the graph's outputs.
        given: the inputs that are no weights or buffers of the model.
    """
    engine = TorchEngine(next(model.parameters()).device.type)
    live = {f"weights.{name}": value.detach() for name, value in model.named_parameters()}
    live |= {f"buffers.{name}": value.detach() for name, value in model.named_buffers()}
    fixed = {name: engine.load(tensor) for name, tensor in constants.items()}
    replayed = engine.compile(graph)({**fixed, **live, **given})
    for name, value in gradients_of(copy.deepcopy(model)).items():
        if not torch.equal(value, replayed[name]) and not value.isnan().any():
            raise UnavailableError(
                f"the captured step has not the bits of the eager one, first in {name}: "
                "the model behaves differently while it is exported (try attn_implementation='eager')"
            )


def eager_gradients(
    model: nn.Module,
    objective: Callable[[Any, Mapping[str, torch.Tensor]], tuple[torch.Tensor, torch.Tensor | None]],
    batches: Sequence[Mapping[str, torch.Tensor]],
    clip_norm: float | None,
    precision: Callable[[], AbstractContextManager[object]],
    seeded: bool,
) -> dict[str, torch.Tensor]:
    """Loss, gradient norm and gradients of the native loop over micro-batches."""
    losses = []
    model.zero_grad(set_to_none=True)
    with explicit_randomness(seed_tensor(SEED_OF_CHECK)) if seeded else nullcontext():
        for batch in batches:
            with precision():
                loss, _ = objective(model, batch)
            (loss / len(batches)).backward()  # type: ignore[no-untyped-call]
            losses.append(loss.detach())
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    norm = torch.nn.utils.get_total_norm(list(gradients.values()))
    if clip_norm is not None:
        norm = torch.nn.utils.clip_grad_norm_(list(model.parameters()), clip_norm)
    shown = {f"gradients.{name}": value for name, value in gradients.items()}
    return {"loss": torch.stack(losses).mean(), "gradient_norm": norm} | shown
