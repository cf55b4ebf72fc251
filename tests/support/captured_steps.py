"""A captured step replayed beside the loop that it was captured from."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from tallystick.engines.torch.capture.step import CapturedStep
from tallystick.engines.torch.engine import TorchEngine
from tallystick.engines.torch.tensors import from_tensor, live_tensors

Batch = dict[str, torch.Tensor]


class Replay:
    """The captured step beside the state it goes on from."""

    def __init__(self, captured: CapturedStep, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        engine = TorchEngine()
        self.captured, self.program = captured, engine.compile(captured.graph, consumed=captured.state)
        self.state = {name: from_tensor(tensor) for name, tensor in captured.state_of(model, optimizer).items()}
        self.fixed = {name: engine.load(tensor) for name, tensor in captured.constants.items()}
        self.rates = [group["lr"] for group in optimizer.param_groups]

    def step(self, index: int, batches: list[Batch], **extra: torch.Tensor) -> dict[str, torch.Tensor]:
        scalars = self.captured.schedule(index, *self.rates)
        given = {name: from_tensor(value) for name, value in scalars.items()}
        for number, batch in enumerate(batches):
            prefix = "inputs." if len(batches) == 1 else f"inputs.{number}."
            given |= {prefix + name: value for name, value in batch.items()}
        outputs = self.program(self.fixed | self.state | given | extra)
        self.state = {name: outputs[name] for name in self.state}
        return outputs


def native_step(
    model: nn.Module,
    loss: Callable[..., torch.Tensor],
    optimizer: torch.optim.Optimizer,
    batches: list[Batch],
    clip_norm: float | None,
) -> dict[str, torch.Tensor]:
    """The loop of PyTorch's manual, and everything it leaves behind, by the names of the graph."""
    optimizer.zero_grad()
    for batch in batches:
        seen = loss(model, batch)
        (seen / len(batches)).backward()
    if clip_norm is not None:
        nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
    optimizer.step()
    gradients = {f"gradients.{name}": p.grad for name, p in model.named_parameters() if p.grad is not None}
    return live_tensors(model, optimizer) | gradients
